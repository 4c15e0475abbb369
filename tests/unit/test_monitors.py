"""Monitors against closed forms: noise scale, gain, efficiency, money."""

import warnings
from typing import Any

import numpy as np
import pytest

import kfcore as kf
from kfcore.accumulation import Accumulator
from kfcore.config import Config
from kfcore.controller import Controller, LocalStep
from kfcore.errors import UsageError
from kfcore.monitors import (
    AdaScaleGain,
    GradientNoiseScale,
    Money,
    StatisticalEfficiency,
    Undefined,
)

ALONE = Config()


def metrics_of(
    gradients: list[list[float]],
    batch: int,
    monitors: list[Any],
    *,
    ranks: int | None = None,
    divided: bool = False,
) -> list[dict[str, Any]]:
    """One real step in which each rank has one gradient, or accumulates its share of them."""
    world_size = len(gradients) if ranks is None else ranks
    share = len(gradients) // world_size

    def rank(session):
        job = kf.Job(
            session, local_batch=batch, learning_rate=1.0, monitors=monitors, config=ALONE
        )
        parts = Accumulator(share, divided=divided)
        for gradient in gradients[session.rank * share : (session.rank + 1) * share]:
            parts.add([np.array(gradient, np.float32) / (share if divided else 1)])
        mean, norms = parts.finish()
        job.step(mean, micro=norms)
        return dict(job.metrics)

    return kf.inproc_world(world_size, rank)


@pytest.mark.parametrize(
    ("batch", "gradients", "sqr", "var", "gns"),
    [
        (8, [[3, 0], [1, 0]], 3, 16, 16 / 3),
        (16, [[1, 2], [3, 4], [5, 6], [7, 8]], 37.6667, 213.333, 5.66372),
        (8, [[2, 1], [2, 1]], 5, 0, 0),
    ],
)
def test_noise_scale_of_known_gradients(batch, gradients, sqr, var, gns):
    for metrics in metrics_of(gradients, batch, [GradientNoiseScale()]):
        assert metrics["gns_sqr"] == pytest.approx(sqr, rel=1e-5)
        assert metrics["gns_var"] == pytest.approx(var, rel=1e-5, abs=1e-5)
        assert metrics["gns"] == pytest.approx(gns, rel=1e-5, abs=1e-6)


def test_noise_scale_of_synthetic_gradients_is_found_within_a_tenth():
    rng = np.random.default_rng(0)
    mean, sigma, batch = rng.normal(size=50), 2.0, 4
    job = Controller(
        world_size=4,
        local_batch=batch,
        learning_rate=1.0,
        monitors=[GradientNoiseScale(decay=0.999)],
    )
    for _ in range(2000):
        local = mean + sigma / np.sqrt(batch) * rng.normal(size=(4, 50))
        sums, maxes = job.fill(LocalStep(grad_sq_norm=(local**2).sum(axis=1)))
        whole = local.mean(axis=0)
        job.step_done(sums.sum(axis=0), maxes.max(axis=0), grad_sq_norm=float(whole @ whole))
    assert job.metrics["gns"] == pytest.approx(50 * sigma**2 / (mean @ mean), rel=0.1)


def test_noise_scale_is_a_ratio_of_bias_corrected_averages():
    # S = 16 twice, |G|^2 = 3, 1: neither 5.714 (first-value start) nor 6.4 (mean of ratios).
    job = Controller(
        world_size=2, local_batch=8, learning_rate=1.0, monitors=[GradientNoiseScale()]
    )
    for sqr in (3.0, 1.0):
        local, whole = sqr + 16 / 8, sqr + 16 / 16
        sums, maxes = job.fill(LocalStep(grad_sq_norm=np.full(2, local)))
        job.step_done(sums.sum(axis=0), maxes.max(axis=0), grad_sq_norm=whole)
    assert job.metrics["gns"] == pytest.approx(8.2162, abs=1e-4)


def step(job: Controller, local_sq: float, mean_sq: float, micro_steps: int = 1) -> None:
    sums, maxes = job.fill(LocalStep(grad_sq_norm=np.full(job.world_size, local_sq)))
    job.step_done(
        sums.sum(axis=0), maxes.max(axis=0), grad_sq_norm=mean_sq, micro_steps=micro_steps
    )


def test_adascale_gain_of_known_moments():
    # sigma^2 = 3 and mu^2 = 1 at the base batch of 8, now 4 times that: 4 / (3 / 4 + 1).
    job = Controller(
        world_size=4, local_batch=8, learning_rate=1.0, monitors=[AdaScaleGain(base_batch=8)]
    )
    step(job, local_sq=1 + 3, mean_sq=1 + 3 / 4)
    assert job.metrics["gain"] == pytest.approx(2.2857, abs=1e-4)


