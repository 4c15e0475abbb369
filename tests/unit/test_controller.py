"""The controller: from measurements to agreed changes, without I/O."""

import warnings
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from kfcore.controller import Controller, LocalStep, StepOutcome
from kfcore.errors import ConflictingProposals, UsageError
from kfcore.monitors import GradientNoiseScale, Undefined
from kfcore.policy import (
    Max,
    Mean,
    Min,
    Policy,
    Resize,
    SetHyper,
    SetLearningRate,
    SetLocalBatch,
    SetSchedule,
    Stop,
    Sum,
)


class AtStep(Policy):
    """Returns a fixed answer after one step, and keeps what it saw."""

    def __init__(self, step: int, answer: Any, name: str = "AtStep") -> None:
        self.step = step
        self.answer = answer
        self._local_name = name
        self._local_seen: list[Any] = []

    @property
    def name(self) -> str:
        return self._local_name

    def after_step(self, seen):
        self._local_seen.append(seen)
        return self.answer if seen.step == self.step else None


def controller(*policies: Policy, world_size: int = 4, **more: Any) -> Controller:
    return Controller(
        **{
            "world_size": world_size,
            "local_batch": 32,
            "learning_rate": 0.1,
            "policies": policies,
            **more,
        }
    )


def run_step(job: Controller, local: LocalStep | None = None, norm: float = 4.0) -> StepOutcome:
    """One step in which this process stands for all ranks."""
    ones = np.ones(job.world_size)
    local = local or LocalStep(
        step_s=ones, comm_s=0.5, comm_bytes=100.0, loss=2.0, grad_sq_norm=5.0
    )
    sums, maxes = job.fill(local)
    return job.step_done(sums.sum(axis=0), maxes.max(axis=0), grad_sq_norm=norm)


def test_a_proposal_rides_in_the_next_step_and_is_in_force_after_it():
    policy = AtStep(2, SetLocalBatch(64, reason="because"))
    job = controller(policy)
    batches = []
    for _ in range(4):
        outcome = run_step(job)
        batches.append((job.local_batch, job.global_batch))
        if job.step == 3:
            (change,) = outcome.installed
            assert (change.what, change.old, change.new, change.step) == (
                "local_batch",
                32,
                64,
                3,
            )
            assert (change.reason, change.policy) == ("because", "AtStep")
        else:
            assert outcome.installed == ()
    assert batches == [(32, 128), (32, 128), (64, 256), (64, 256)]
    assert policy._local_seen[2].local_batch == 64
    assert policy._local_seen[2].changes[0].new == 64


@pytest.mark.parametrize(
    ("action", "name", "value"),
    [
        (SetLearningRate(0.5), "learning_rate", 0.5),
        (SetSchedule("star(root = 1)"), "schedule", "star(root=1)"),
        (Resize(8), "world_size", 8),
        (Stop(), "stopped", True),
    ],
)
def test_every_action_is_installed(action, name, value):
    job = controller(AtStep(1, [action]))
    run_step(job)
    assert getattr(job, name) != value
    run_step(job)
    assert getattr(job, name) == value


def test_resize_raises_the_view_and_takes_new_array_lengths():
    job = controller(AtStep(1, Resize(2)), view_version=5)
    run_step(job)
    run_step(job)
    assert (job.world_size, job.view_version, job.global_batch) == (2, 6, 64)
    assert run_step(job).installed == ()
    with pytest.raises(UsageError, match=r"shape \(2,\), got \(4,\)"):
        job.fill(LocalStep(loss=np.ones(4)))


def test_registered_hyper_parameters_change_and_others_are_refused():
    job = controller(AtStep(1, SetHyper("momentum", 0.5)), hyper={"momentum": 0.9})
    run_step(job)
    run_step(job)
    assert job.hyper == {"momentum": 0.5}
    job = controller(AtStep(1, SetHyper("momentun", 0.5)), hyper={"momentum": 0.9})
    with pytest.raises(
        UsageError, match=r"no setting is named .momentun.; there are: .*learning_"
    ):
        run_step(job)
    with pytest.raises(UsageError, match="has an argument of its own"):
        controller(hyper={"local_batch": 3.0})


