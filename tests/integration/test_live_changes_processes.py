"""Live changes between real processes: every kind in one run, the same on both."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import json, sys
import numpy as np
import kfcore as kf

class Plan(kf.Policy):
    def after_step(self, seen):
        return {
            2: [kf.SetSchedule("binary_tree"), kf.SetBucketBytes(4096), kf.SetLocalBatch(8)],
            5: kf.SetCompression("int8"),
            8: [kf.SetCompression("none"), kf.SetSyncMode("local_sgd(2)")],
            12: [kf.SetSyncMode("pair_averaging"), kf.Checkpoint()],
            15: kf.SetSyncMode("allreduce"),
        }.get(seen.step)

weights = np.zeros(3000, np.float32)
saved, history = [], []
with kf.init() as session, kf.Job(
    session, local_batch=4, learning_rate=0.5, policies=[Plan()], parameters=[weights],
    on_checkpoint=lambda job: saved.append(job.steps),
) as job:
    for step in range(20):
        grad = np.full(3000, float(session.rank), np.float32)
        job.step([grad])
        weights -= job.learning_rate * grad
        job.settle()
        history.append([job.local_batch, session.schedule, job.controller.compression,
                        job.controller.sync_mode])
    with open(f"{sys.argv[1]}/rank{session.rank}.json", "w") as file:
        json.dump([history, saved, weights.tobytes().hex()], file)
"""


@pytest.mark.processes
def test_two_processes_make_every_kind_of_change_at_the_same_step(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "kfcore", "run", "-n", "2", program, tmp_path],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    one, two = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    assert one == two  # settings at each step, the checkpoint, and the weights bit by bit
    history, saved, _ = one
    assert saved == [13]
    assert history[1] == [4, history[0][1], "none", "allreduce"]
    assert history[2] == [8, "binary_tree", "none", "allreduce"]
    assert history[5] == [8, "binary_tree", "int8", "allreduce"]
    assert history[8] == [8, "binary_tree", "none", "local_sgd(2)"]
    assert history[12] == [8, "binary_tree", "none", "pair_averaging"]
    assert history[19] == [8, "binary_tree", "none", "allreduce"]