GRADIENTS = [[3.0, 1.0], [1.0, -2.0], [2.0, 0.5], [4.0, 0.0]]


@pytest.mark.parametrize("divided", [False, True])
def test_gain_and_noise_do_not_depend_on_who_computed_the_gradients(divided):
    monitors = [AdaScaleGain(base_batch=4), GradientNoiseScale()]
    (reference, *_) = metrics_of(GRADIENTS, 4, monitors)
    assert 1 < reference["gain"] < 4
    for ranks, batch in ((1, 16), (2, 8)):
        for metrics in metrics_of(GRADIENTS, batch, monitors, ranks=ranks, divided=divided):
            for name in ("gain", "gns", "gns_sqr", "gns_var"):
                assert metrics[name] == pytest.approx(reference[name], rel=1e-5), name


def test_monitors_see_gradients_without_their_loss_scale():
    def rank(session):
        job = kf.Job(
            session,
            local_batch=8,
            learning_rate=1.0,
            monitors=[GradientNoiseScale()],
            config=ALONE,
        )
        job.step([np.array([3.0, 0.0]) / (1 + 2 * session.rank) * 1024], loss_scale=1024.0)
        return job.metrics["gns_sqr"], job.metrics["gns_var"]

    assert kf.inproc_world(2, rank) == [pytest.approx((3.0, 16.0))] * 2


def test_efficiency_follows_pollux():
    job = Controller(
        world_size=4,
        local_batch=8,
        learning_rate=1.0,
        monitors=[StatisticalEfficiency(base_batch=8), GradientNoiseScale()],
    )
    step(job, local_sq=1 + 3, mean_sq=1 + 3 / 4)
    assert job.metrics["gns"] == pytest.approx(24)
    assert job.metrics["efficiency"] == pytest.approx((24 + 8) / (24 + 32))


def test_one_gradient_has_no_gain_and_is_told_of_once():
    job = Controller(world_size=1, local_batch=8, learning_rate=1.0, monitors=[AdaScaleGain(8)])
    with pytest.warns(UserWarning, match=r"gain is undefined \(needs >= 2 gradients\)"):
        step(job, 4.0, 4.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(job, 4.0, 4.0)
    assert isinstance(job.metrics["gain"], Undefined)
    step(job, 4.0, 1.75, micro_steps=4)  # accumulation makes it defined
    assert job.metrics["gain"] == 1


def test_money_is_time_times_price_times_workers():
    job = Controller(world_size=4, local_batch=5, learning_rate=1.0, monitors=[Money(1800.0)])
    assert job.metrics["price_so_far"] == 0
    assert isinstance(job.metrics["price_per_step"], Undefined)
    for step_s in (np.nan, 2.0, 4.0):
        sums, maxes = job.fill(LocalStep(step_s=np.full(4, step_s)))
        job.step_done(sums.sum(axis=0), maxes.max(axis=0))
    assert job.metrics["price_per_step"] == pytest.approx(4 * 0.5 * 4)
    assert job.metrics["price_per_sample"] == pytest.approx(4 * 0.5 * 4 / 20)
    assert job.metrics["price_so_far"] == pytest.approx(4 * 0.5 * 6)


def test_time_exposed_is_what_computing_leaves():
    job = Controller(world_size=2, local_batch=1, learning_rate=1.0)
    local = LocalStep(step_s=np.array([3.0, 3.0]), compute_s=np.array([1.0, 2.0]))
    sums, maxes = job.fill(local)
    job.step_done(sums.sum(axis=0), maxes.max(axis=0))
    assert job.metrics["exposed_s"] == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: AdaScaleGain(0), "base_batch must be >= 1, got 0"),
        (lambda: StatisticalEfficiency(8, decay=1.0), "decay must be in"),
        (lambda: Money(-1.0), "price_per_worker_hour must be >= 0"),
        (lambda: Accumulator(0), "count must be >= 1"),
        (lambda: Accumulator(2).finish(), "has 2 micro-batches, got 0"),
    ],
)
def test_arguments_out_of_range_are_refused(make, match):
    with pytest.raises(UsageError, match=match):
        make()


def test_a_step_has_as_many_micro_batches_as_it_said():
    parts = Accumulator(1)
    parts.add([np.ones(2)])
    with pytest.raises(UsageError, match="has 1 micro-batches, got another one"):
        parts.add([np.ones(2)])
