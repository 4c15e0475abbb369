"""A job on a single process, its batches, its log, and replay of what its policies saw."""

import json
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kfcore as kf
from kfcore.config import Config
from kfcore.errors import UsageError
from kfcore.gradients import finite_norm, float_view
from kfcore.monitors import Undefined
from kfcore.policy.replay import replay

ALONE = Config()


def alone(**more) -> kf.Job:
    return kf.Job(None, **{"local_batch": 4, "learning_rate": 0.5, "config": ALONE, **more})


def one_pass(job: kf.Job, n_samples: int, **more) -> list[np.ndarray]:
    out = []
    for indices in job.batches(n_samples, **more):
        out.append(indices)
        job.step([np.ones(2, np.float32)], loss=1.0)
    return out


def test_a_pass_uses_each_sample_once():
    with alone() as job:
        batches = one_pass(job, 10)
        assert [len(batch) for batch in batches] == [4, 4, 2]
        assert sorted(np.concatenate(batches)) == list(range(10))
        assert (job.epoch, job.steps, job.controller.samples) == (1, 3, 10)


def test_the_order_depends_on_seed_and_epoch_only():
    first, second = alone(), alone()
    order = [np.concatenate(one_pass(first, 50, seed=3)) for _ in range(2)]
    np.testing.assert_array_equal(order[0], np.concatenate(one_pass(second, 50, seed=3)))
    assert not np.array_equal(order[0], order[1])
    np.testing.assert_array_equal(
        np.concatenate(one_pass(alone(), 50, shuffle=False)), np.arange(50)
    )


def test_a_change_of_batch_takes_effect_within_the_pass():
    with alone(policies=[kf_policy("ScheduledBatch('1:16')")]) as job:
        assert [len(batch) for batch in one_pass(job, 40)] == [4, 4, 16, 16]


def kf_policy(spec):
    from kfcore.policy.load import load_policy

    return load_policy(spec)


def test_a_step_that_was_not_taken_is_an_error():
    with pytest.raises(UsageError, match=r"job\.step was not called"):
        list(alone().batches(10))
    with pytest.raises(UsageError, match="n_samples must be >= 1, got 0"):
        list(alone().batches(0))


def test_stop_ends_the_pass():
    class StopAt(kf.Policy):
        def after_step(self, seen):
            return kf.Stop(reason="enough") if seen.step == 2 else None

    with alone(policies=[StopAt()]) as job:
        assert len(one_pass(job, 1000)) == 3
        assert job.stopped
        assert job.epoch == 0
        assert one_pass(job, 1000) == []


def test_resize_is_refused_on_real_processes():
    with pytest.raises(UsageError, match="ScheduledResize asked for world_size 2"):
        one_pass(alone(policies=[kf_policy("ScheduledResize('1:2')")]), 100)


def test_a_world_of_one_has_no_noise_scale_and_goes_on(tmp_path):
    log = tmp_path / "events.jsonl"
    path = "examples/policies/grow_batch.py:GrowBatch"
    with (
        warnings.catch_warnings(record=True) as caught,
        alone(log=log, config=Config(policies=(path,))) as job,
    ):
        for _ in range(3):
            one_pass(job, 20)
    assert "gns is undefined (needs >= 2 gradients)" in str(caught[0].message)
    assert len(caught) == 1
    assert job.local_batch == 4
    assert "NaN" not in log.read_text()
    assert [json.loads(line)["kind"] for line in log.read_text().splitlines()] == ["undefined"]


def test_a_gradient_that_is_not_finite_is_reported_as_skipped():
    with alone() as job:
        assert job.step([np.array([1.0, np.nan])]).skipped
        assert job.step([np.array([1.0, np.inf])]).skipped
        assert not job.step([np.array([1.0, 2.0])]).skipped
        assert not job.step([]).skipped


