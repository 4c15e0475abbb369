"""Models saved by one rank and asked for by another."""

import os
import threading
import time

import numpy as np
import pytest
import torch
from worlds import TRANSPORTS, run_world

from kfcore.errors import DeadlineError, UsageError


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_peer_is_answered_while_it_computes(transport):
    done = threading.Event()

    def work(session):
        if session.rank == 0:
            session.save("m", [np.arange(300_000.0), np.float32(2), np.zeros((0, 3))], 7)
            until = time.monotonic() + 10
            while not done.is_set() and time.monotonic() < until:
                pass  # no call of the session
        else:
            model = session.request(0, "m")
            assert model.version == 7
            assert [a.shape for a in model.arrays] == [(300_000,), (), (0, 3)]
            assert model.arrays[0][-1] == 299_999
            assert model.arrays[1].dtype == np.float32
            model.arrays[0][0] = 5  # the reader's own
            assert session.request(0, "m", 7).arrays[0][0] == 0
            done.set()
        session.barrier()

    run_world(transport, 2, work)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_reads_are_never_torn(transport):
    def work(session):
        peer = 1 - session.rank
        for version in range(60):
            session.save("w", [np.full(20_000, version), np.full(7, version)], version)
            model = session.request(peer, "w")
            values = np.concatenate(model.arrays)
            assert (values == model.version).all()
            session.all_reduce(np.ones(10))  # other operations go on meanwhile
        session.barrier()

    run_world(transport, 2, work)


def test_versions_are_waited_for_kept_and_dropped():
    def work(session):
        if session.rank == 0:
            time.sleep(0.2)
            for version in (1, 2, 5):
                session.save("m", [np.array([version])], version)
                session.barrier()
            assert session.request(0, "m").version == 5
            assert session.request(0, "other") is None
            own = session.request(0, "m", 2).arrays[0]
            own[0] = 9
            assert session.request(0, "m", 2).arrays[0][0] == 2
        else:
            assert session.request(0, "m").version == 1
            session.barrier()
            assert session.request(0, "m", 2).arrays[0][0] == 2
            session.barrier()
            session.barrier()
            assert session.request(0, "m", 1) is None  # only two are kept
            assert session.request(0, "m", 3) is None  # left out
            assert session.request(0, "m", 5).version == 5
        session.barrier()

    run_world("inproc", 2, work)


def test_many_ranks_ask_each_other_at_once():
    def work(session):
        session.save("m", [np.full(1000, session.rank)], 0)
        for shift in range(1, session.world_size):
            peer = (session.rank + shift) % session.world_size
            assert (session.request(peer, "m").arrays[0] == peer).all()
        session.barrier()

    run_world("inproc", 5, work)


def test_two_threads_may_ask_one_peer():
    def work(session):
        session.save("m", [np.full(100_000, session.rank)], 0)
        peer = 1 - session.rank
        wrong = []

        def ask():
            got = (session.request(peer, "m").arrays[0] for _ in range(20))
            wrong.extend(array for array in got if not (array == peer).all())

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        session.barrier()

    run_world("inproc", 2, work)


def test_wrong_arguments_are_refused_and_do_no_harm():
    def work(session):
        session.save("m", [np.zeros(1)], 3)
        for call in (
            lambda: session.save("m", [np.zeros(1)], 3),
            lambda: session.save("", [np.zeros(1)], 4),
            lambda: session.save("x" * 2000, [np.zeros(1)], 4),
            lambda: session.save("m", [np.zeros(1)], 4, keep=0),
            lambda: session.save("m", [torch.zeros(1, dtype=torch.bfloat16)], 4),
            lambda: session.save("n", [np.zeros(1)], -1),
            lambda: session.request(2, "m"),
            lambda: session.request(0, "m", -1),
        ):
            with pytest.raises(UsageError):
                call()
        session.barrier()

    run_world("inproc", 2, work)


def test_a_model_that_never_comes_is_a_deadline():
    def work(session):
        if session.rank == 0:
            time.sleep(0.6)
            return
        with pytest.raises(DeadlineError, match=r"waiting for ranks \[0\]"):
            session.request(0, "m", timeout_s=0.3)

    run_world("inproc", 2, work)


def test_memory_does_not_grow_with_versions():
    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def work(session):
        array = np.ones(1 << 18)
        for version in range(100):
            session.save("m", [array], version)
            assert session.request(1 - session.rank, "m", version).version == version
            session.barrier()
            if version == 20 and session.rank == 0:
                start.append(resident())
        if session.rank == 0:
            assert resident() - start[0] < 64 << 20

    start = []
    run_world("inproc", 2, work)
