"""The launcher of elastic jobs with real processes: deaths, joins, hosts that come and go."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes
ROOT = Path(__file__).resolve().parents[2]

# Trains until `sizes` world sizes were seen one after the other and ten steps more were made,
# which all workers see at the same step.
TRAIN = """
    import json, os, sys, time
    import numpy as np
    import kfcore as kf
    from kfcore.elastic import ElasticState

    sizes = [int(size) for size in sys.argv[1].split(",")]
    weights, seen = np.zeros(8), np.zeros(2)  # sizes seen, steps since the last of them
    with kf.join() as member:
        state = ElasticState(weights=weights, seen=seen)
        with kf.ElasticJob(member, state, local_batch=2, learning_rate=0.1) as job:
            while not job.stopped and seen[1] < 10:
                for indices in job.batches(1000):
                    time.sleep(0.01)
                    grads = [np.full(8, indices.mean())]
                    job.step(grads)
                    weights -= grads[0]
                    if seen[0] < len(sizes) and job.world_size == sizes[int(seen[0])]:
                        seen[0] += 1
                    elif seen[0] == len(sizes):
                        seen[1] += 1
                    if seen[1] >= 10:
                        break
            print(json.dumps([job.world_size, os.getpid(), weights.sum()]), flush=True)
"""


@pytest.fixture
def train(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(TRAIN))
    return str(path)


def kf(*args, **options):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "kfcore", *map(str, args)]
    return subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def finish(process):
    out, err = process.communicate(timeout=110)
    ends = [json.loads(line.partition("] ")[2]) for line in out.splitlines()]
    return process.returncode, ends, err


def test_a_dead_worker_is_replaced_and_the_others_keep_running(train, tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text('[[fault]]\nkind = "kill"\nstep = 5\nrank = 1\n')
    code, ends, err = finish(
        kf(
            "run",
            "-n",
            3,
            "--elastic",
            "2:3",
            "--cooldown-s",
            0.1,
            "--faults",
            plan,
            train,
            "3,2,3",
        )
    )
    assert code == 0, err
    assert [size for size, _, _ in ends] == [3, 3, 3]
    assert len({weight for _, _, weight in ends}) == 1
    assert "kf: rank 1 was killed by SIGKILL; 2 left, at least 2 needed" in err
    assert "kf: starts worker 3 on localhost" in err
    assert re.search(r"view 2: 2 workers \(\S+-0-\S+ \S+-2-\S+\), \d\.\d+ s after rank 1", err)
    assert re.search(r"view 3: 3 workers \(\S+-0-\S+ \S+-2-\S+ \S+-3-\S+\)", err)


def test_a_worker_joins_a_running_job_by_its_address(train):
    job = kf("run", "-n", 2, "--elastic", "2:3", train, "2,3")
    first = job.stderr.readline()
    address = re.search(r"join with: kf join (\S+)", first)[1]
    assert any("view 1" in line for line in iter(job.stderr.readline, ""))
    joiner = kf("join", address)
    code, ends, err = finish(joiner)
    assert code == 0, err
    assert [size for size, _, _ in ends] == [3]
    code, others, err = finish(job)
    assert code == 0, err
    assert {weight for _, _, weight in [*ends, *others]} == {ends[0][2]}
    refused = kf("join", address)
    assert "kf: error: the secret of the job at" in finish(refused)[2]


def test_too_few_workers_end_the_job_with_the_first_failure(train, tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text('[[fault]]\nkind = "kill"\nstep = 5\nrank = 1\n')
    code, ends, err = finish(
        kf(
            "run",
            "-n",
            2,
            "--elastic",
            "2:2",
            "--cooldown-s",
            1000,
            "--faults",
            plan,
            train,
            "9",
        )
    )
    assert (code, ends) == (128 + signal.SIGKILL, [])
    assert "NoQuorumError" in err
    assert err.splitlines()[-1] == "kf: rank 1 was killed by SIGKILL"


def test_a_program_that_cannot_start_is_not_started_again(tmp_path):
    (tmp_path / "broken.py").write_text("raise SystemExit(3)\n")
    code, _, err = finish(kf("run", "-n", 2, "--elastic", "1:2", tmp_path / "broken.py"))
    assert code == 3
    assert "starts worker" not in err


def test_hosts_come_and_go_as_a_script_says(train, tmp_path):
    ssh, script, listed = (tmp_path / name for name in ("ssh", "hosts.sh", "list"))
    ssh.write_text('#!/bin/sh\nexec sh -c "$2"\n')
    script.write_text(f"#!/bin/sh\ncat {listed}\n")
    for path in (ssh, script):
        path.chmod(0o755)
    listed.write_text("far-a:2\n")
    options = ("--host-discovery-script", script, "--ssh", ssh, "--interface", "lo")
    job = kf("run", "--elastic", "1:3", *options, train, "2,3,2")
    lines = iter(job.stderr.readline, "")
    assert any("view 1: 2 workers" in line for line in lines)
    replace(listed, "far-a:2\nfar-b\n")
    assert any("starts worker 2 on far-b" in line for line in lines)
    assert any("3 workers" in line for line in lines)
    replace(listed, "far-a:2\n")
    assert any("far-b is no longer listed: worker 2 leaves" in line for line in lines)
    code, ends, err = finish(job)
    assert code == 0, err
    assert [size for size, _, _ in ends] == [2, 2]


def replace(path, text):
    draft = path.with_suffix(".draft")
    draft.write_text(text)
    draft.replace(path)


def test_nothing_outlives_a_killed_launcher(train):
    job = kf("run", "-n", 2, "--elastic", "1:2", train, "9")
    assert any("view 1" in line for line in iter(job.stderr.readline, ""))
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    assert len(children) == 3  # two workers and the reaper
    job.kill()
    job.communicate(timeout=60)
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in children):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_round_of_the_soak_test():
    command = [sys.executable, str(ROOT / "tools" / "soak.py"), "--seconds", "0", "--seed", "1"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout
