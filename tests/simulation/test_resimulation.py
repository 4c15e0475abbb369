"""A run's own log, simulated again and laid over it."""

import json
import subprocess
import sys

import numpy as np
import pytest

import kfcore as kf
from kfcore.config import Config
from kfcore.errors import UsageError
from kfcore.policy import SetSchedule
from kfsim import simulate
from kfsim.resimulation import read_run, resimulate, write_overlay
from kfsim.scenario import parse

RAW = {
    "run": {"steps": 12, "seed": 5},
    "cluster": {"hosts": 4, "nic_gbps": 8.0},
    "workload": {
        "model": "mobilenet_v2",
        "samples_per_s": 100.0,
        "local_batch": 32,
        "jitter_sigma": 0.2,
    },
    "system": {"kind": "kf", "schedule": "star"},
}


class Switch(kf.Policy):
    def after_step(self, seen):
        return SetSchedule("ring", reason="test") if seen.step == 6 else None


def recorded(tmp_path, policies, **values):
    one = parse(RAW).with_values({k.replace("__", "."): v for k, v in values.items()})
    result = simulate(one, policies, record=True)
    result.write(tmp_path)
    return tmp_path / "events.jsonl", [row["step_s"] for row in result.rows]


def test_a_recorded_run_comes_out_as_it_was_where_the_model_is_right(tmp_path):
    log, step_s = recorded(tmp_path, ["NameStragglers", Switch()])
    run = read_run(log)
    assert run.compute_s.shape == (11, 4)  # the last step's times are not in the log
    assert run.schedules == {1: "star", 8: "ring"}
    found = resimulate(parse(RAW).with_values({"run.seed": 99}), run)
    simulated = [row["simulated_s"] for row in found.rows]
    np.testing.assert_allclose(simulated, step_s[:11], rtol=1e-5)  # other control words
    assert found.summary["median_error"] < 1e-2  # of spans that ranks measured themselves
    assert step_s[2] > 1.05 * step_s[9], "no change of the schedule: the test shows nothing"


def test_a_wrong_network_shows_as_error(tmp_path):
    log, _ = recorded(tmp_path, ["NameStragglers"])
    slow = resimulate(parse(RAW).with_values({"cluster.nic_gbps": 2.0}), read_run(log))
    assert slow.summary["bias"] > 0.2
    assert all(row["error"] > 0 for row in slow.rows)


def test_without_times_by_rank_the_slowest_stands_for_all(tmp_path):
    log, _ = recorded(tmp_path, [], workload__jitter_sigma=0.0)
    run = read_run(log)
    assert run.compute_s.shape == (11, 1)
    assert resimulate(parse(RAW), run).summary["p95_error"] < 1e-6


def test_another_number_of_workers_is_refused_and_later_ones_are_left_out(tmp_path):
    log, _ = recorded(tmp_path, ["ScheduledResize({4: 6})"])
    run = read_run(log)
    assert run.world_size == 4
    assert run.left_out > 0
    assert len(run.step_s) + run.left_out == 11
    assert resimulate(parse(RAW), run).summary["steps_left_out"] == run.left_out
    with pytest.raises(UsageError, match="had 4 workers, scenario has 3"):
        resimulate(parse(RAW).with_values({"cluster.hosts": 3}), run)
    with pytest.raises(UsageError, match="no observed events"):
        read_run(_empty(tmp_path))


def _empty(tmp_path):
    file = tmp_path / "empty.jsonl"
    file.write_text("")
    return file


def test_real_ranks_are_simulated_step_by_step_and_drawn_side_by_side(tmp_path):
    log = tmp_path / "events.jsonl"

    def rank(session):
        with kf.Job(
            session, local_batch=2, learning_rate=0.1, log=log, record=True, config=Config()
        ) as job:
            for _ in range(9):
                job.step([np.ones(1000, np.float32)])

    kf.inproc_world(3, rank)
    found = resimulate(parse(RAW).with_values({"cluster.hosts": 3}), read_run(log))
    assert [row["step"] for row in found.rows] == list(range(1, 9))
    assert all(row["simulated_s"] >= row["compute_s"] for row in found.rows)
    assert found.summary["real_s"] > 0
    write_overlay(found.rows, tmp_path / "overlay.json")
    events = json.loads((tmp_path / "overlay.json").read_text())["traceEvents"]
    assert [e["args"]["name"] for e in events if e["ph"] == "M"] == ["real", "simulated"]
    spans = [e for e in events if e["ph"] == "X"]
    assert len(spans) == 2 * 2 * 8
    for pid in (1, 2):
        times = [e["ts"] for e in spans if e["pid"] == pid]
        assert times == sorted(times)


def test_the_command_compares_a_run_with_its_simulation(tmp_path):
    log, _ = recorded(tmp_path, ["NameStragglers"])
    scenario = tmp_path / "s.toml"
    scenario.write_text(
        "\n".join(
            f"[{table}]\n" + "\n".join(f"{key} = {json.dumps(v)}" for key, v in keys.items())
            for table, keys in RAW.items()
        )
    )
    command = [sys.executable, "-c", "from kfcore.cli import main; main()"]
    more = ["--out", tmp_path / "out", "--trace", tmp_path / "both.json"]
    done = subprocess.run(
        [*command, "sim", scenario, "--replay", log, *more],
        check=True, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert "11 steps: real" in done.stdout
    assert (tmp_path / "out" / "replay.csv").read_text().count("\n") == 12
    assert json.loads((tmp_path / "both.json").read_text())["traceEvents"]
