"""Same seed, same bytes; one thing added moves nothing else."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from kfsim.draws import RankNormals, stream

SCENARIO = """
policies = ["InterferenceSchedule", "NoiseScaleBatch"]
[run]
steps = 12
seed = {seed}
[cluster]
hosts = 6
nic_gbps = 7.0
[workload]
model = "mobilenet_v2"
samples_per_s = 100.0
local_batch = 16
jitter_sigma = 0.05
samples_per_epoch = 400
[system]
kind = "kf"
schedule = "star"
[noise]
epochs = [0, 4]
noise_scale = [100, 5000]
spread_sigma = 0.1
[[interference]]
host = 0
flows = 9
start_step = 8
"""


def digest(folder: Path, seed: int, hash_seed: str) -> str:
    folder.mkdir()
    scenario = folder / "s.toml"
    scenario.write_text(SCENARIO.format(seed=seed))
    subprocess.run(
        [sys.executable, "-m", "kfsim", str(scenario), "--out", str(folder), "--json"],
        check=True,
        capture_output=True,
        timeout=100,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        cwd=Path(__file__).resolve().parents[2],
    )
    contents = [(folder / name).read_bytes() for name in ("rows.csv", "events.jsonl")]
    assert all(contents), "an empty log proves nothing"
    return hashlib.sha256(b"|".join(contents)).hexdigest()


def test_same_seed_gives_the_same_bytes_whatever_the_hash_seed(tmp_path):
    first = digest(tmp_path / "a", 7, "0")
    assert digest(tmp_path / "b", 7, "1") == first
    assert digest(tmp_path / "c", 8, "0") != first


def test_a_new_rank_leaves_the_draws_of_the_others_alone():
    alone, more = RankNormals(3, "jitter", 0), RankNormals(3, "jitter", 0)
    for step in range(200):
        # The second world grows in the middle of a block and again in a later one.
        size = 4 if step < 50 else 7 if step < 150 else 9
        np.testing.assert_array_equal(alone.at(step, 4), more.at(step, size)[:4])


def test_a_rank_that_joins_late_draws_as_if_it_had_always_been_there():
    early, late = RankNormals(3, "jitter", 0), RankNormals(3, "jitter", 0)
    for step in range(100):
        early.at(step, 5)
        late.at(step, 2)
    np.testing.assert_array_equal(early.at(100, 5), late.at(100, 5))


def test_purposes_repeats_and_seeds_have_streams_of_their_own():
    draws = {
        float(stream(seed, purpose, repeat).standard_normal())
        for seed in (1, 2)
        for purpose in ("jitter", "norm")
        for repeat in (0, 1)
    }
    assert len(draws) == 8
