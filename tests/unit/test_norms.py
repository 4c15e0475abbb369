"""Norms that the all-reduce sums on its way: what monitors get, and when they are not asked."""

import math
from typing import Any

import numpy as np
import pytest

import kfcore as kf
from kfcore.config import Config
from kfcore.norms import StepNorms

ALONE = Config()  # keeps the environment out
NOISE = kf.monitors.GradientNoiseScale(decay=0.0)


def gradient(rank: int, dtype: Any, size: int = 4099) -> np.ndarray:
    return np.random.default_rng(rank).normal(1.0, 1.0, size).astype(dtype)


def metrics_of(n: int, dtype: Any, *, policies: Any = (), scale: float = 1.0) -> list[Any]:
    def rank(session: kf.Session) -> Any:
        job = kf.Job(
            session,
            local_batch=4,
            learning_rate=0.1,
            monitors=[NOISE],
            policies=[policy() for policy in policies],
            config=ALONE,
        )
        job.step([gradient(session.rank, dtype) * np.asarray(scale, dtype)], loss_scale=scale)
        return [job.metrics[name] for name in ("gns", "gns_sqr", "gns_var")]

    return kf.inproc_world(n, rank)


def by_hand(n: int, dtype: Any) -> tuple[float, float]:
    grads = [gradient(rank, dtype).astype(np.float64) for rank in range(n)]
    small, whole = np.mean([g @ g for g in grads]), np.mean(grads, axis=0)
    large, b, big = whole @ whole, 4, 4 * n
    return (big * large - b * small) / (big - b), (small - large) / (1 / b - 1 / big)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(np.float32, 1e-5), (np.float64, 1e-10), (np.float16, 2e-2)]
)
def test_monitors_get_the_norms_of_the_gradients_whatever_their_type(dtype, tolerance):
    found = metrics_of(3, dtype)
    sqr, var = by_hand(3, dtype)
    assert found[0][1] == pytest.approx(sqr, rel=tolerance)
    assert found[0][2] == pytest.approx(var, rel=tolerance)
    assert found[0] == found[1] == found[2]  # the same bits


def test_the_loss_scale_is_taken_out_of_both_norms():
    plain, scaled = metrics_of(2, np.float64), metrics_of(2, np.float64, scale=1024.0)
    assert plain == scaled  # a power of two changes no digit


class Loudest(kf.Policy):
    """Hands in a signal made of the norm, which therefore must be known before."""

    def signals(self, local):
        return {"loudest": kf.Max(local.grad_sq_norm)}

    def after_step(self, seen):
        assert seen.signals["loudest"] == pytest.approx(
            max(float(np.sum(gradient(rank, np.float64) ** 2)) for rank in range(2))
        )


class Waits(kf.Policy):
    """Hands in another one."""

    def signals(self, local):
        return {"waits": kf.Max(local.comm_s)}


def test_a_signal_of_the_norm_is_of_this_step():
    with_signal = metrics_of(2, np.float64, policies=[Loudest])
    assert with_signal[0] == pytest.approx(metrics_of(2, np.float64)[0])


@pytest.mark.parametrize(("policy", "read"), [(Loudest, True), (Waits, False)])
def test_it_is_known_which_signals_need_the_norm(policy, read):
    job = kf.Job(None, local_batch=1, learning_rate=0.1, policies=[policy()], config=ALONE)
    assert job.controller.signals_read_norm is read


def test_a_gradient_that_is_not_finite_on_one_rank_is_skipped_by_all():
    def rank(session: kf.Session) -> Any:
        job = kf.Job(session, local_batch=4, learning_rate=0.1, monitors=[NOISE], config=ALONE)
        skipped = []
        for step in range(3):
            grad = gradient(session.rank, np.float32)
            if step == session.rank == 1:
                grad[7] = math.inf
            skipped.append(job.step([grad]).skipped)
        return skipped

    assert kf.inproc_world(2, rank) == [[False, True, False]] * 2


def test_without_a_session_they_are_summed_beside():
    views = [gradient(0, np.float32), gradient(1, np.float64)]
    norms = StepNorms(views, inside=False, local=True, divisor=4.0)
    expected = sum(float(np.sum(view.astype(np.float64) ** 2)) for view in views) / 4
    assert norms.inside(np.zeros(16)) is None
    assert norms.local == pytest.approx(expected)
    assert norms.mean() == pytest.approx(expected)
