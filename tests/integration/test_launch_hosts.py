"""Jobs on several hosts: a stand-in for ssh here, and hosts made of network namespaces."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import hosts  # noqa: E402

pytestmark = pytest.mark.processes
namespaces = pytest.mark.skipif(hosts.why_not() is not None, reason=str(hosts.why_not()))

SUM = """
    import os, numpy, kfcore
    with kfcore.init() as session:
        total = session.all_reduce(numpy.ones(3) * (session.rank + 1))
        print(session.rank, os.environ["KF_LOCAL_RANK"], os.environ["KF_LOCAL_WORLD_SIZE"],
              total[0], os.environ.get("COLOUR"), session.view.members[0], flush=True)
"""


@pytest.fixture
def script(tmp_path):
    def write(body, name="worker.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(body))
        return str(path)

    return write


@pytest.fixture
def fake_ssh(tmp_path):
    """Runs the command here, and notes for which host."""
    path = tmp_path / "fake-ssh"
    path.write_text(f'#!/bin/sh\necho "$1" >> {tmp_path}/called\nexec sh -c "$2"\n')
    path.chmod(0o755)
    return path


def kf(*args, prefix=(), **options):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [*prefix, sys.executable, "-m", "kfcore", "run", *map(str, args)]
    return subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=100, check=False, **options
    )


def lines(text):
    return sorted(text.splitlines())


def test_workers_elsewhere_are_started_over_ssh_and_meet(script, fake_ssh, tmp_path):
    done = kf(
        "-H",
        "far-a:2,localhost:1,far-b:1",
        *("--ssh", fake_ssh, "--interface", "lo", "-x", "COLOUR=red"),
        script(SUM),
    )
    assert (done.returncode, done.stderr) == (0, "")
    places = [("0", "2"), ("1", "2"), ("0", "1"), ("0", "1")]
    assert [line.rpartition(" ")[0] for line in lines(done.stdout)] == [
        f"[{rank}] {rank} {local} {size} 10.0 red" for rank, (local, size) in enumerate(places)
    ]
    assert lines((tmp_path / "called").read_text()) == ["far-a", "far-a", "far-b"]


def test_failure_elsewhere_is_named_with_its_host(script, fake_ssh):
    path = script("""
        import os, signal, time
        if os.environ["KF_RANK"] == "1":
            os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(600)
        """)
    done = kf("-H", "a,b", "--ssh", fake_ssh, "--interface", "lo", path)
    assert done.returncode == 128 + signal.SIGSEGV
    assert done.stderr.endswith("kf: rank 1 on b was killed by SIGSEGV\n")


def test_exit_codes_signals_and_summary_come_back(script, fake_ssh, tmp_path):
    path = script(f"""
        import os, sys, signal, time
        ready = "{tmp_path}/ready"
        if os.environ["KF_RANK"] == "0":
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
            open(ready, "w").close()
            time.sleep(600)
        while not os.path.exists(ready):
            time.sleep(0.02)
        sys.exit(7)
        """)
    done = kf(*("-H", "a,b", "--ssh", fake_ssh, "--interface", "lo", "--json"), path)
    assert done.returncode == 7
    summary = json.loads(done.stdout)
    assert [(w["exit_code"], w["host"]) for w in summary["workers"]] == [(0, "a"), (7, "b")]


def test_host_that_cannot_be_reached_ends_the_job(script, tmp_path):
    ssh = tmp_path / "no-ssh"
    ssh.write_text("#!/bin/sh\necho no route to host $1 >&2\nexit 255\n")
    ssh.chmod(0o755)
    done = kf("-H", "a", "--ssh", ssh, "--interface", "lo", script("pass"))
    assert done.returncode == 255
    assert "no route to host a" in done.stderr
    assert done.stderr.endswith("kf: rank 0 on a exited 255\n")


def test_nothing_is_left_elsewhere_when_the_launcher_is_killed(script, fake_ssh, tmp_path):
    path = script(f"""
        import os, subprocess, time
        child = subprocess.Popen(["sleep", "600"])
        name = "{tmp_path}/pids." + os.environ["KF_RANK"]
        with open(name + ".draft", "w") as file:
            file.write(f"{{os.getpid()}} {{child.pid}}")
        os.rename(name + ".draft", name)
        time.sleep(600)
        """)
    command = [sys.executable, "-m", "kfcore", "run", "-H", "a,b", "--ssh", str(fake_ssh)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    launcher = subprocess.Popen([*command, "--interface", "lo", path], env=env)
    files = [tmp_path / f"pids.{rank}" for rank in range(2)]
    wait_until(lambda: all(file.exists() for file in files))
    pids = [int(pid) for file in files for pid in file.read_text().split()]
    launcher.kill()
    launcher.wait()
    wait_until(lambda: not any(alive(pid) for pid in pids))


def test_hosts_are_refused_before_anything_starts(script, tmp_path):
    path = script("print('started')")
    (tmp_path / "hosts").write_text("a slots=2\nb lots=8\n")
    for args, reason in (
        (("--hostfile", tmp_path / "hosts"), "hosts:2: b lots=8: unknown key lots"),
        (("-H", "a:2", "-n", "3"), "3 workers do not fit 2 slots"),
        (("-H", "a:2", "--hostfile", tmp_path / "hosts"), "not both"),
        (("-H", "far-a", "--interface", "nope"), "present: lo 127.0.0.1"),
    ):
        done = kf(*args, path)
        assert (done.returncode, done.stdout) == (2, "")
        assert reason in done.stderr


def wait_until(condition, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "condition not met in time"
        time.sleep(0.02)


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def namespace_ssh(made, tmp_path):
    """An ssh that reaches the namespaces by their addresses."""
    path = tmp_path / "namespace-ssh"
    cases = "\n".join(
        f"{made.address(host)}|worker{host}) name={made.name(host)};;"
        for host in range(made.count)
    )
    path.write_text(
        f'#!/bin/sh\ncase "$1" in\n{cases}\nesac\nexec {hosts.IP} netns exec $name sh -c "$2"\n'
    )
    path.chmod(0o755)
    return path


def in_host(made, host):
    return (hosts.IP, "netns", "exec", made.name(host))


@pytest.mark.namespaces
@namespaces
def test_hosts_whose_names_mean_loopback_meet_without_settings(script, tmp_path):
    with hosts.Hosts(2, hosts_file="127.0.0.1 localhost\n127.0.1.1 worker{host}\n") as made:
        done = kf(
            "-H",
            f"{made.address(0)}:1,{made.address(1)}:2",
            *("--ssh", namespace_ssh(made, tmp_path)),
            script(SUM),
            prefix=in_host(made, 0),
        )
        assert (done.returncode, done.stderr) == (0, "")
        seen = [line.split() for line in lines(done.stdout)]
        assert [line[4] for line in seen] == ["6.0"] * 3
        assert all(line[6].startswith(f"{made.address(0)}:") for line in seen)


@pytest.mark.namespaces
@namespaces
def test_host_with_only_loopback_says_so_and_what_to_set(script, tmp_path):
    with hosts.Hosts(1) as made:
        hosts.run_ip("-n", made.name(0), "link", "set", "eth0", "down")
        done = kf("-H", "10.99.0.1,10.99.0.2", script(SUM), prefix=in_host(made, 0))
        assert done.returncode == 2
        assert "leads to 10.99.0.1" in done.stderr
        assert "set --interface" in done.stderr


@pytest.mark.namespaces
@namespaces
@pytest.mark.parametrize("choice", ["^lo,docker"])
def test_the_chosen_interface_carries_the_job(script, tmp_path, choice):
    with hosts.Hosts(2) as made:
        done = kf(
            "-H",
            f"{made.address(0)},{made.address(1)}",
            *("--ssh", namespace_ssh(made, tmp_path), "--interface", choice),
            script(SUM),
            prefix=in_host(made, 0),
        )
        assert done.returncode == 0, done.stderr
        members = {line.split()[6].partition(":")[0] for line in lines(done.stdout)}
        assert members == {made.address(0)}


def torchrun_like(rank, master):
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": master,
        "MASTER_PORT": "29500",
    }


MEET = """
    import numpy, kfcore
    print("looking", flush=True)
    with kfcore.init() as session:
        print(session.all_reduce(numpy.ones(1))[0], *session.view.members, flush=True)
"""


def start_worker(made, host, path, tmp_path, master):
    with (tmp_path / f"out{host}").open("w") as out:
        env = torchrun_like(host, master)
        return made.start(host, [sys.executable, path], env=env, stdout=out)


@pytest.mark.namespaces
@namespaces
def test_launchers_like_torchruns_survive_a_name_that_means_loopback(script, tmp_path):
    """MASTER_ADDR is a host's own name: 127.0.1.1 there and the true address elsewhere."""
    path = script(MEET)
    with hosts.Hosts(2) as made:
        for host, address in enumerate(("127.0.1.1", made.address(0))):
            folder = Path(f"/etc/netns/{made.name(host)}")
            folder.mkdir(parents=True)
            (folder / "hosts").write_text(f"127.0.0.1 localhost\n{address} worker0\n")
        running = [start_worker(made, host, path, tmp_path, "worker0") for host in range(2)]
        assert [process.wait(timeout=90) for process in running] == [0, 0]
        for host in range(2):
            _, total, first, second = (tmp_path / f"out{host}").read_text().split()
            assert total == "2.0"
            assert first.startswith(f"{made.address(0)}:")
            assert second.startswith(f"{made.address(1)}:")


@pytest.mark.namespaces
@namespaces
def test_a_worker_waits_for_a_name_that_resolves_late(script, tmp_path):
    path = script(MEET)
    with hosts.Hosts(2, hosts_file="127.0.0.1 localhost\n") as made:
        early = start_worker(made, 1, path, tmp_path, "late-master")
        wait_until(lambda: "looking" in (tmp_path / "out1").read_text())
        time.sleep(1)  # it looks in vain for a while
        for host in range(2):  # written in place: the file is mounted in the host
            with Path(f"/etc/netns/{made.name(host)}/hosts").open("a") as file:
                file.write(f"{made.address(0)} late-master\n")
        late = start_worker(made, 0, path, tmp_path, "late-master")
        assert [early.wait(timeout=90), late.wait(timeout=90)] == [0, 0]
        assert (tmp_path / "out1").read_text().split()[1] == "2.0"


def test_a_name_that_never_resolves_is_an_error_with_host_and_port(script):
    done = subprocess.run(
        [sys.executable, script("import kfcore\nkfcore.init(timeout_s=0.5)")],
        env=torchrun_like(1, "never.invalid"),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 1
    assert "no store at never.invalid:29501 within 0.5 s" in done.stderr