@pytest.mark.parametrize(
    ("action", "match"),
    [
        (SetLocalBatch(0), "integer in \\[1, .*got 0 from policy AtStep"),
        (SetLocalBatch(2.5), "got 2.5"),
        (
            SetLocalBatch(Undefined("no data yet")),
            "set from a metric without a value: undefined \\(no data yet\\)",
        ),
        (SetLearningRate(nan), "got nan"),
        (SetLearningRate(inf), "got inf"),
        (SetLocalBatch("64"), "must be a number, got '64'"),
        (SetSchedule("no_such"), "schedule no_such with 4 workers"),
        (SetSchedule(None), "must be a spec text"),
        (
            "grow",
            "AtStep.after_step must return None, an action or several actions, got 'grow'",
        ),
        ([1], "got \\[1\\]"),
    ],
)
def test_what_cannot_be_installed_is_refused_and_nothing_changes(action, match):
    job = controller(AtStep(1, action))
    with pytest.raises(UsageError, match=match):
        run_step(job)
    assert run_step(job).installed == ()


def test_a_schedule_is_checked_against_the_world_it_is_meant_for():
    job = controller(AtStep(1, Resize(1)), schedule="star(root=1)")
    with pytest.raises(UsageError, match=r"schedule star\(root=1\) with 1 workers"):
        run_step(job)
    both = controller(AtStep(1, [Resize(1), SetSchedule("ring")]), schedule="star(root=1)")
    run_step(both)
    run_step(both)
    assert (both.world_size, both.schedule) == (1, "ring")


def test_resize_is_refused_where_processes_cannot_change():
    job = controller(AtStep(1, Resize(8)), fixed={"world_size": "processes are given"})
    with pytest.raises(UsageError, match="AtStep asked for world_size 8: processes are given"):
        run_step(job)


def test_two_policies_that_disagree_are_both_named_and_nothing_changes():
    job = controller(AtStep(1, SetLocalBatch(64), "A"), AtStep(1, SetLocalBatch(16), "B"))
    with pytest.raises(ConflictingProposals, match="policy A wants local_batch = 64, policy B"):
        run_step(job)
    assert run_step(job).installed == ()
    assert job.local_batch == 32


def test_two_policies_that_agree_are_no_conflict():
    job = controller(AtStep(1, SetLocalBatch(64), "A"), AtStep(1, SetLocalBatch(64), "B"))
    run_step(job)
    assert len(run_step(job).installed) == 1


def test_ranks_that_disagree_change_nothing_and_learn_who_said_what():
    jobs = [controller(AtStep(1, SetLocalBatch(32 + 32 * rank))) for rank in range(3)]
    events: list[dict[str, Any]] = []
    jobs[2]._on_event = events.append
    outcomes = []
    for _ in range(2):
        filled = [job.fill(LocalStep(loss=1.0)) for job in jobs]
        sums = np.sum([pair[0] for pair in filled], axis=0)
        maxes = np.max([pair[1] for pair in filled], axis=0)
        outcomes = [job.step_done(sums, maxes) for job in jobs]
    assert all(outcome.conflict for outcome in outcomes)
    texts = [job.proposal_text for job in jobs]
    for job in jobs:
        with pytest.raises(ConflictingProposals, match=r"rank 0: .*no change; rank 1: .* = 64"):
            job.raise_conflict(texts)
        assert job.local_batch == 32
    assert [event["kind"] for event in events] == ["proposed", "conflict"]


def test_signals_are_reduced_by_their_kind_and_seen_by_the_policy():
    class Signals(AtStep):
        def signals(self, local):
            return {
                "sum": Sum(local.loss > 1.5),
                "mean": Mean(local.loss),
                "max": Max(local.loss),
                "min": Min(local.loss),
            }

    policy = Signals(9, None)
    job = controller(policy)
    run_step(job, LocalStep(loss=np.array([1.0, 2.0, 3.0, 4.0])))
    assert policy._local_seen[0].signals == {"sum": 3.0, "mean": 2.5, "max": 4.0, "min": 1.0}


