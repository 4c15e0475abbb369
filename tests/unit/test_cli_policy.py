"""kf policy: list, show, replay."""

import json

import pytest

import kfcore as kf
from kfcore.cli import main
from kfcore.config import Config


def run(capsys, *args: str) -> tuple[int, str, str]:
    try:
        main(["policy", *args])
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    out = capsys.readouterr()
    return code, out.out, out.err


def test_list_names_every_built_in(capsys):
    code, out, _ = run(capsys, "list", "--json")
    assert code == 0
    assert {"NoiseScaleBatch", "InterferenceSchedule"} <= json.loads(out).keys()
    assert all(json.loads(out).values())
    assert "NoiseScaleBatch" in run(capsys, "list")[1]


def test_show_gives_formula_and_source(capsys):
    code, out, _ = run(capsys, "show", "NoiseScaleBatch")
    assert code == 0
    assert "cap: int = 1024" in out
    assert "Source: Mai et al." in out
    assert "after_step, after_epoch" in out


def test_show_of_an_unknown_policy_is_a_usage_error(capsys):
    code, out, err = run(capsys, "show", "Nope")
    assert (code, out) == (2, "")
    assert "no policy is built in as 'Nope'" in err


@pytest.mark.filterwarnings("ignore:metric gns")
def test_replay_prints_the_actions_of_another_policy(capsys, tmp_path):
    import numpy as np

    log = tmp_path / "events.jsonl"
    with kf.Job(
        None, local_batch=4, learning_rate=0.1, log=log, record=True, config=Config()
    ) as job:
        for _ in job.batches(40):
            job.step([np.ones(2)], loss=1.0)
    code, out, _ = run(capsys, "replay", str(log), "ScheduledBatch('3:8,5:16')", "--json")
    assert code == 0
    assert [(row["step"], row["action"], row["local_batch"]) for row in json.loads(out)] == [
        (3, "SetLocalBatch", 8),
        (5, "SetLocalBatch", 16),
    ]
    assert "2 actions" in run(capsys, "replay", str(log), "ScheduledBatch('3:8,5:16')")[1]
