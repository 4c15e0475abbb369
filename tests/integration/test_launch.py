"""The launcher with real processes: output, exit codes, signals, and no orphans."""

import io
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from kfcore.errors import UsageError
from kfcore.launch import LaunchSpec, launch

pytestmark = pytest.mark.processes
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def script(tmp_path):
    def write(body, name="worker.py"):
        path = tmp_path / name
        head = 'import os, sys, time, signal, subprocess\nrank = int(os.environ["KF_RANK"])\n'
        path.write_text(head + textwrap.dedent(body))
        return str(path)

    return write


def run(command, n, **options):
    out, err = io.BytesIO(), io.BytesIO()
    command = (command,) if isinstance(command, str) else tuple(command)
    result = launch(LaunchSpec(command, n, **options), stdout=out, stderr=err)
    return result, out.getvalue(), err.getvalue()


def kf(*args, **options):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "kfcore", *map(str, args)]
    return subprocess.Popen(command, env=env, **options)


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_until(condition, timeout_s=20.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "condition not met in time"
        time.sleep(0.02)


def test_workers_get_their_place_and_meet_in_the_store(script):
    path = script("""
        from kfcore.config import Config
        from kfcore.store import connect_store
        config = Config.from_env()
        store = connect_store(config)
        store.set(f"view/1/rank/{config.rank}", f"address-{config.rank}")
        seen = [store.get(f"view/1/rank/{r}", 20) for r in range(config.world_size)]
        print(config.rank, config.local_rank, config.world_size, seen == [
            "address-0", "address-1", "address-2"], config.timeout_s, config.policies,
            os.environ["OMP_NUM_THREADS"])
        """)
    result, out, err = run(
        path, 3, timeout_s=7.0, policies=("p.py:P",), env={"PYTHONPATH": str(ROOT)}
    )
    assert (result.exit_code, err) == (0, b"")
    threads = max(1, len(os.sched_getaffinity(0)) // 3)
    assert sorted(out.decode().splitlines()) == [
        f"[{r}] {r} {r} 3 True 7.0 ('p.py:P',) {threads}" for r in range(3)
    ]


def test_ten_thousand_long_lines_a_rank_stay_whole_and_in_order(script):
    path = script("""
        for i in range(10000):
            stream = sys.stdout if i % 2 else sys.stderr
            stream.write(f"{i:05d} " + "x" * 194 + "\\n")
        """)
    result, out, err = run(path, 2)
    assert result.exit_code == 0
    for text, parity in ((out, 1), (err, 0)):
        lines = text.decode().splitlines()
        assert len(lines) == 10000
        for rank in range(2):
            own = [line for line in lines if line.startswith(f"[{rank}] ")]
            numbers = range(parity, 10000, 2)
            assert own == [f"[{rank}] {i:05d} " + "x" * 194 for i in numbers]


def test_odd_bytes_and_an_unterminated_last_line_survive(script, tmp_path):
    path = script(r"""
        sys.stdout.buffer.write(b"\xff\xfe\x00 caf\xc3\xa9\nlast")
        sys.stderr.buffer.write(b"oops")
        """)
    result, out, err = run(path, 1, log_dir=tmp_path / "logs")
    assert result.exit_code == 0
    assert out == b"[0] \xff\xfe\x00 caf\xc3\xa9\n[0] last\n"
    assert err == b"[0] oops\n"
    assert (tmp_path / "logs/rank.0.out").read_bytes() == b"\xff\xfe\x00 caf\xc3\xa9\nlast"
    assert (tmp_path / "logs/rank.0.err").read_bytes() == b"oops"
    assert run(path, 1, prefix=False)[1] == b"\xff\xfe\x00 caf\xc3\xa9\nlast\n"


def test_endless_line_is_shown_in_pieces(script):
    path = script("sys.stdout.write('y' * (3 << 20))")
    result, out, _ = run(path, 1)
    assert result.exit_code == 0
    assert out.count(b"y") == 3 << 20
    assert len(out.splitlines()) == 3


def test_exit_code_is_the_failing_workers_and_its_rank_is_named(script):
    path = script("if rank == 1: sys.exit(7)\ntime.sleep(60)")
    result, _, err = run(path, 2, grace_s=5)
    assert result.exit_code == 7
    assert result.first_failure.rank == 1
    assert err.endswith(b"kf: rank 1 exited 7\n")
    assert result.workers[0].signal == "SIGTERM"


def test_death_by_signal_is_128_plus_its_number_and_named(script):
    path = script("if rank == 1: os.kill(os.getpid(), signal.SIGSEGV)\ntime.sleep(60)")
    result, _, err = run(path, 2)
    assert result.exit_code == 128 + signal.SIGSEGV
    assert err.endswith(b"kf: rank 1 was killed by SIGSEGV\n")


def test_first_failures_traceback_comes_last_and_once(script):
    path = script("""
        if rank == 2:
            time.sleep(0.3)
            raise ValueError("the real cause")
        class PeerLostError(Exception): pass
        try:
            time.sleep(60)
        finally:
            pass
        """)
    blaming = script(
        """
        class PeerLostError(Exception): pass
        if rank == 2:
            time.sleep(0.5)
            raise ValueError("the real cause")
        raise PeerLostError("rank 2 closed the connection")
        """,
        "blaming.py",
    )
    start = time.monotonic()
    result, _, err = run(path, 4)
    assert time.monotonic() - start < 10
    assert (result.exit_code, result.first_failure.rank) == (1, 2)
    assert err.count(b"Traceback") == 1

    result, _, err = run(blaming, 4)
    lines = err.decode().splitlines()
    assert result.first_failure.rank == 2
    assert lines[-2:] == ["[2] ValueError: the real cause", "kf: rank 2 exited 1"]
    assert err.count(b"the real cause") == 2  # its source line and its message
    assert err.count(b"[0] Traceback") == 1


def test_logged_traceback_of_a_worker_that_lives_on_is_shown_in_time(script):
    path = script("""
        import traceback
        try:
            1 / 0
        except ZeroDivisionError:
            traceback.print_exc()
        print("going on", file=sys.stderr)
        time.sleep(60)
        """)
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as lines, os.fdopen(writer, "wb") as err:
        spec = LaunchSpec((path,), 1, grace_s=0.1)
        job = threading.Thread(target=launch, args=(spec,), kwargs={"stderr": err}, daemon=True)
        job.start()
        seen = [lines.readline() for _ in range(5)]
        assert seen[-1].rstrip().endswith(b"going on") or b"ZeroDivisionError" in seen[-1]
        ranks = [p for p in children_of(os.getpid()) if path in cmdline(p)]
        os.kill(ranks[0], signal.SIGKILL)
        job.join(20)
        assert not job.is_alive()


def test_loss_of_one_rank_is_named_by_the_others_and_by_the_launcher(script):
    path = script("""
        import numpy
        import kfcore
        session = kfcore.init(timeout_s=30)
        for step in range(10**9):
            if rank == 2 and step == 50:
                os.kill(os.getpid(), signal.SIGKILL)
            session.all_reduce(numpy.ones(1000))
        """)
    start = time.monotonic()
    result, _, err = run(path, 4, env={"PYTHONPATH": str(ROOT)})
    assert time.monotonic() - start < 25
    lines = err.decode().splitlines()
    assert result.exit_code == 128 + signal.SIGKILL
    assert lines[-1] == "kf: rank 2 was killed by SIGKILL"
    for rank in (0, 1, 3):
        [blame] = [line for line in lines if line.startswith(f"[{rank}] kfcore.errors.")]
        assert "PeerLostError" in blame
        assert "rank 2" in blame
    assert all(worker.exit_code == 1 for worker in result.workers if worker.rank != 2)


def test_worker_that_ignores_sigterm_is_killed_after_the_grace_time(script):
    path = script("""
        if rank == 0:
            time.sleep(0.5)
            sys.exit(3)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)
        """)
    start = time.monotonic()
    result, _, _ = run(path, 2, grace_s=0.5)
    assert time.monotonic() - start < 20
    assert result.exit_code == 3
    assert result.workers[1].signal == "SIGKILL"


def test_children_left_behind_by_a_worker_are_ended_and_do_not_block(script, tmp_path):
    path = script(f"""
        child = subprocess.Popen(["sleep", "60"])
        open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
        """)
    start = time.monotonic()
    result, _, _ = run(path, 1)
    assert result.exit_code == 0
    assert time.monotonic() - start < 20
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not alive(pid))


def children_of(pid):
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def cmdline(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def start_sleepers(script, tmp_path, n=3):
    """A job of n workers, each with a child of its own; returns the launcher and all pids."""
    path = script(f"""
        child = subprocess.Popen(["sleep", "60"])
        name = {str(tmp_path)!r} + f"/pids.{{rank}}"
        open(name + ".part", "w").write(f"{{os.getpid()}} {{child.pid}}")
        os.rename(name + ".part", name)
        time.sleep(600)
        """)
    launcher = kf("run", "-n", n, path, stderr=subprocess.PIPE)
    files = [tmp_path / f"pids.{rank}" for rank in range(n)]
    wait_until(lambda: all(file.exists() for file in files))
    return launcher, [int(pid) for file in files for pid in file.read_text().split()]


def test_no_orphans_when_the_launcher_is_killed_outright(script, tmp_path):
    launcher, pids = start_sleepers(script, tmp_path)
    helpers = children_of(launcher.pid)
    assert all(map(alive, pids))
    launcher.kill()
    launcher.wait()
    launcher.stderr.close()
    wait_until(lambda: not any(map(alive, pids + helpers)))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_to_the_launcher_ends_every_process(script, tmp_path, number):
    launcher, pids = start_sleepers(script, tmp_path)
    launcher.send_signal(number)
    _, err = launcher.communicate(timeout=30)
    assert launcher.returncode == 128 + number
    assert f"kf: stopped by {number.name}".encode() in err
    wait_until(lambda: not any(map(alive, pids)))


def test_signal_is_passed_on_so_workers_can_save(script, tmp_path):
    path = script(f"""
        def save(number, frame):
            open({str(tmp_path)!r} + f"/saved.{{rank}}", "w").write(str(number))
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        open({str(tmp_path)!r} + f"/ready.{{rank}}", "w")
        time.sleep(600)
        """)
    launcher = kf("run", "-n", 2, path, stderr=subprocess.DEVNULL)
    wait_until(lambda: all((tmp_path / f"ready.{rank}").exists() for rank in range(2)))
    launcher.terminate()
    assert launcher.wait(30) == 128 + signal.SIGTERM
    assert [(tmp_path / f"saved.{rank}").read_text() for rank in range(2)] == ["15", "15"]


def test_six_jobs_in_the_same_second_do_not_disturb_each_other(script):
    path = script("""
        from kfcore.config import Config
        from kfcore.store import connect_store
        config = Config.from_env()
        store = connect_store(config)
        store.set(str(rank), config.job_id)
        print(store.get(str(1 - rank), 20) == config.job_id)
        """)
    jobs = [kf("run", "-n", 2, path, stdout=subprocess.PIPE) for _ in range(6)]
    for job in jobs:
        out, _ = job.communicate(timeout=60)
        assert job.returncode == 0
        assert sorted(out.splitlines()) == [b"[0] True", b"[1] True"]


def test_reader_that_goes_away_ends_the_job(script):
    path = script("""
        while True:
            print("line")
            time.sleep(0.01)
        """)
    job = kf("run", "-n", 2, path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    job.stdout.readline()
    job.stdout.close()
    assert job.wait(30) == 128 + signal.SIGPIPE


def test_json_summary_is_alone_on_stdout(script):
    path = script('print("noise")\nsys.exit(rank)')
    job = kf("run", "-n", 2, "--json", path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = job.communicate(timeout=60)
    summary = json.loads(out)
    assert summary["exit_code"] == job.returncode == 1
    assert summary["first_failure"]["verdict"] == "rank 1 exited 1"
    assert [worker["rank"] for worker in summary["workers"]] == [0, 1]
    assert b"[1] noise" in err


def test_no_descriptors_or_processes_are_left_behind(script):
    path = script("pass")
    run(path, 2)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        run(path, 3)
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before)
    assert children_of(os.getpid()) == []


def test_program_options_after_the_program_are_its_own(script):
    path = script("print(sys.argv[1:])")
    job = kf("run", "-n", "1", "--", path, "-n", "3", "--json", stdout=subprocess.PIPE)
    out, _ = job.communicate(timeout=60)
    assert out == b"[0] ['-n', '3', '--json']\n"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("gone.py",), "no such file: 'gone.py'"),
        (("python", "gone.py"), "no such file: 'gone.py'"),
        (("no-such-program",), "no such program: 'no-such-program'"),
    ],
)
def test_missing_program_is_one_error_and_nothing_starts(command, message):
    with pytest.raises(UsageError, match=message):
        run(command, 3)