def test_a_signal_that_changes_or_clashes_is_an_error():
    class Fickle(Policy):
        def signals(self, local):
            return {} if local.loss > 0 else {"a": Sum(1)}

    with pytest.raises(
        UsageError, match=r"must give the signals \['a'\] at every step, got \[\]"
    ):
        controller(Fickle()).fill(LocalStep(loss=1.0))

    class One(Policy):
        def signals(self, local):
            return {"a": Sum(1)}

    class Two(One):
        pass

    with pytest.raises(UsageError, match="policies One and Two both have a signal 'a'"):
        controller(One(), Two())

    class Bare(Policy):
        def signals(self, local):
            return {"a": 1}

    with pytest.raises(UsageError, match="must be Sum, Mean, Max, Min or Each, got 1"):
        controller(Bare())


def test_policies_must_be_distinct_instances():
    with pytest.raises(UsageError, match="two policies are named 'AtStep'"):
        controller(AtStep(1, None), AtStep(2, None))
    with pytest.raises(UsageError, match="must be instances"):
        controller(AtStep)  # type: ignore[arg-type]


class Watch(Policy):
    monitors = (GradientNoiseScale(decay=0.9),)

    def after_step(self, seen):
        if seen.metrics["gns"] > seen.global_batch:
            return SetLocalBatch(2 * seen.local_batch)
        return None


def test_noise_scale_is_agreed_over_all_ranks():
    job = controller(Watch(), world_size=2, local_batch=8)
    run_step(job, LocalStep(grad_sq_norm=np.array([9.0, 1.0])))
    assert job.metrics["gns"] == pytest.approx(16 / 3)
    assert job.metrics["gns_sqr"] == pytest.approx(3)
    assert job.metrics["gns_var"] == pytest.approx(16)


def test_a_world_of_one_has_no_noise_scale_says_so_once_and_changes_nothing():
    events: list[dict[str, Any]] = []
    job = controller(Watch(), world_size=1, on_event=events.append)
    with pytest.warns(UserWarning, match=r"metric gns is undefined \(needs >= 2 gradients\)"):
        run_step(job)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(20):
            assert run_step(job).installed == ()
    assert [event["kind"] for event in events] == ["undefined"]
    assert job.local_batch == 32


def test_noise_scale_comes_and_goes_with_the_world_size():
    class Resizer(Policy):
        monitors = (GradientNoiseScale(),)

        def after_step(self, seen):
            return {2: Resize(2), 5: Resize(1)}.get(seen.step)

    job = controller(Resizer(), world_size=1)
    defined = []
    with warnings.catch_warnings(record=True) as caught:
        for _ in range(8):
            run_step(job)
            defined.append(not isinstance(job.metrics["gns"], Undefined))
    assert len(caught) == 1
    assert defined == [False, False, False, True, True, True, False, False]


def test_a_change_of_batch_starts_the_noise_scale_afresh():
    job = controller(AtStep(1, SetLocalBatch(8)), monitors=[GradientNoiseScale()], world_size=2)
    run_step(job, LocalStep(grad_sq_norm=np.array([900.0, 100.0])))
    run_step(job, LocalStep(grad_sq_norm=np.array([900.0, 100.0])))
    run_step(job, LocalStep(grad_sq_norm=np.array([9.0, 1.0])))
    assert job.metrics["gns"] == pytest.approx(16 / 3)


def test_a_gradient_that_is_not_finite_is_skipped_by_all_and_feeds_no_average():
    job = controller(Watch(), world_size=2, local_batch=8)
    run_step(job, LocalStep(grad_sq_norm=np.array([9.0, 1.0])))
    before = job.metrics["gns"]
    outcome = run_step(job, LocalStep(grad_sq_norm=np.array([inf, 1.0])), norm=inf)
    assert outcome.skipped
    assert job.metrics["gns"] == before
    assert job.samples == 16
    assert not run_step(job).skipped
    assert run_step(job, norm=inf).skipped  # a sum that overflowed
    assert run_step(job, LocalStep(grad_sq_norm=np.array([inf, 1.0])), norm=nan).skipped


