"""What a session costs does not grow with what it has done."""

import gc
import os
import threading
import time

import numpy as np
import pytest
from worlds import run_world

from kfcore import inproc_world

MANY = pytest.param(20_000, 200, marks=pytest.mark.slow)


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def mixed(session, count, sizes):
    """Operations of all kinds; the same on every rank."""
    n, rank = session.world_size, session.rank
    buffer = np.ones(1100, np.float32)
    for i in range(count):
        part = buffer[: 1000 + int(sizes[i % len(sizes)])]
        part[:] = 1
        kind = i % 8
        if kind == 0:
            session.all_reduce(part, name=f"g/{i % 50}")
        elif kind == 1:
            session.broadcast(part, i % n)
        elif kind == 2:
            session.all_gather(part[:10])
        elif kind == 3:
            session.reduce_scatter(np.ones((n, 3)))
        elif kind == 4:
            handles = [
                session.all_reduce(row, async_op=True) for row in part[:40].reshape(4, 10)
            ]
            for handle in handles:
                handle.wait()
        elif kind == 5:
            session.grouped_all_reduce([part[:100], part[100:900]])
        elif kind == 6:
            session.all_gather_uneven(np.ones((1 + (i + rank) % 3, 2)))
        else:
            session.barrier()
        if kind == 0:
            assert part[0] == part[-1] == n


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("operations", "openings"), [(2000, 20), MANY])
def test_memory_descriptors_and_threads_do_not_grow(operations, openings):
    sizes = np.random.default_rng(1).integers(0, 97, 1000)

    def work(session):
        def measure():
            # Ranks share a process, and listing descriptors opens one: one rank alone looks.
            session.barrier()
            gc.collect()
            seen = (
                (resident_bytes(), len(os.listdir("/proc/self/fd")))
                if session.rank == 0
                else (0, 0)
            )
            session.barrier()
            return np.array(seen)

        mixed(session, 1000, sizes)  # buffers and plans reach their size
        before = measure()
        mixed(session, operations, sizes)
        return measure() - before

    grown_bytes, grown_fds = run_world("shm", 2, work, timeout_s=600)[0]
    assert grown_bytes < 4 << 20  # of both ranks together
    assert grown_fds <= 0

    def once():
        run_world("tcp", 2, lambda session: session.all_reduce(np.ones(8)), timeout_s=90)

    for _ in range(5):
        once()
    gc.collect()
    before = resident_bytes(), threading.active_count()
    for _ in range(openings):
        once()
    gc.collect()
    assert resident_bytes() - before[0] < 10 << 20
    deadline = time.monotonic() + 60  # threads of the closed stores may end a moment later
    while threading.active_count() > before[1] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before[1]


def test_a_session_keeps_little_for_each_name():
    def work(session):
        array = np.ones(4, np.float32)
        for i in range(3000):  # the cache of plans reaches its bound
            session.all_reduce(array, name=f"first {i}")
        before = resident_bytes()
        for i in range(40_000):
            session.all_reduce(array, name=f"step {i}")
        return resident_bytes() - before

    # 16 to 43 bytes a name; the table doubles, so old and new are there at once
    assert inproc_world(1, work)[0] < 40_000 * 100


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_opening_a_session_changes_neither_affinity_nor_idle_threads(transport):
    mask = os.sched_getaffinity(0)

    def work(session):
        session.barrier()
        session.all_reduce(np.ones(1 << 16))
        return os.sched_getaffinity(0)

    assert run_world(transport, 2, work, timeout_s=90) == [mask, mask]
    assert os.sched_getaffinity(0) == mask
