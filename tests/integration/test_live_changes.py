"""What policies change while a job runs: the same step on every rank, and the right numbers."""

import json
from typing import Any

import numpy as np
import pytest

import kfcore as kf
from kfcore.config import Config
from kfcore.errors import UsageError
from kfcore.model_averaging import partner_of

ALONE = Config()  # keeps the environment out


class Plan(kf.Policy):
    """Asks for given actions after given steps."""

    def __init__(self, plan: dict[int, Any]) -> None:
        self.plan = plan

    def after_step(self, seen):
        return self.plan.get(seen.step)


def job_on(session: kf.Session, plan: dict[int, Any], **more: Any) -> kf.Job:
    return kf.Job(
        session,
        **{
            "local_batch": 4,
            "learning_rate": 0.1,
            "policies": [Plan(plan)],
            "config": ALONE,
            **more,
        },
    )


def test_a_thousand_reductions_are_exact_while_schedule_and_buckets_change():
    schedules = ["binary_tree", "star(root=1)", "recursive_doubling", "from_parents(1,1,1)"]
    plan = {
        step: [
            kf.SetSchedule([*schedules, "ring"][step // 10 % 5]),
            kf.SetBucketBytes([64, 1 << 20, 4096][step // 10 % 3]),
        ]
        for step in range(10, 1000, 10)
    }

    def rank(session):
        job = job_on(session, plan)
        sizes = np.random.default_rng(7).integers(0, 600, size=(1000, 3))
        seen = set()
        for step, (a, b, c) in enumerate(sizes.tolist()):
            grads = [np.full(n, float(session.rank + step), np.float32) for n in (a, b, c)]
            job.step(grads)
            for grad in grads:
                assert (grad == 1 + step).all(), (step, job.schedule)
            seen.add((session.schedule, job.controller.bucket_bytes))
        return seen

    seen = kf.inproc_world(3, rank)
    assert len(seen[0]) >= 15  # every schedule met every bucket size
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize(
    ("spec", "factor", "tolerance"),
    [("f16", 2, 1e-3), ("bf16", 2, 1e-2), ("int8", 4, 1e-2), ("top_k(0.05)", 5, None)],
)
def test_compressed_gradients_send_fewer_bytes_and_lose_nothing_over_time(
    spec, factor, tolerance
):
    n, steps = 60_000, 40

    def rank(session):
        job = job_on(session, {1: kf.SetCompression(spec, reason="slow network")})
        rng = np.random.default_rng(session.rank)
        constant = rng.normal(size=n).astype(np.float32)
        sent, total, first = [], np.zeros(n), None
        for step in range(steps):
            before = session.stats().bytes_sent
            grads = [constant[: n // 3].copy(), constant[n // 3 :].copy()]
            job.step(grads)
            sent.append(session.stats().bytes_sent - before)
            if step >= 2:  # installed after step 2
                total += np.concatenate(grads)
                first = np.concatenate(grads) if first is None else first
        return constant, sent, total / (steps - 2), first

    ranks = kf.inproc_world(4, rank)
    true = np.mean([constant for constant, *_ in ranks], axis=0)
    for _, sent, mean, first in ranks:
        assert sent[-1] < 1.05 * sent[0] / factor
        np.testing.assert_array_equal(first, ranks[0][3])
        if tolerance is not None:
            assert np.abs(first - true).max() < 4 * tolerance
            # Error feedback: what a step loses comes later, so the mean converges as 1 / steps.
            assert np.abs(mean - true).max() < 10 * tolerance / steps
        else:
            assert np.count_nonzero(first) <= 0.2 * n
            assert np.abs(mean - true).mean() < np.abs(first - true).mean() / 2


@pytest.mark.parametrize("spec", ["none", "f16", "bf16", "int8", "top_k(0.1)"])
def test_a_gradient_that_is_not_finite_is_skipped_by_all_and_spoils_nothing_later(spec):
    def rank(session):
        job = job_on(session, {1: kf.SetCompression(spec)})
        skipped = []
        for step in range(1, 9):
            grad = np.ones(3000, np.float32)
            if (step, session.rank) in ((4, 1), (6, 2)):
                grad[77] = np.nan if step == 4 else np.inf
            if job.step([grad]).skipped:
                skipped.append(step)
            elif spec != "top_k(0.1)":
                np.testing.assert_array_equal(grad, 1)
        return skipped

    assert kf.inproc_world(3, rank) == [[4, 6]] * 3


class Quadratic:
    """|w - target|^2 / 2 with another target on each rank: a worker's own gradient differs."""

    def __init__(self, rank: int) -> None:
        self.weights = np.arange(6, dtype=np.float64)
        self.target = np.full(6, float(rank))

    def gradient(self) -> np.ndarray:
        return self.weights - self.target


def train(world_size: int, plan: dict[int, Any], steps: int, rate: float = 0.25) -> Any:
    def rank(session):
        task = Quadratic(session.rank)
        job = job_on(session, plan, parameters=[task.weights])
        history = []
        for _ in range(steps):
            grad = task.gradient()
            job.step([grad])
            task.weights -= rate * grad
            job.settle()
            history.append(task.weights.copy())
        return history

    return kf.inproc_world(world_size, rank)


def serial(world_size: int, steps: int, exchange: Any, rate: float = 0.25) -> list[np.ndarray]:
    """The same in one process; ``exchange(weights, step)`` works on [ranks, 6]."""
    weights = np.tile(np.arange(6, dtype=np.float64), (world_size, 1))
    targets = np.arange(world_size, dtype=np.float64)[:, None]
    history = []
    for step in range(1, steps + 1):
        grads = weights - targets
        if step <= 2:  # the mode is in force from step 3 on
            grads = np.tile(grads.mean(axis=0), (world_size, 1))
        weights = weights - rate * grads
        if step > 2:
            exchange(weights, step)
        history.append(weights.copy())
    return history


def towards_mean(alpha: float, every: int = 1) -> Any:
    def exchange(weights: np.ndarray, step: int) -> None:
        if step % every == 0:
            weights += alpha * (weights.mean(axis=0) - weights)

    return exchange


def in_pairs(weights: np.ndarray, step: int) -> None:
    before = weights.copy()
    for rank in range(len(weights)):
        peer = partner_of(rank, len(weights), step)
        if peer is not None:
            weights[rank] = (before[rank] + before[peer]) / 2


@pytest.mark.parametrize(
    ("mode", "exchange"),
    [
        ("local_sgd(3)", towards_mean(1.0, every=3)),
        ("sma(0.3)", towards_mean(0.3)),
        ("pair_averaging", in_pairs),
    ],
)
@pytest.mark.parametrize("world_size", [2, 3])
def test_sync_modes_equal_their_definition(mode, exchange, world_size):
    ranks = train(world_size, {1: kf.SetSyncMode(mode)}, steps=12)
    expected = serial(world_size, 12, exchange)
    for rank, history in enumerate(ranks):
        for step, weights in enumerate(history):
            np.testing.assert_allclose(weights, expected[step][rank], rtol=1e-12, atol=1e-12)


def test_going_back_to_allreduce_makes_the_models_equal_bit_by_bit():
    plan = {1: kf.SetSyncMode("pair_averaging"), 5: kf.SetSyncMode("allreduce")}
    ranks = train(3, plan, steps=9)
    assert not np.array_equal(ranks[0][4], ranks[1][4])
    for step in range(5, 9):  # installed at the boundary of step 6, equal after its update
        for history in ranks[1:]:
            np.testing.assert_array_equal(history[step], ranks[0][step])


def test_local_sgd_sends_gradients_nowhere():
    def rank(session):
        weights = np.ones(50_000)
        job = job_on(session, {1: kf.SetSyncMode("local_sgd(4)")}, parameters=[weights])
        sent = []
        for _ in range(12):
            before = session.stats().bytes_sent
            job.step([np.ones(50_000)])
            job.settle()
            sent.append(session.stats().bytes_sent - before)
        return sent

    for sent in kf.inproc_world(2, rank):
        assert [step for step, size in enumerate(sent, start=1) if size > 100_000] == [
            1,
            2,
            4,
            8,
            12,
        ]


def test_a_mode_that_averages_models_needs_them_and_the_call_after_the_update():
    def without(session):
        job = job_on(session, {1: kf.SetSyncMode("sma(0.1)")})
        with pytest.raises(UsageError, match=r"sync_mode sma\(0.1\): give the job"):
            job.step([np.ones(3)])

    kf.inproc_world(2, without)

    def forgetful(session):
        job = job_on(session, {1: kf.SetSyncMode("sma(0.1)")}, parameters=[np.ones(3)])
        for _ in range(3):
            job.step([np.ones(3)])
        with pytest.raises(UsageError, match=r"settle\(\) must be .* of step 3, because"):
            job.step([np.ones(3)])

    kf.inproc_world(2, forgetful)


def test_a_checkpoint_is_saved_by_all_after_the_update_of_one_step():
    def rank(session):
        saved: list[tuple[int, float]] = []
        weights = np.zeros(1)
        job = job_on(
            session,
            {3: kf.Checkpoint(reason="told to")},
            on_checkpoint=lambda job: saved.append((job.steps, float(weights[0]))),
        )
        for number in range(6):
            job.step([np.ones(2)])
            weights[0] = number + 1
            job.settle()
        return saved

    assert kf.inproc_world(2, rank) == [[(4, 4.0)]] * 2

    job = kf.Job(None, local_batch=1, learning_rate=0.1, policies=[Plan({1: kf.Checkpoint()})])
    with pytest.raises(UsageError, match="checkpoint 2: give the job an `on_checkpoint`"):
        job.step([np.ones(1)])


def test_every_change_is_logged_with_what_it_cost(tmp_path):
    log = tmp_path / "events.jsonl"

    def rank(session):
        plan = {
            1: [kf.SetSchedule("binary_tree", reason="why"), kf.SetHyper("momentum", 0.5)],
            2: [kf.SetCompression("int8"), kf.SetBucketBytes(1000)],
        }
        with job_on(session, plan, log=log, hyper={"momentum": 0.9}) as job:
            for _ in range(4):
                job.step([np.ones(3)])

    kf.inproc_world(2, rank)
    events = [json.loads(line) for line in log.read_text().splitlines()]
    installed = [event for event in events if event["kind"] == "installed"]
    assert [(e["step"], e["what"], e["old"], e["new"]) for e in installed] == [
        (2, "momentum", 0.9, 0.5),
        (2, "schedule", "ring", "binary_tree"),
        (3, "bucket_bytes", 64 << 20, 1000),
        (3, "compression", "none", "int8"),
    ]
    for event in installed:
        assert event["ms"] >= 0
        assert event["policy"] == "Plan"
        assert event["view_version"] == 1
    assert installed[1]["reason"] == "why"


def test_a_process_on_its_own_takes_every_change():
    plan = {
        1: [kf.SetSyncMode("pair_averaging"), kf.SetCompression("top_k(0.5)")],
        3: kf.SetSyncMode("allreduce"),
    }
    weights = np.zeros(4)
    job = job_on(None, plan, parameters=[weights])
    for _ in range(6):
        grad = np.ones(4)
        job.step([grad])
        weights -= grad
        job.settle()
    np.testing.assert_array_equal(weights, -6)
    assert job.controller.compression == "top_k(0.5)"
