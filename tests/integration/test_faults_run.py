"""Fault plans on real processes."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes
ROOT = Path(__file__).resolve().parents[2]

TRAIN = """
    import numpy, kfcore
    with kfcore.init() as session:
        with kfcore.Job(session, local_batch=1, learning_rate=0.1) as job:
            for _ in range(12):
                grads = [numpy.ones(8)]
                job.step(grads)
            print("steps", job.steps, flush=True)
"""


def run(tmp_path, plan):
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAIN))
    (tmp_path / "plan.toml").write_text(plan)
    command = [sys.executable, "-m", "kfcore", "run", "-n", "2", "--log-dir", tmp_path / "logs"]
    done = subprocess.run(
        [
            *map(str, command),
            "--faults",
            str(tmp_path / "plan.toml"),
            str(tmp_path / "train.py"),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    log = tmp_path / "logs" / "events.jsonl"
    events = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return done, [(e["step"], e["what"], e["new"]) for e in events if e["kind"] == "fault"]


def test_slow_and_stopped_workers_finish(tmp_path):
    done, faults = run(
        tmp_path,
        '[[fault]]\nkind = "slow"\nrank = 1\nstep = 3\nsteps = 4\nseconds = 0.01\n'
        '[[fault]]\nkind = "stop"\nrank = 0\nstep = 5\nseconds = 0.1\n',
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] steps 12", "[1] steps 12"]
    assert faults == [(3, "slow", "rank 1"), (5, "stop", "rank 0")]


def test_a_killed_worker_ends_a_job_that_is_not_elastic(tmp_path):
    done, faults = run(tmp_path, '[[fault]]\nkind = "kill"\nrank = 1\nstep = 6\n')
    assert done.returncode == 128 + signal.SIGKILL
    assert done.stderr.endswith("kf: rank 1 was killed by SIGKILL\n")
    assert faults in ([(6, "kill", "rank 1")], [])  # rank 0 may still have been in step 5


def test_a_wrong_plan_is_refused_before_anything_starts(tmp_path):
    done, _ = run(tmp_path, '[[fault]]\nkind = "kil"\nrank = 1\nstep = 6\n')
    assert (done.returncode, done.stdout) == (2, "")
    assert "kind must be one of kill, stop, slow, leave, join, cut, got 'kil'" in done.stderr
