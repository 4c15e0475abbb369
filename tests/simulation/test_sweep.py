"""Sweeps: the same bytes on one process, on two, and after a kill."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from kfcore.errors import UsageError
from kfsim.scenario import load
from kfsim.sweep import grid, run_sweep

TEXT = """
[cluster]
hosts = 4
nic_gbps = 8.0
[workload]
model = "mobilenet_v2"
samples_per_s = 100.0
local_batch = 32
jitter_sigma = 0.05
[system]
kind = "kf"
[run]
steps = 3
"""
VARY = {"cluster.hosts": [2, 3, 5], "run.seed": [1, 2]}


@pytest.fixture
def scenario(tmp_path):
    file = tmp_path / "s.toml"
    file.write_text(TEXT)
    return load(file)


def test_a_grid_is_every_combination_in_order():
    assert grid({"a": [1, 2], "b": ["x", "y"]}) == [
        {"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}, {"a": 2, "b": "y"},
    ]  # fmt: skip


def test_two_processes_write_the_bytes_of_one(scenario, tmp_path):
    one = run_sweep(scenario, grid(VARY), tmp_path / "1").read_bytes()
    two = run_sweep(scenario, grid(VARY), tmp_path / "2", processes=2).read_bytes()
    assert one == two
    assert one.count(b"\n") == 7


def test_what_is_done_is_not_run_again_and_a_torn_line_is(scenario, tmp_path):
    whole = run_sweep(scenario, grid(VARY), tmp_path / "a").read_bytes()
    log = tmp_path / "a" / "done.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:3]) + lines[3][:20])  # two done, the third cut by a kill
    seen = []
    again = run_sweep(
        scenario, grid(VARY), tmp_path / "a", progress=lambda done, _total: seen.append(done)
    )
    assert seen[0] == 2
    assert again.read_bytes() == whole


def test_another_sweep_in_the_folder_is_refused(scenario, tmp_path):
    run_sweep(scenario, grid({"run.seed": [1]}), tmp_path / "a")
    with pytest.raises(UsageError, match="holds another sweep"):
        run_sweep(scenario, grid({"run.seed": [2]}), tmp_path / "a")


def test_a_bad_point_is_refused_before_anything_runs(scenario, tmp_path):
    with pytest.raises(UsageError, match="hosts: must be >= 1"):
        run_sweep(scenario, grid({"cluster.hosts": [2, 0]}), tmp_path / "a")
    assert not (tmp_path / "a").exists()
    with pytest.raises(UsageError, match="on must be"):
        run_sweep(scenario, [], tmp_path / "a", on="moon")


def test_a_killed_command_goes_on_where_it_was(scenario, tmp_path):
    points = ["--vary", "run.seed=" + ",".join(map(str, range(15)))]
    command = [
        sys.executable, "-c", "from kfcore.cli import main; main()",
        "sweep", scenario.path, *points, "--out",
    ]  # fmt: skip
    run_sweep(scenario, grid({"run.seed": list(range(15))}), tmp_path / "whole")
    log = tmp_path / "cut" / "done.jsonl"
    with subprocess.Popen(
        [*command, str(tmp_path / "cut")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as running:
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline and running.poll() is None:
            if log.exists() and log.read_text().count("\n") > 2:
                running.send_signal(signal.SIGKILL)
                break
            time.sleep(0.01)
    done = subprocess.run(
        [*command, str(tmp_path / "cut")], check=True, capture_output=True, text=True
    )
    assert "15 points" in done.stdout
    whole = (tmp_path / "whole" / "rows.csv").read_bytes()
    assert (tmp_path / "cut" / "rows.csv").read_bytes() == whole


def test_parquet_holds_the_same_rows(scenario, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    run_sweep(scenario, grid(VARY), tmp_path / "a", parquet=True)
    table = parquet.read_table(tmp_path / "a" / "rows.parquet")
    assert table.num_rows == 6
    assert table.column("cluster.hosts").to_pylist() == [2, 2, 3, 3, 5, 5]


@pytest.mark.slow
def test_ray_writes_the_same_bytes(scenario, tmp_path):
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False)
    try:
        on_ray = run_sweep(scenario, grid(VARY), tmp_path / "ray", on="ray").read_bytes()
    finally:
        ray.shutdown()
    assert on_ray == run_sweep(scenario, grid(VARY), tmp_path / "here").read_bytes()
    assert json.loads((tmp_path / "here" / "done.jsonl").read_text().splitlines()[0])
    assert os.listdir(tmp_path / "here")
