"""Sessions of real processes over TCP: values, a killed rank, strangers, Ctrl-C, the GIL."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from kfcore.config import Config
from kfcore.errors import DeadlineError, KfError, TransportError
from kfcore.store import StoreClient, StoreServer
from kfcore.world import open_session

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.processes

PRELUDE = """
import os, sys, threading, time
import numpy as np
import kfcore
from kfcore import errors
"""


class World:
    """n worker processes that run one script, and the store where they meet."""

    def __init__(self, world_size, script, timeout_s=20.0, host="127.0.0.1"):
        self.server = StoreServer(host, 0, "secret")
        base = Config(
            0,
            world_size,
            0,
            self.server.address,
            job_id="j",
            job_secret="secret",
            timeout_s=timeout_s,
        )
        code = PRELUDE + textwrap.dedent(script)
        self.workers = []
        for rank in range(world_size):
            env = {**os.environ, **base.with_rank(rank).to_env(), "PYTHONPATH": str(ROOT)}
            self.workers.append(
                subprocess.Popen(
                    [sys.executable, "-c", code],
                    env=env,
                    text=True,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for worker in self.workers:
            if worker.poll() is None:
                worker.kill()
            worker.communicate()
        self.server.close()

    def finish(self, timeout_s=60):
        """Output of every rank, all of which must exit with 0."""
        outputs = []
        for rank, worker in enumerate(self.workers):
            out, err = worker.communicate(timeout=timeout_s)
            assert worker.returncode in (0, -signal.SIGKILL), f"rank {rank}: {err}"
            outputs.append(out)
        return outputs


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_four_processes_reduce_over_tcp(host):
    script = """
    with kfcore.init() as session:
        for schedule in ("ring", "binary_tree", "halving_doubling", "star", "auto"):
            session.set_schedule(schedule)
            for size in (0, 1, 7, 1000, 400_003):
                a = np.arange(size, dtype=np.float32) + session.rank
                session.all_reduce(a)
                assert np.array_equal(a, np.arange(size, dtype=np.float32) * 4 + 6), size
        print(session.view.members[0], end="")
    """
    with World(4, script, host=host) as world:
        outputs = world.finish()
    assert len(set(outputs)) == 1
    assert ("[::1]" in outputs[0]) == (host == "::1")


def test_a_killed_rank_is_named_on_every_survivor_at_once():
    script = """
    session = kfcore.init()
    array = np.ones(4 << 20, np.float32)
    for step in range(1_000_000):
        if session.rank == 2 and step == 3:
            os.kill(os.getpid(), 9)
        array[:] = 1
        try:
            session.all_reduce(array)
        except errors.PeerLostError as error:
            print(time.time(), error)
            try:
                session.barrier()
            except errors.PeerLostError as again:
                assert str(again) == str(error)
            break
    """
    with World(4, script, timeout_s=60) as world:
        outputs = world.finish(timeout_s=30)
    times = [float(outputs[rank].split(" ", 1)[0]) for rank in (0, 1, 3)]
    for rank in (0, 1, 3):
        assert "rank 2 was lost" in outputs[rank]
    assert max(times) - min(times) < 2.0  # nobody waits for the 60 s deadline


def test_ctrl_c_interrupts_a_blocking_call():
    script = """
    session = kfcore.init()
    print("ready", flush=True)
    if session.rank == 0:
        try:
            session.barrier()
        except KeyboardInterrupt:
            print("interrupted")
    else:
        time.sleep(2)
        try:
            session.barrier()  # may succeed: rank 0 had entered it before it was interrupted
            session.barrier()
        except errors.AbortedError as error:
            print(error)
    """
    with World(2, script, timeout_s=60) as world:
        for worker in world.workers:
            assert worker.stdout.readline() == "ready\n"
        time.sleep(0.3)
        world.workers[0].send_signal(signal.SIGINT)
        outputs = world.finish(timeout_s=20)
    assert "interrupted" in outputs[0]
    assert "rank 0 was interrupted" in outputs[1]


def test_other_threads_run_while_a_call_blocks():
    script = """
    session = kfcore.init()
    ticks = 0
    if session.rank == 0:
        done = threading.Event()
        def tick():
            global ticks
            while not done.wait(0.01):
                ticks += 1
        thread = threading.Thread(target=tick)
        thread.start()
        session.barrier()
        done.set()
        thread.join()
        print(ticks)
    else:
        time.sleep(1.0)
        session.barrier()
    """
    with World(2, script) as world:
        outputs = world.finish()
    assert int(outputs[0]) > 20


def open_on_threads(configs, timeout_s=20.0):
    """Open one session a config at once; the sessions or errors, in order."""
    results = [None] * len(configs)

    def run(i):
        try:
            with StoreClient(configs[i].store_address, "store") as store:
                results[i] = open_session(configs[i], store)
        except KfError as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(configs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s)
    return results


@pytest.fixture
def store():
    with StoreServer("127.0.0.1", 0, "store") as server:
        yield server


def config(store, rank, **fields):
    defaults = {
        "world_size": 2,
        "store_address": store.address,
        "job_id": "j",
        "job_secret": "s",
        "timeout_s": 4.0,
    }
    return Config(rank=rank, **{**defaults, **fields})


@pytest.mark.parametrize("fields", [{"job_secret": "wrong"}, {"job_id": "other"}])
def test_a_worker_without_the_right_proof_is_refused(store, fields):
    first, second = open_on_threads([config(store, 0), config(store, 1, **fields)])
    assert isinstance(first, DeadlineError)
    assert "rank 1 has not connected" in str(first)
    assert "proof of the job secret is wrong" in str(first)
    assert isinstance(second, TransportError)
    assert "rank 0 refused this worker" in str(second)


def test_a_door_slammed_before_the_proof_is_not_taken_for_a_refusal(store):
    with socket.create_server(("127.0.0.1", 0)) as crowded:
        slammed = []

        def slam():
            try:
                while True:
                    crowded.accept()[0].close()
                    slammed.append(1)
            except OSError:
                return  # closed at the end of the test

        thread = threading.Thread(target=slam)
        thread.start()
        with StoreClient(store.address, "store") as client:
            client.set("view/1/rank/0", f"127.0.0.1:{crowded.getsockname()[1]}")
        (result,) = open_on_threads([config(store, 1)])
        crowded.shutdown(socket.SHUT_RDWR)
    thread.join(5)
    assert len(slammed) >= 8  # as many as eight refusals, after which a worker would give up
    assert isinstance(result, DeadlineError)
    assert "rank 0 at" in str(result)


def test_a_flood_of_strangers_disturbs_nobody(store):
    stop = threading.Event()

    def flood():
        with StoreClient(store.address, "store") as client:
            address = client.get("view/1/rank/0", 10.0)
        host, port = address.rsplit(":", 1)
        garbage = [b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096), b"KFh1" + bytes(300)]
        kept = []
        for i in range(600):
            try:
                sock = socket.create_connection((host, int(port)), timeout=1)
                sock.sendall(garbage[i % 4])
                kept.append(sock)  # stays open: the listener must not wait for it
            except OSError:
                break
        stop.wait(10)
        for sock in kept:
            sock.close()

    flooder = threading.Thread(target=flood)
    flooder.start()

    def late(results):
        time.sleep(0.5)
        results.extend(open_on_threads([config(store, 1, timeout_s=15)]))

    late_results: list = []
    joiner = threading.Thread(target=late, args=(late_results,))
    joiner.start()
    (first,) = open_on_threads([config(store, 0, timeout_s=15)])
    joiner.join(20)
    stop.set()
    flooder.join(20)
    (second,) = late_results
    results = []
    worker = threading.Thread(target=lambda: results.append(first.all_reduce(np.ones(3))))
    worker.start()
    assert second.all_reduce(np.ones(3)).tolist() == [2.0] * 3
    worker.join(10)
    assert results[0].tolist() == [2.0] * 3
    first.close()
    second.close()


def test_a_flood_of_half_open_handshakes_disturbs_nobody(store):
    hello = b"KFh1" + (1).to_bytes(4, "little")
    sent, stop = [0], threading.Event()

    def flood():
        with StoreClient(store.address, "store") as client:
            host, port = client.get("view/1/rank/0", 60.0).rsplit(":", 1)
        kept = []
        while not stop.is_set():
            try:
                sock = socket.create_connection((host, int(port)), timeout=5)
                sock.sendall(hello + os.urandom(16))
            except OSError:
                continue
            sent[0] += 1
            kept.append(sock)  # a good hello, and never a proof
            if len(kept) > 400:
                kept.pop(0).close()
        for sock in kept:
            sock.close()

    flooder = threading.Thread(target=flood)
    flooder.start()
    results = []

    def late():
        while sent[0] < 600:  # more than are kept, and they go on coming
            time.sleep(0.01)
        results.extend(open_on_threads([config(store, 1, timeout_s=60)], 90))

    joiner = threading.Thread(target=late)
    joiner.start()
    results[:0] = open_on_threads([config(store, 0, timeout_s=60)], 90)
    joiner.join(90)
    stop.set()
    flooder.join(30)
    assert [type(session).__name__ for session in results] == ["Session", "Session"], results
    for session in results:
        session.close()


def test_reopening_leaks_neither_descriptors_nor_threads(store):
    def counts():
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    def once(version):
        results = [None, None]

        def run(rank):
            with StoreClient(store.address, "store") as client:
                session = open_session(config(store, rank), client, view_version=version)
                with session:
                    results[rank] = session.all_reduce(np.ones(10)).sum()

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert results == [20.0, 20.0]

    for version in range(1, 6):
        once(version)
    time.sleep(0.2)  # the store's threads see their connections close
    before = counts()
    for version in range(6, 46):
        once(version)
    time.sleep(0.2)
    after = counts()
    assert after[0] <= before[0] + 2
    assert after[1] <= before[1] + 2
