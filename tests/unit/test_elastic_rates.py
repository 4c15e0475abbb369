"""Learning rates keyed to samples."""

import math

import numpy as np
import pytest

import kfcore as kf
from kfcore.config import Config
from kfcore.elastic import ElasticSampler, ElasticState, Image
from kfcore.elastic.rates import Constant, Cosine, Steps, WarmUp
from kfcore.errors import UsageError

WARM_UP = WarmUp(6400, then=0.1)


def rates(session, *, until, local_batch, global_batch=None, image=None):
    """Learning rate by samples seen, and the state at the end."""
    sampler = ElasticSampler(6400, global_batch=global_batch)
    job = kf.Job(session, local_batch=local_batch, learning_rate=WARM_UP, config=Config())
    state = ElasticState(job=job, sampler=sampler)
    if image is not None:
        state.load(image, 0)
    out = {}
    for _ in job.batches(sampler):
        job.step([np.ones(1)])
        out[job.controller.samples] = job.learning_rate
        if job.controller.samples >= until:
            break
    state.commit(job.steps)
    return out, Image.of(state.image().tree())


def world(size, **more):
    return kf.inproc_world(size, lambda session: rates(session, **more))[0]


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("global_batch", [64, 128])
def test_the_rate_after_so_many_samples_is_the_same_at_any_world_and_batch(
    world_size, global_batch
):
    """0.05 half-way through a warm-up to 0.1 (C8)."""
    seen, _ = world(world_size, until=3200, local_batch=global_batch // world_size)
    assert seen[3200] == pytest.approx(0.05, rel=1e-12)


def test_a_resize_on_the_way_does_not_move_the_rate():
    same = {"global_batch": 64, "local_batch": 32}
    first, image = world(2, until=1600, **same)
    second, _ = world(4, until=3200, image=image, **same)
    steady, _ = world(2, until=3200, **same)
    assert {**first, **second} == steady
    assert second[3200] == pytest.approx(0.05, rel=1e-12)


def test_policies_scale_the_peak():
    class Halve(kf.Policy):
        def after_step(self, seen):
            return kf.SetLearningRate(seen.learning_rate / 2) if seen.step == 1 else None

    job = kf.Job(
        None, local_batch=3200, learning_rate=WARM_UP, policies=[Halve()], config=Config()
    )
    seen = []
    for _ in job.batches(9600):
        job.step([np.ones(1)])
        seen.append(job.learning_rate)
    assert seen == pytest.approx([0.05, 0.05, 0.05])


def test_closed_forms():
    cosine = Cosine(0.4, 1000, end=0.1)
    assert [cosine(s) for s in (0, 500, 1000, 5000)] == pytest.approx([0.4, 0.25, 0.1, 0.1])
    assert cosine(250) == pytest.approx(0.1 + 0.3 * (1 + math.sqrt(0.5)) / 2)
    warm = WarmUp(100, then=cosine, start=0.2)
    assert warm(0) == 0.2
    assert warm(50) == pytest.approx((0.2 + cosine(100)) / 2)
    assert warm(100) == cosine(100)
    assert (warm.peak, Constant(0.3).peak, Constant(0.3)(9)) == (0.4, 0.3, 0.3)
    assert Steps(1.0, {20: 0.1, 10: 0.5})(15) == 0.5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WarmUp(0, then=0.1), "samples must be finite and > 0, got 0"),
        (lambda: WarmUp(1, then=-1), "rate must be finite and >= 0, got -1"),
        (lambda: Cosine(0.1, 10, end=0.2), "end must be <= rate 0.1, got 0.2"),
        (lambda: Constant(math.nan), "rate must be finite and >= 0, got nan"),
        (lambda: Steps(0.1, {5: 2}), r"factor must be in \[0, 1\], got 2 at 5"),
    ],
)
def test_impossible_rates_are_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()
