"""Fault plans: files in, plans out, and what a worker does about them."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from kfcore.errors import UsageError
from kfcore.faults import Fault, FaultPlan, read_faults
from kfcore.injection import Injector

ROOT = Path(__file__).resolve().parents[2]


def test_plans_read_back_what_they_write(tmp_path):
    plan = FaultPlan(
        (
            Fault("join", 9, workers=2),
            Fault("kill", 3, rank=0),
            Fault("slow", 3, rank=1, seconds=0.25, steps=4),
            Fault("stop", 5, rank=2, seconds=1.5),
            Fault("leave", 6, rank=1),
            Fault("cut", 7, rank=0, peer=2),
        )
    )
    (tmp_path / "plan.toml").write_text(plan.to_toml())
    assert read_faults(tmp_path / "plan.toml") == plan
    assert [fault.step for fault in plan.faults] == [3, 3, 5, 6, 7, 9]
    assert [fault.kind for fault in plan.at(3)] == ["kill", "slow"]
    assert [plan.delay_s(step, 1) for step in (2, 3, 6, 7)] == [0, 0.25, 0.25, 0]


@pytest.mark.parametrize("path", sorted((ROOT / "examples/faults").glob("*.toml")), ids=str)
def test_shipped_plans_are_plans(path):
    assert read_faults(path).faults


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[[fault]]\nkind = "kil"\nstep = 1', r"fault\[0\]: kind must be one of kill, stop"),
        ('[[fault]]\nkind = "kill"\nstep = 1', r"fault\[0\]: kill needs rank"),
        ('[[fault]]\nkind = "kill"\nrank = 1', r"fault\[0\]: key 'step' is required"),
        ('[[fault]]\nkind = "kill"\nstep = 0\nrank = 1', r"step must be in \[1, .*got 0"),
        ('[[fault]]\nkind = "kill"\nstep = 1\nrank = 1\nsteps = 3', "kill has no steps"),
        ('[[fault]]\nkind = "kill"\nstep = 1.5\nrank = 1', "step must be an integer, got 1.5"),
        (
            '[[fault]]\nkind = "kill"\nstep = true\nrank = 1',
            "step must be an integer, got True",
        ),
        ('[[fault]]\nkind = "kill"\nstep = 1\nrnak = 1', "unknown key 'rnak'; there are: kind"),
        ('[[fault]]\nkind = "cut"\nstep = 1\nrank = 1\npeer = 1', "rank and peer are both 1"),
        ('[[fault]]\nkind = "slow"\nstep = 1\nrank = 1\nseconds = nan', "seconds must be in"),
        ("fault = 3", "must be a list of tables"),
        ("[other]", "unknown key 'other'"),
        ("x = = 1", "not TOML"),
    ],
)
def test_wrong_plans_are_refused_with_file_table_and_rule(tmp_path, text, reason):
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=rf"plan\.toml: .*{reason}"):
        read_faults(path)


def test_missing_plan_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        read_faults(tmp_path / "none.toml")


class Member(SimpleNamespace):
    """What a job's member looks like to faults; notes what it is asked."""

    def leave(self):
        self.asked.append("leave")

    def resize(self, size, reason):
        self.asked.append(("resize", size))


def member(rank, size=3, members=()):
    return Member(rank=rank, world_size=size, asked=[], view=SimpleNamespace(members=members))


def test_requests_are_made_once_by_the_rank_they_are_for():
    plan = FaultPlan((Fault("leave", 2, rank=1), Fault("join", 3, workers=2)))
    seen = []
    workers = [member(rank) for rank in range(3)]
    for worker in workers:
        injector = Injector(plan)
        for step in (1, 2, 2, 3, 3):  # steps 2 and 3 are repeated
            injector.enter(step, worker, 7, seen.append if worker.rank == 0 else None)
    assert [worker.asked for worker in workers] == [[("resize", 5)], ["leave"], []]
    assert [(e["kind"], e["what"], e["new"], e["step"]) for e in seen] == [
        ("fault", "leave", "rank 1", 2),
        ("fault", "join", "2 more", 3),
    ]


def test_a_killed_rank_dies_by_sigkill_and_others_do_not():
    code = textwrap.dedent("""
        import sys
        from types import SimpleNamespace
        from kfcore.faults import Fault, FaultPlan
        from kfcore.injection import Injector
        rank = int(sys.argv[1])
        injector = Injector(FaultPlan((Fault("kill", 2, rank=1),)))
        for step in (1, 2):
            injector.enter(step, SimpleNamespace(rank=rank, world_size=2), 1)
        print("lived")
        """)
    for rank, returncode, out in ((0, 0, "lived\n"), (1, -signal.SIGKILL, "")):
        done = subprocess.run(
            [sys.executable, "-c", code, str(rank)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout) == (returncode, out)


def test_a_stopped_rank_goes_on_after_its_time():
    code = textwrap.dedent("""
        from types import SimpleNamespace
        from kfcore.faults import Fault, FaultPlan
        from kfcore.injection import Injector
        plan = FaultPlan((Fault("stop", 1, rank=0, seconds=0.2),))
        Injector(plan).enter(1, SimpleNamespace(rank=0, world_size=1), 1)
        print("went on")
        """)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE)
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    assert process.communicate(timeout=60)[0] == b"went on\n"


def test_a_cut_link_is_shut_at_both_ends_and_no_other():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
        ours, theirs = socket.socketpair()
        plan = FaultPlan((Fault("cut", 1, rank=0, peer=1),))
        Injector(plan).enter(1, member(0, 2, ("127.0.0.1:1", address)), 1)
        far.settimeout(60)
        assert far.recv(1) == b""
        ours.send(b"x")
        assert theirs.recv(1) == b"x"
        for sock in (near, far, ours, theirs):
            sock.close()


def test_a_slow_rank_sleeps_in_each_of_its_steps(monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    injector = Injector(FaultPlan((Fault("slow", 2, rank=0, seconds=0.5, steps=2),)))
    for step in range(1, 6):
        injector.enter(step, member(0), 1)
    assert slept == [0.5, 0.5]
