"""Tuning in simulated time: logged with units, steady on a steady network, alert to change."""

import itertools
from typing import Any

from typer.testing import CliRunner

from kfcore.cli.policy import app
from kfcore.policy.trials import COLUMNS, to_csv, trials
from kfsim import simulate
from kfsim.scenario import parse

POLICY = "TuneSchedule('star(root=0);star(root=1)', cooldown_steps=60)"


def run(steps: int, interference: tuple[dict[str, Any], ...] = ()) -> Any:
    raw = {
        "run": {"steps": steps},
        "cluster": {"hosts": 4, "nic_gbps": 10.0},
        "workload": {"model": "resnet50", "samples_per_s": 400.0, "local_batch": 8},
        "system": {"kind": "kf", "schedule": "star(root=0)"},
        "interference": list(interference),
    }
    return simulate(parse(raw), policies=[POLICY])


def choices(result: Any) -> list[tuple[int, str]]:
    return [(r["step"], r["candidate"]) for r in trials(result.events) if r["state"] == "final"]


def test_every_trial_is_logged_with_unit_and_the_choice_is_marked(tmp_path):
    result = run(100)
    result.write(tmp_path)
    printed = CliRunner().invoke(app, ["trials", str(tmp_path / "events.jsonl")])
    assert printed.exit_code == 0, printed.output
    header, *rows = printed.output.splitlines()
    assert header == ",".join(COLUMNS)
    assert "score_samples_per_s" in header
    assert [row.split(",")[4] for row in rows] == ["trial", "trial", "final"]
    assert to_csv(trials(result.events)) == printed.output


def test_training_that_ends_early_says_that_it_was_still_warming_up():
    (last,) = trials(run(8).events)[-1:]
    assert last["state"] == "still warming up"
    assert last["reason"] == "still warming up: 1 of 2 schedules tried"


def test_a_steady_network_is_tuned_once():
    result = run(300)
    assert len(choices(result)) == 1
    late = [e for e in result.events if e["kind"] == "installed" and e["step"] > 30]
    assert late == []


def test_a_slow_link_changes_the_choice_and_its_recovery_changes_it_back():
    slow = {"host": 0, "flows": 30, "direction": "both", "start_step": 300, "stop_step": 600}
    made = choices(run(900, (slow,)))
    assert [candidate for _, candidate in made[:2]] == ["star(root=0)", "star(root=1)"]
    assert 300 < made[1][0] <= 350
    # When the disturbance is over the speed drifts again, and all are tried again.
    assert 600 < made[2][0] <= 650
    assert len(made) == 3
    for (before, _), (after, _) in itertools.pairwise(made):
        assert after - before >= 60
