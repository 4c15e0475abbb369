"""kf run --record: what the policies of a real job saw can be fed to another policy."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kfcore.config import Config
from kfcore.errors import UsageError
from kfcore.policy.load import load_policy
from kfcore.policy.replay import replay

ROOT = Path(__file__).resolve().parents[2]
TRAIN = """
import numpy as np
import kfcore as kf

with kf.Job(local_batch=4, learning_rate=0.1) as job:
    for _ in job.batches(40):
        job.step([np.ones(3)])
"""


def kf_run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "kfcore", "run", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.processes
def test_a_recorded_run_is_replayed_with_another_policy(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    assert "--record needs --log-dir" in kf_run("--record", tmp_path / "train.py").stderr
    done = kf_run("--record", "--log-dir", tmp_path / "logs", tmp_path / "train.py")
    assert done.returncode == 0, done.stderr
    found = replay(load_policy("ScheduledBatch('3:8')"), tmp_path / "logs" / "events.jsonl")
    assert [(each.step, each.action.local_batch) for each in found] == [(3, 8)]


def test_the_setting_survives_the_environment_and_a_wrong_one_is_refused():
    assert Config.from_env(Config(record=True).to_env()).record
    assert not Config.from_env({}).record
    assert not Config.from_env({"KF_RECORD": "0"}).record
    with pytest.raises(UsageError, match="KF_RECORD must be 0 or 1, got 'yes'"):
        Config.from_env({"KF_RECORD": "yes"})
