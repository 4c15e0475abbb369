"""Samples over resizes: each once a pass, exact means, positions that survive."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kfcore as kf
from kfcore.config import Config
from kfcore.elastic import ElasticSampler
from kfcore.errors import UsageError
from kfcore.sampling import DataPass


def used(sampler: ElasticSampler, worlds, local_batch: int) -> list[int]:
    """Every index that some rank was given in one pass; the last world lasts."""
    out: list[int] = []
    worlds = iter(worlds)
    world_size = next(worlds)
    while (step := sampler.take(world_size, world_size * local_batch)) is not None:
        for rank in range(world_size):
            out.extend(step.of(rank))
        world_size = next(worlds, world_size)
    return out


def test_each_sample_is_used_once_over_planned_resizes():
    """4 -> 3 -> 5 workers after steps 3 and 5, 4 samples a worker and step (C1)."""
    sampler = ElasticSampler(100, seed=5)
    for _ in range(2):
        assert sorted(used(sampler, [4] * 3 + [3] * 2 + [5], 4)) == list(range(100))
        sampler.next_epoch()


@given(
    n_samples=st.integers(1, 90),
    worlds=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    local_batch=st.integers(1, 7),
)
def test_each_sample_is_used_once_over_any_resizes(n_samples, worlds, local_batch):
    sampler = ElasticSampler(n_samples, seed=1)
    assert sorted(used(sampler, worlds, local_batch)) == list(range(n_samples))
    assert sampler.exhausted


def test_a_constant_global_batch_is_shared_as_evenly_as_can_be():
    sampler = ElasticSampler(1000, global_batch=24)
    sizes = {n: [len(sampler.take(n).of(rank)) for rank in range(n)] for n in (3, 2, 5)}
    assert sizes == {3: [8] * 3, 2: [12] * 2, 5: [5, 5, 5, 5, 4]}


@pytest.mark.parametrize("world_size", [3, 2, 5])
def test_the_weighted_mean_is_that_of_one_process_over_the_same_samples(world_size):
    """Global batch 24 that 5 workers cannot share evenly (C10)."""
    values = np.random.default_rng(0).normal(size=(24, 3))

    def rank(session):
        with kf.Job(session, local_batch=1, learning_rate=0.1, config=Config()) as job:
            for indices in job.batches(ElasticSampler(24, global_batch=24)):
                grad = values[indices].mean(axis=0)
                job.step([grad])
        return grad

    for grad in kf.inproc_world(world_size, rank):
        np.testing.assert_allclose(grad, values.mean(axis=0), rtol=1e-12)


def test_a_rank_without_a_sample_takes_part_with_weight_zero():
    values = np.arange(5.0)

    def rank(session):
        steps = []
        monitors = [kf.monitors.GradientNoiseScale()]
        with kf.Job(
            session, local_batch=1, learning_rate=0.1, config=Config(), monitors=monitors
        ) as job:
            for indices in job.batches(5, shuffle=False):
                stand_in = job.steps == 1 and job.rank == 2
                grad = values[indices] * (np.nan if stand_in else 1.0)
                job.step([grad], loss=float(values[indices].mean()))
                steps.append((grad[0], job.metrics["loss"], job.controller.samples))
        return steps

    for steps in kf.inproc_world(3, rank):
        assert steps == [(1.0, 1.0, 3), (3.5, 3.5, 5)]


def test_a_position_resumes_at_another_world_size():
    first = ElasticSampler(50, seed=9)
    for _ in range(3):
        first.take(4, 8)
    resumed = ElasticSampler(50, seed=9)
    resumed.load_state_dict(first.state_dict())
    assert (resumed.samples, resumed.position) == (24, 24)
    assert used(resumed, [3], 3) == used(first, [5], 5), "the rest differs by world size"
    first.next_epoch()
    resumed.load_state_dict(first.state_dict())
    assert used(resumed, [2], 3) == used(first, [2], 3)
    assert resumed.samples == 100


def test_state_of_other_data_is_refused_by_name():
    state = ElasticSampler(50, seed=9).state_dict()
    with pytest.raises(UsageError, match="n_samples 50, this one has 40"):
        ElasticSampler(40, seed=9).load_state_dict(state)
    with pytest.raises(UsageError, match="seed 9, this one has 0"):
        ElasticSampler(50).load_state_dict(state)
    with pytest.raises(UsageError, match="a sampler's state has"):
        ElasticSampler(50).load_state_dict({"epoch": 1})
    with pytest.raises(UsageError, match=r"position must be in \[0, 50\], got 51"):
        ElasticSampler(50, seed=9).load_state_dict({**state, "position": 51})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ElasticSampler(0), "n_samples must be >= 1, got 0"),
        (lambda: ElasticSampler(3, global_batch=0), "global_batch must be >= 1, got 0"),
        (lambda: ElasticSampler(3).take(2), "give take"),
        (lambda: ElasticSampler(3).take(0, 1), "must be >= 1, got 0, 1"),
        (lambda: DataPass(3, seed=-1, epoch=0), "must be >= 0, got 3, -1, 0"),
    ],
)
def test_what_cannot_be_sampled_is_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()
