"""Laws of agreement, batches and signals over random jobs."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kfcore as kf
from kfcore.config import Config
from kfcore.controller import Controller, LocalStep
from kfcore.errors import ConflictingProposals
from kfcore.monitors import Undefined
from kfcore.policy.load import load_policy


class Script(kf.Policy):
    """Proposes what a script says after each step."""

    def __init__(self, script: dict[int, Any]) -> None:
        self.script = script

    def signals(self, local):
        return {"top": kf.Max(local.loss), "all": kf.Sum(local.loss)}

    def after_step(self, seen):
        return self.script.get(seen.step)


ACTIONS = st.sampled_from(
    [
        None,
        kf.SetLocalBatch(8),
        kf.SetLocalBatch(16),
        kf.SetLearningRate(0.5),
        kf.SetSchedule("clique"),
    ]
)
STEPS = 6


@given(
    common=st.lists(ACTIONS, min_size=STEPS, max_size=STEPS),
    odd=st.lists(st.tuples(st.integers(0, STEPS - 1), st.integers(0, 3), ACTIONS), max_size=3),
    world_size=st.integers(1, 4),
)
def test_configurations_never_differ_and_only_common_proposals_are_installed(
    common, odd, world_size
):
    scripts = [dict(enumerate(common, start=1)) for _ in range(world_size)]
    for step, rank, action in odd:
        scripts[rank % world_size][step + 1] = action
    jobs = [
        Controller(
            world_size=world_size, local_batch=8, learning_rate=0.1, policies=[Script(s)]
        )
        for s in scripts
    ]
    conflict = False
    for step in range(1, STEPS + 2):
        before = configuration(jobs[0])
        filled = [job.fill(LocalStep(loss=float(rank))) for rank, job in enumerate(jobs)]
        sums = np.sum([pair[0] for pair in filled], axis=0)
        maxes = np.max([pair[1] for pair in filled], axis=0)
        outcomes = [job.step_done(sums, maxes) for job in jobs]
        # Policies are not asked at a boundary that brought a conflict.
        asked = [None if conflict else script.get(step - 1) for script in scripts]
        wanted = [effect(before, action) for action in asked]
        assert len({configuration(job) for job in jobs}) == 1
        assert all(job.signals == jobs[0].signals for job in jobs)
        assert jobs[0].signals["top"] == world_size - 1
        conflict = len(set(wanted)) > 1
        assert all(outcome.conflict is conflict for outcome in outcomes)
        assert configuration(jobs[0]) == (before if conflict else wanted[0])
        if conflict:
            texts = [job.proposal_text for job in jobs]
            for job in jobs:
                with pytest.raises(ConflictingProposals):
                    job.raise_conflict(texts)


def configuration(job: Controller) -> tuple[Any, ...]:
    return job.local_batch, job.learning_rate, job.schedule


def effect(before: tuple[Any, ...], action: kf.Policy | None) -> tuple[Any, ...]:
    """The configuration that an action leads to."""
    if action is None:
        return before
    name, value = action.setting()
    names = ("local_batch", "learning_rate", "schedule")
    return tuple(value if name == own else old for own, old in zip(names, before, strict=True))


@settings(max_examples=25, deadline=None)
@given(
    world_size=st.integers(1, 4),
    n_samples=st.integers(4, 60),
    plan=st.dictionaries(st.integers(1, 5), st.integers(1, 20), min_size=1, max_size=3),
    local_batch=st.integers(1, 9),
)
def test_each_sample_is_used_once_whatever_the_batch_does(
    world_size, n_samples, plan, local_batch
):
    def rank(session):
        policy = load_policy(f"ScheduledBatch({plan})")
        job = kf.Job(
            session,
            local_batch=local_batch,
            learning_rate=0.1,
            policies=[policy],
            config=Config(),
        )
        used = []
        for indices in job.batches(n_samples):
            # Each sample's gradient is its index, so the mean over all ranks is known.
            grad = np.array([np.mean(indices, dtype=float)])
            # A rank that has nothing left in the last step holds a stand-in of weight 0.
            counted = indices if job._share > 0 else indices[:0]
            job.step([grad])
            used.append((counted, grad[0]))
        return used, job.controller.samples

    ranks = kf.inproc_world(world_size, rank)
    used = [np.concatenate([indices for indices, _ in steps]) for steps, _ in ranks]
    everything = np.concatenate(used)
    assert len(set(everything)) == len(everything)
    assert len(everything) == n_samples
    assert all(samples == len(everything) for _, samples in ranks)
    for step in zip(*(steps for steps, _ in ranks), strict=True):
        mean = np.mean(np.concatenate([indices for indices, _ in step]))
        np.testing.assert_allclose([value for _, value in step], mean, rtol=1e-12)


@given(
    norms=st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)), min_size=1, max_size=20),
    world_size=st.integers(1, 64),
    batch=st.integers(1, 4096),
)
def test_noise_scale_is_a_finite_number_not_below_zero_or_undefined(norms, world_size, batch):
    monitor = kf.monitors.GradientNoiseScale()
    running = monitor.start()
    for step, (local_sq, global_sq) in enumerate(norms, start=1):
        norms_of = (local_sq, global_sq, world_size)
        view = kf.monitors.StepView(step, world_size, batch * world_size, *norms_of)
        running.update(view)
    gns = running.metrics()["gns"]
    if isinstance(gns, Undefined):
        assert gns.reason
    else:
        assert world_size > 1
        assert gns >= 0


@given(st.lists(st.floats(0.1, 1e4), min_size=2, max_size=60))
def test_noise_scale_batch_never_shrinks_nor_passes_its_cap(values):
    policy = load_policy("NoiseScaleBatch(cap=256)")
    batch, history = 8, [8]
    for epoch, value in enumerate(values):
        seen = kf.Observation(
            step=epoch + 1,
            epoch=epoch,
            world_size=4,
            local_batch=batch,
            global_batch=4 * batch,
            learning_rate=0.1,
            schedule="ring",
            metrics=kf.monitors.Metrics(gns=value),
        )
        policy.after_step(seen)
        action = policy.after_epoch(seen)
        batch = action.local_batch if action else batch
        history.append(batch)
    assert all(a <= b <= min(2 * a, 256) for a, b in pairwise(history))