def test_unwritable_log_folder_is_an_error_that_leaves_nothing_running(script, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write logs"):
        run(script("time.sleep(600)"), 2, log_dir=tmp_path / "file" / "logs")
    assert children_of(os.getpid()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, r"number of workers must be in \[1, 8192\], got 0"),
        ({"n": 10**12}, r"number of workers must be in \[1, 8192\]"),
        ({"n": 1, "timeout_s": 0.0}, "timeout_s must be finite and > 0"),
        ({"n": 1, "grace_s": -1.0}, "grace_s must be finite and >= 0"),
    ],
)
def test_impossible_specs_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        run("x.py", options.pop("n"), **options)


def test_torchrun_starts_the_same_program(script):
    path = script("pass")
    Path(path).write_text(
        textwrap.dedent("""
        import os
        import time
        from kfcore.config import Config
        from kfcore.store import connect_store
        config = Config.from_env()
        peers = range(config.world_size)
        with connect_store(config) as store:
            store.set(f"here/{config.rank}", "x")
            met = [store.get(f"here/{peer}", 20) for peer in peers]
            os.write(1, f"met {met}\\n".encode())  # torchrun's workers share one pipe
            if config.rank == 1:  # rank 0, which hosts the store, waits for it
                time.sleep(0.3)
                store.set("late", "x")
        """)
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    result = subprocess.run(
        [*torchrun, "--nproc-per-node", "2", path],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["met ['x', 'x']"] * 2