def test_gradients_must_be_floats():
    with pytest.raises(UsageError, match="gradients must be float arrays, got int64"):
        alone().step([np.ones(3, np.int64)])
    with pytest.raises(UsageError, match="with DLPack, got list"):
        alone().step([[1.0]])


def test_gradients_of_torch_are_seen_without_a_copy():
    torch = pytest.importorskip("torch")
    tensor = torch.ones(3)
    assert float_view(tensor).__array_interface__["data"][0] == tensor.data_ptr()


def test_a_closed_job_stays_closed():
    job = alone()
    job.close()
    job.close()
    with pytest.raises(UsageError, match="was closed"):
        job.step([])


@given(
    st.lists(st.floats(-1e3, 1e3, width=16), max_size=40),
    st.sampled_from([np.float16, np.float32, np.float64]),
)
def test_norm_is_the_sum_of_squares(values, dtype):
    array = np.array(values, dtype)
    expected = float(np.sum(array.astype(np.float64) ** 2))
    assert finite_norm([array, array[::2]]) == pytest.approx(
        expected + float(np.sum(array[::2].astype(np.float64) ** 2)), rel=1e-12
    )


def test_replay_of_a_recorded_run_gives_its_own_actions(tmp_path):
    class Grow(kf.Policy):
        """Asks after each epoch, with an odd number that must survive JSON."""

        def after_epoch(self, seen):
            return kf.SetLearningRate(seen.learning_rate / 3, reason=f"{seen.metrics['loss']}")

        def on_change(self, seen):
            assert seen.changes

    log = tmp_path / "events.jsonl"
    with alone(policies=[Grow()], log=log, record=True) as job:
        for _ in range(4):
            one_pass(job, 10)
    events = [json.loads(line) for line in log.read_text().splitlines()]
    proposed = [event["new"] for event in events if event["kind"] == "proposed"]
    replayed = replay(Grow(), log)
    assert [item.action.learning_rate for item in replayed] == proposed
    assert len(proposed) == 4
    assert {item.hook for item in replayed} == {"after_epoch"}
    assert all(events[i]["time_s"] <= events[i + 1]["time_s"] for i in range(len(events) - 1))


def test_replay_says_what_is_wrong_with_a_log(tmp_path):
    log = tmp_path / "log.jsonl"
    policy = kf_policy("NoiseScaleBatch")
    with pytest.raises(UsageError, match=r"cannot read .*log.jsonl: No such file"):
        replay(policy, log)
    log.write_text('{"kind": "installed"}\n')
    with pytest.raises(UsageError, match="has no observed events"):
        replay(policy, log)
    log.write_text("{}\nnot json\n")
    with pytest.raises(UsageError, match=r"log.jsonl:2: not an event"):
        replay(policy, log)


def test_observations_survive_json():
    job = alone(monitors=[kf.monitors.GradientNoiseScale()])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one_pass(job, 10)
    seen = job.controller.observe()
    again = kf.Observation.from_json(json.loads(json.dumps(seen.to_json())))
    assert again.to_json() == seen.to_json()
    assert isinstance(again.metrics["gns"], Undefined)
    assert again.metrics["step_s"] == seen.metrics["step_s"]
    with pytest.raises(UsageError, match="not an observation"):
        kf.Observation.from_json({"steps": 3})


def test_the_summary_says_what_the_job_added_to_its_steps():  # G10
    now_s = 0.0

    def clock() -> float:  # every look at it takes a second
        nonlocal now_s
        now_s += 1.0
        return now_s

    with alone(clock=clock) as job:
        assert np.isnan(job.tally.summary()["overhead_percent"])
        for _ in range(4):
            job.step([np.ones(2, np.float32)])
        said = job.tally.summary()
    assert said["steps"] == 4
    assert said["comm_ms"] == 1000.0
    assert said["job_ms"] > 0
    assert said["overhead_percent"] == pytest.approx(100 * said["job_ms"] / said["step_ms"])
    assert said["comm_ms"] + said["job_ms"] <= said["step_ms"]
