"""Notices to leave, on real processes: one boundary, one checkpoint, a stated exit code."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes
ROOT = Path(__file__).resolve().parents[2]
STEPS = 40

WORKER = """
import json, os, sys, time
import numpy as np
import kfcore as kf
from kfcore.elastic import *

folder, notice_at = CheckpointFolder(sys.argv[1]), int(sys.argv[2])
weights, values = np.zeros(3), np.random.default_rng(0).normal(size=(97, 3))
preemption = Preemption()
with (
    preemption.listening(),
    kf.init() as session,
    kf.Job(session, local_batch=4, learning_rate=0.1, policies=[preemption]) as job,
):
    sampler = ElasticSampler(len(values), global_batch=12)
    state = ElasticState(job=job, weights=weights, sampler=sampler)
    folder.load(state)
    while job.steps < 40 and not job.stopped:
        for indices in job.batches(sampler):
            if notice_at and job.steps == notice_at and job.rank == 1:
                preemption.notice()
            grad = (weights - values[indices]).mean(axis=0)
            job.step([grad])
            with state.changing():
                weights -= job.learning_rate * grad
            state.commit(job.steps)
            if notice_at < 0 and job.rank == 0 and job.steps == 5:
                print("ready", flush=True)
            if notice_at < 0:
                time.sleep(0.01)
            if job.steps == 40:
                break
    if job.rank == 0:
        folder.save(state, {"world_size": job.world_size})
        print(json.dumps({"steps": job.steps, "weights": weights.tolist()}), flush=True)
    left = preemption.asked
sys.exit(EXIT_PREEMPTED if left else 0)
"""


@pytest.fixture
def start(tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    running = []

    def begin(workers, folder, notice_at=0, *options):
        command = [
            *(sys.executable, "-m", "kfcore", "run", "-n", workers, "--no-prefix", *options),
            *(script, tmp_path / folder, notice_at),
        ]
        process = subprocess.Popen(
            list(map(str, command)),
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def ended(process):
    out, err = process.communicate(timeout=60)
    lines = [line for line in out.splitlines() if line.startswith("{")]
    return process.returncode, json.loads(lines[-1]) if lines else None, err


def test_a_notice_to_one_worker_stops_all_and_training_resumes_at_another_size(start):
    code, uninterrupted, err = ended(start(3, "whole"))
    assert (code, uninterrupted["steps"]) == (0, STEPS), err
    code, stopped, err = ended(start(3, "parts", 12))
    # The notice rides with step 13, the stop with step 14.
    assert (code, stopped["steps"]) == (75, 14), err
    assert "kf: stopped by a notice to leave" in err
    code, resumed, err = ended(start(2, "parts"))
    assert (code, resumed["steps"]) == (0, STEPS), err
    assert resumed["weights"] == pytest.approx(uninterrupted["weights"], rel=1e-9)


def test_sigterm_to_the_launcher_gives_workers_time_to_save(start, tmp_path):
    process = start(2, "term", -1, "--grace-s", 20)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    begun = time.monotonic()
    code, stopped, err = ended(process)
    assert code == 75, err
    assert time.monotonic() - begun < 15
    assert stopped["steps"] < STEPS
    saved = [path.name for path in (tmp_path / "term").iterdir()]
    assert saved == [f"step-{stopped['steps']:09d}.kfckpt"]


def test_a_worker_that_ignores_the_grace_is_killed_and_the_code_says_so(start, tmp_path):
    (tmp_path / "worker.py").write_text(
        "import signal, time, os, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(75) if rank else None)\n"
        "rank = int(os.environ['KF_RANK'])\n"
        "print('ready', flush=True)\n"
        "for _ in range(600): time.sleep(0.1)\n"
    )
    process = start(2, "none", 0, "--grace-s", 0.5)
    assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 128 + signal.SIGTERM
