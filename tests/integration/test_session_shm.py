"""Sessions of real processes over shared memory: values, loss, forks, a tiny /dev/shm."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_session_tcp import ROOT, World

pytestmark = pytest.mark.processes


def shared_names():
    """Everything the kernel shows by name in shared memory."""
    return {path.name for path in Path("/dev/shm").iterdir()}  # noqa: S108 - only looks


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_ranks_of_one_host_share_memory_and_agree(world_size):
    script = """
        with kfcore.init() as s:
            assert s.transport == "shm", s.transport
            n, r = s.world_size, s.rank
            before = s.stats().operations
            for shared in (True, False):
                for count in (0, 1, 1000, 100_003, 1_500_000):
                    make = kfcore.empty if shared else np.empty
                    base = make(count + 3, "float32")
                    a = base[3:]  # a view that does not start where its memory does
                    a[:] = np.arange(count) % 251 + r
                    s.all_reduce(a)
                    expected = n * (np.arange(count) % 251) + n * (n - 1) / 2
                    assert (a == expected.astype(np.float32)).all(), (shared, count)
            print(s.stats().operations - before)
    """
    with World(world_size, script, timeout_s=60) as world:
        assert world.finish(90) == ["10\n"] * world_size


def test_transport_can_be_forced_to_tcp():
    script = """
        with kfcore.init(transport="tcp") as s:
            s.barrier()
            print(s.transport)
    """
    with World(2, script) as world:
        assert world.finish() == ["tcp\n", "tcp\n"]


def test_a_killed_rank_is_named_by_all_others_and_leaves_nothing_behind():
    before = shared_names()
    script = """
        s = kfcore.init()
        a = kfcore.empty(4_000_000)
        a[:] = 1.0
        s.all_reduce(a)
        print("ready", flush=True)
        start = time.monotonic()
        try:
            while True:
                s.all_reduce(a, "max")
        except errors.PeerLostError as error:
            assert "rank 2" in str(error), error
            print("lost", flush=True)
        try:
            s.barrier()
        except errors.PeerLostError:
            print("dead")
    """
    with World(4, script) as world:
        for worker in world.workers:
            assert worker.stdout.readline() == "ready\n"
        time.sleep(0.3)
        killed = time.monotonic()
        world.workers[2].kill()
        outputs = world.finish()
        assert time.monotonic() - killed < 5
    assert [outputs[r] for r in (0, 1, 3)] == ["lost\ndead\n"] * 3
    assert shared_names() <= before  # other programs may take theirs away meanwhile


def test_a_rank_killed_while_it_connects_leaves_nothing_behind():
    before = shared_names()
    script = """
        try:
            kfcore.init(timeout_s=3.0)
        except (errors.DeadlineError, errors.TransportError):
            print("gave up")
    """
    for delay in (0.3, 0.6, 0.9):
        with World(3, script) as world:
            time.sleep(delay)
            world.workers[1].send_signal(signal.SIGKILL)
            for worker in world.workers:
                worker.communicate(timeout=30)
    assert shared_names() <= before  # other programs may take theirs away meanwhile


@pytest.mark.parametrize("crowded", [False, True])
def test_a_waiting_rank_sleeps_and_wakes(crowded):
    script = """
        if CROWDED:  # more ranks than cores: they yield instead of spinning
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        with kfcore.init() as s:
            s.barrier()
            if s.rank == 1:
                time.sleep(1.5)
            start = time.process_time()
            s.barrier()
            used = time.process_time() - start
            assert used < 0.3, used
            print("ok")
    """
    with World(2, script.replace("CROWDED", str(crowded))) as world:
        assert world.finish() == ["ok\n"] * 2


def test_an_idle_session_uses_no_processor_time():
    script = """
        with kfcore.init() as s:
            s.all_reduce(np.ones(1000, np.float32))
            s.all_reduce(np.ones(1000, np.float32), async_op=True).wait()
            s.barrier()
            time.sleep(0.3)
            start = time.process_time()
            time.sleep(2)
            used = time.process_time() - start
            assert used < 0.01, used  # 0.5 % of a core
            s.barrier()
            print("ok")
    """
    with World(2, script) as world:
        assert world.finish() == ["ok\n"] * 2


def test_a_forked_child_is_refused_and_harms_nobody():
    script = """
        s = kfcore.init()
        a = np.ones(1000, np.float32)
        s.all_reduce(a)
        child = os.fork()
        if child == 0:
            try:
                s.all_reduce(a)
            except errors.UsageError as error:
                assert "forked" in str(error)
                s.close()
                del s
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        s.all_reduce(a)
        print(a[0])
        s.close()
    """
    with World(2, script) as world:
        assert world.finish() == ["4.0\n"] * 2


def test_sessions_can_be_opened_again_and_again_without_growth():
    script = """
        from kfcore.config import Config
        from kfcore.store import connect_store
        from kfcore.world import open_session
        config = Config.from_env()
        store = connect_store(config)
        def count():
            return len(os.listdir("/proc/self/fd")), sum(1 for _ in open("/proc/self/maps"))
        sizes = []
        a = kfcore.empty(50_000)
        for version in range(1, 41):
            with open_session(config, store, view_version=version) as s:
                a[:] = 1.0
                s.all_reduce(a)
                assert (a == 2.0).all()
            sizes.append(count())
        assert sizes[-1][0] == sizes[9][0], sizes
        assert sizes[-1][1] <= sizes[9][1] + 2, sizes
        print("ok")
    """
    with World(2, script, timeout_s=60) as world:
        assert world.finish(90) == ["ok\n"] * 2


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a file system of its own")
def test_a_tiny_dev_shm_is_no_limit(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(
        "import kfcore, numpy as np\n"
        "s = kfcore.init()\n"
        "a = kfcore.empty(2_000_000)\n"
        "a[:] = 1.0\n"
        "s.all_reduce(a)\n"
        "print(s.transport, a[-1])\n"
        "s.close()\n"
    )
    command = (
        "mount -t tmpfs -o size=1m tmpfs /dev/shm && "
        f"exec {sys.executable} -m kfcore run -n 2 {sys.executable} {script}"
    )
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", command],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("shm 2.0") == 2, done.stdout
