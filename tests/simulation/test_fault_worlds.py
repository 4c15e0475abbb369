"""One fault plan, two worlds: the same views and actions, real and simulated."""

import dataclasses
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from kfcore.errors import UsageError
from kfcore.faults import Fault, FaultPlan
from kfsim import simulate
from kfsim.scenario import parse

ROOT = Path(__file__).resolve().parents[2]
PLAN = FaultPlan(
    (
        Fault("slow", 3, rank=2, seconds=0.01, steps=2),
        Fault("kill", 8, rank=1),
        Fault("leave", 14, rank=0),
        Fault("kill", 20, rank=1),
    )
)
TRAIN = """
    import numpy as np
    import kfcore as kf
    from kfcore.elastic import ElasticState

    weights = np.zeros(4)
    with kf.join() as member:
        state = ElasticState(weights=weights)
        with kf.ElasticJob(member, state, local_batch=4, learning_rate=0.1) as job:
            for _ in job.batches(100_000):
                job.step([np.ones(4)])
                if job.steps == 25:
                    break
"""


def scenario(hosts=4, plan=PLAN, **resize):
    raw = {
        "run": {"steps": 25},
        "cluster": {"hosts": hosts, "nic_gbps": 8.0},
        "workload": {"model": "resnet50", "samples_per_s": 100.0, "local_batch": 4},
        "system": {"kind": "kf"},
        "resize": resize,
    }
    return dataclasses.replace(parse(raw), faults=plan)


def story(events):
    """What happened, without times and names: faults, views and installed changes."""
    told = []
    for event in events:
        if event["kind"] == "view" and event["view_version"] > 1:
            told.append((event["step"], "view", event["view_version"], event["ranks"]))
        elif event["kind"] in ("fault", "installed"):
            told.append((event["step"], event["kind"], event["what"], event["new"]))
    return told


def real_events(tmp_path):
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAIN))
    (tmp_path / "plan.toml").write_text(PLAN.to_toml())
    command = [sys.executable, "-m", "kfcore", "run", "-n", "4", "--elastic", "1:4"]
    options = ["--cooldown-s", "1000", "--faults", str(tmp_path / "plan.toml")]
    logs = ["--log-dir", str(tmp_path / "logs"), str(tmp_path / "train.py")]
    done = subprocess.run(
        [*command, *options, *logs],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "logs" / "events.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.processes
def test_a_plan_gives_the_same_views_in_both_worlds(tmp_path):
    real, simulated = story(real_events(tmp_path)), story(simulate(scenario()).events)
    assert real == simulated
    assert [entry[:3] for entry in real] == [
        (3, "fault", "slow"),
        (8, "fault", "kill"),
        (7, "view", 2),
        (14, "fault", "leave"),
        (14, "view", 3),
        (20, "fault", "kill"),
        (19, "view", 4),
    ]


def test_deaths_and_slow_steps_take_their_time():
    plan = FaultPlan((Fault("slow", 5, rank=1, seconds=2.0), Fault("kill", 10, rank=0)))
    calm = simulate(scenario(plan=FaultPlan())).rows
    rough = simulate(scenario(plan=plan, detect_s=1.0, reopen_s=0.5)).rows
    assert rough[4]["step_s"] - calm[4]["step_s"] == pytest.approx(2.0, rel=0.01)
    assert rough[9]["step_s"] - rough[10]["step_s"] == pytest.approx(1.5, rel=0.01)
    assert [row["world_size"] for row in rough] == [4] * 9 + [3] * 16
    assert [row["samples"] for row in rough] == [16] * 9 + [12] * 16


def test_joiners_start_beside_training_and_pause_it_only_for_the_state():
    plan = FaultPlan((Fault("join", 5, workers=2),))
    result = simulate(scenario(hosts=4, plan=plan, join_s=1.0, state_s=0.25))
    rows = result.rows
    (view,) = [e for e in result.events if e["kind"] == "view" and e["view_version"] == 2]
    assert len(view["new"]) == 6
    asked_s, joined = rows[3]["time_s"], view["step"]
    assert rows[joined - 2]["time_s"] < asked_s + 1.0 <= rows[joined - 1]["time_s"]
    assert [row["world_size"] for row in rows] == [4] * joined + [6] * (25 - joined)
    gap_s = rows[joined]["time_s"] - rows[joined]["step_s"] - rows[joined - 1]["time_s"]
    assert gap_s == pytest.approx(0.25, rel=0.01)


def test_a_worker_that_hangs_too_long_is_given_up():
    plan = FaultPlan((Fault("stop", 5, rank=1, seconds=1.0), Fault("stop", 9, rank=2)))
    rows = simulate(scenario(plan=plan, heartbeat_s=3.0)).rows
    assert [row["world_size"] for row in rows] == [4] * 8 + [3] * 17
    assert rows[4]["step_s"] - rows[5]["step_s"] == pytest.approx(1.0, rel=0.01)


def test_faults_in_a_scenario_file_are_checked_and_the_last_worker_cannot_die():
    raw = {**scenario().raw, "fault": [{"kind": "kill", "step": 1}]}
    with pytest.raises(UsageError, match=r"fault\[0\]: kill needs rank"):
        parse(raw)
    raw["fault"] = [{"kind": "kill", "step": 2, "rank": 0}]
    raw["cluster"] = {"hosts": 1, "nic_gbps": 8.0}
    with pytest.raises(UsageError, match="leaves no worker alive"):
        simulate(parse(raw))