def test_built_in_metrics():
    job = controller()
    local = LocalStep(
        step_s=np.array([1.0, 2.0, 4.0, 1.0]), comm_s=0.5, comm_bytes=100.0, compute_s=0.25
    )
    run_step(job, local)
    assert isinstance(job.metrics["throughput"], Undefined)  # nothing before the first step
    assert isinstance(job.metrics["loss"], Undefined)
    run_step(job, local)
    assert job.metrics["step_s"] == 4
    assert job.metrics["comm_bytes_per_s"] == 200
    assert job.metrics["throughput"] == 128 / 4
    with pytest.raises(UsageError, match="no metric is named 'gns'; there are: comm_"):
        job.metrics["gns"]


def test_two_monitors_of_one_name_must_be_equal():
    controller(Watch(), monitors=[GradientNoiseScale(decay=0.9)])
    with pytest.raises(UsageError, match=r"the caller wants monitor .*0\.5.*, Watch wants"):
        controller(Watch(), monitors=[GradientNoiseScale(decay=0.5)])
    with pytest.raises(UsageError, match="every must be >= 1, got 0"):
        GradientNoiseScale(every=0)
    with pytest.raises(UsageError, match="decay must be in"):
        GradientNoiseScale(decay=1.0)


def test_norms_are_wanted_only_when_a_monitor_uses_them():
    assert not controller().wants_norms
    job = controller(monitors=[GradientNoiseScale(every=3)])
    wanted = []
    for _ in range(6):
        wanted.append(job.wants_norms)
        run_step(job)
    assert wanted == [False, False, True, False, False, True]


def test_hooks_run_in_order():
    calls: list[str] = []

    class Hooks(Policy):
        def before_train(self, seen):
            calls.append("before_train")
            return SetLocalBatch(16)

        def before_epoch(self, seen):
            calls.append(f"before_epoch {seen.epoch}")

        def after_step(self, seen):
            calls.append(f"after_step {seen.step}")

        def on_change(self, seen):
            calls.append(f"on_change {seen.changes[0].what}")

        def after_epoch(self, seen):
            calls.append(f"after_epoch {seen.epoch}")

        def after_train(self, seen):
            calls.append("after_train")

    job = controller(Hooks())
    job.train_begin()
    run_step(job)
    run_step(job)
    job.epoch_done()
    run_step(job)
    job.epoch_done()
    job.train_end()
    assert calls == [
        "before_train",
        "before_epoch 0",
        "on_change local_batch",
        "after_step 1",
        "after_step 2",
        "after_epoch 1",
        "before_epoch 1",
        "after_step 3",
        "after_epoch 2",
        "after_train",
    ]


def test_nothing_can_be_proposed_after_training():
    class Late(Policy):
        def after_train(self, seen):
            return Stop()

    with pytest.raises(UsageError, match=r"Late.after_train asked for Stop.*no step follows"):
        controller(Late()).train_end()


def test_vectors_that_were_not_reduced_are_refused():
    job = controller()
    sums, maxes = job.fill(LocalStep(loss=np.ones(4)))
    with pytest.raises(UsageError, match="reduced control vectors must have shapes"):
        job.step_done(sums, maxes)


def test_one_rank_fills_the_words_of_its_row():
    stacked, single = controller(), controller()
    losses = np.array([1.0, 2.0, 3.0, 4.0])
    rows = stacked.fill(LocalStep(loss=losses, step_s=0.5))
    for rank, loss in enumerate(losses):
        row = single.fill(LocalStep(loss=float(loss), step_s=0.5))
        np.testing.assert_array_equal(row[0], rows[0][rank])
        np.testing.assert_array_equal(row[1], rows[1][rank])


def test_policy_state_is_saved_and_loaded():
    job, other = controller(AtStep(1, None)), controller(AtStep(2, None))
    other.load_policy_states(job.policy_states())
    assert other.policy_states() == {"AtStep": {"step": 1, "answer": None}}
    with pytest.raises(UsageError, match="no policy is named 'X'"):
        other.load_policy_states({"X": {}})
    with pytest.raises(UsageError, match="has no state 'y'"):
        other.load_policy_states({"AtStep": {"y": 1}})
