"""Jobs over several ranks: the same numbers, the same decisions, at the same step."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kfcore as kf
from kfcore.config import Config
from kfcore.controller import Controller
from kfcore.errors import ConflictingProposals
from kfcore.policy.load import load_policy
from kfcore.policy.replay import replay

ROOT = Path(__file__).resolve().parents[2]
GROW_BATCH = f"{ROOT}/examples/policies/grow_batch.py:GrowBatch"
ALONE = Config()  # keeps the environment out


class Line:
    """Least squares in five dimensions, plain NumPy: a `kfcore.task.Task`."""

    def __init__(self, n_samples: int = 203) -> None:
        rng = np.random.default_rng(1)
        self.n_samples = n_samples
        self.x = rng.normal(size=(n_samples, 5))
        self.y = self.x @ np.arange(5.0) + 3 * rng.normal(size=n_samples)
        self.weights = np.zeros(5)
        self.grad = np.zeros(5)

    def gradients(self, indices):
        error = self.x[indices] @ self.weights - self.y[indices]
        self.grad[:] = 2 * self.x[indices].T @ error / len(indices)
        return float(np.mean(error**2)), [self.grad]

    def apply(self, learning_rate):
        self.weights -= learning_rate * self.grad

    def evaluate(self):
        return {"loss": float(np.mean((self.x @ self.weights - self.y) ** 2))}


def job_on(session: kf.Session, *policies: kf.Policy, **more: Any) -> kf.Job:
    return kf.Job(
        session,
        **{
            "local_batch": 8,
            "learning_rate": 0.02,
            "policies": policies,
            "config": ALONE,
            **more,
        },
    )


def trained(world_size: int, local_batch: int) -> list[np.ndarray]:
    def rank(session):
        task = Line()
        with job_on(session, local_batch=local_batch) as job:
            job.train(task, epochs=3)
            assert job.controller.samples == 3 * (203 - 203 % 1)
        return task.weights

    return kf.inproc_world(world_size, rank)


def test_any_number_of_workers_trains_the_same_model():
    # 203 samples: the last batch of each pass is shared unevenly, so this proves the weighting.
    (alone,) = trained(1, 24)
    for world_size, local_batch in [(2, 12), (3, 8), (4, 6)]:
        ranks = trained(world_size, local_batch)
        for weights in ranks:
            np.testing.assert_array_equal(weights, ranks[0])
            np.testing.assert_allclose(weights, alone, rtol=1e-10)


def decisions(log: Path, kind: str = "installed") -> list[tuple[Any, ...]]:
    events = [json.loads(line) for line in log.read_text().splitlines()]
    return [
        (event["step"], event["what"], event["old"], event["new"], event["policy"])
        for event in events
        if event["kind"] == kind
    ]


def test_job_and_controller_take_the_same_actions_from_the_same_gradients(tmp_path):
    """The real driver (a rank a thread) and the simulator's (arrays) decide alike."""
    log = tmp_path / "events.jsonl"
    fed: list[dict[str, Any]] = [{} for _ in range(4)]  # what each rank measured, by step

    def rank(session):
        task = Line(400)
        with job_on(
            session, load_policy(GROW_BATCH), local_batch=2, log=log, record=True
        ) as job:
            for _ in range(6):
                for indices in job.batches(task.n_samples):
                    loss, grads = task.gradients(indices)
                    local_sq = float(grads[0] @ grads[0])
                    outcome = job.step(grads, loss=loss)
                    global_sq = float(grads[0] @ grads[0])
                    fed[session.rank][job.steps] = (loss, local_sq, len(indices), global_sq)
                    task.apply(job.learning_rate)
                    assert not outcome.skipped
                fed[session.rank][f"epoch {job.epoch}"] = job.steps
            return job.local_batch

    batches = kf.inproc_world(4, rank)
    assert len(set(batches)) == 1
    assert batches[0] > 2, "the policy must have acted, or the test shows nothing"

    events: list[dict[str, Any]] = []
    twin = Controller(
        world_size=4,
        local_batch=2,
        learning_rate=0.02,
        policies=[load_policy(GROW_BATCH)],
        on_event=events.append,
    )
    twin.train_begin()
    ends = {value for key, value in fed[0].items() if isinstance(key, str)}
    for step in range(1, max(key for key in fed[0] if isinstance(key, int)) + 1):
        loss, local_sq, samples, global_sq = np.array([f[step] for f in fed]).T
        sums, maxes = twin.fill(kf.LocalStep(loss=loss, grad_sq_norm=local_sq, samples=samples))
        twin.step_done(sums.sum(axis=0), maxes.max(axis=0), grad_sq_norm=global_sq[0])
        if step in ends:
            twin.epoch_done()
    for kind in ("proposed", "installed"):
        expected = [
            (e["step"], e["what"], e["old"], e["new"], e["policy"])
            for e in events
            if e["kind"] == kind
        ]
        assert decisions(log, kind) == expected

    replayed = replay(load_policy(GROW_BATCH), log)
    assert [(r.step, r.action.setting()[1]) for r in replayed] == [
        (step, new) for step, _, _, new, _ in decisions(log, "proposed")
    ]


def test_all_ranks_install_at_the_same_step():
    class At(kf.Policy):
        def after_step(self, seen):
            return {
                2: kf.SetLocalBatch(4),
                5: kf.SetSchedule("binary_tree"),
                8: [kf.SetSchedule("star(root=2)"), kf.SetLearningRate(0.5)],
            }.get(seen.step)

    def rank(session):
        job = job_on(session, At())
        out = []
        for step in range(12):
            grad = np.full(1000, float(session.rank + step))
            job.step([grad])
            assert np.all(grad == 1.5 + step)  # a change never changes numbers
            out.append((job.local_batch, session.schedule, job.learning_rate))
        return out

    histories = kf.inproc_world(4, rank)
    assert all(history == histories[0] for history in histories)
    assert histories[0][1] == (8, "ring", 0.02)
    assert histories[0][2] == (4, "ring", 0.02)
    assert histories[0][5] == (4, "binary_tree", 0.02)
    assert histories[0][8] == (4, "star(root=2)", 0.5)


def test_a_rank_that_proposes_alone_changes_nothing_and_all_learn_of_it():
    class Odd(kf.Policy):
        def __init__(self, rank):
            self.rank = rank

        def after_step(self, seen):
            return kf.SetLocalBatch(64) if (seen.step, self.rank) == (3, 1) else None

    def rank(session):
        job = job_on(session, Odd(session.rank))
        texts = []
        for _ in range(6):
            try:
                job.step([np.ones(4)])
            except ConflictingProposals as error:
                texts.append((job.steps, str(error)))
        assert job.local_batch == 8
        return texts

    for texts in kf.inproc_world(3, rank):
        ((step, text),) = texts
        assert step == 4
        assert "ranks 0 and 2: step 4, view 1, configuration 0" in text
        assert "rank 1: step 4" in text
        assert "local_batch = 64 (policy Odd)" in text


def test_agreement_and_signals_add_no_message():
    class Chatty(kf.Policy):
        monitors = (kf.monitors.GradientNoiseScale(),)

        def signals(self, local):
            return {f"s{i}": kf.Sum(i) for i in range(8)}

    def counted(*policies):
        def rank(session):
            job = job_on(session, *policies)
            for _ in range(10):
                job.step([np.ones(5000, np.float32)])
            with_job = session.stats().messages_sent
            for _ in range(10):
                session.all_reduce(np.ones(5000, np.float32))
            return with_job, session.stats().messages_sent - with_job

        return kf.inproc_world(3, rank)

    plain = counted()
    assert counted(Chatty()) == plain
    for with_job, bare in plain:
        assert with_job == bare


def test_a_gradient_that_is_not_finite_on_one_rank_is_skipped_by_all():
    bad = {5: (1, np.nan), 9: (2, np.inf)}

    def rank(session):
        task = Line()
        job = job_on(session, load_policy(GROW_BATCH))
        skipped = []
        for step in range(1, 13):
            loss, grads = task.gradients(np.arange(8) + 8 * session.rank)
            where, value = bad.get(step, (-1, 0.0))
            if where == session.rank:
                grads[0][2] = value
            if job.step(grads, loss=loss).skipped:
                skipped.append(step)
            else:
                task.apply(job.learning_rate)
        assert np.isfinite(job.metrics["gns_sqr"])
        return skipped, task.weights.tolist()

    ranks = kf.inproc_world(3, rank)
    assert ranks[0][0] == [5, 9]
    assert all(r == ranks[0] for r in ranks)


def test_interference_policy_switches_a_real_session():
    """Votes come from measured rates; a clock that runs slow for communication makes them."""

    def rank(session):
        clock = FakeClock()
        job = job_on(
            session,
            load_policy("InterferenceSchedule('star(root=1)', reference_step=3)"),
            clock=clock,
        )
        out = []
        for step in range(12):
            clock.tick_s = 0.1 if step < 6 else 0.2
            job.step([np.ones(10)])
            out.append(session.schedule)
        return out

    for schedules in kf.inproc_world(3, rank):
        assert schedules[:7] == ["ring"] * 7
        assert schedules[-1] == "star(root=1)"
        assert sorted(set(schedules)) == ["ring", "star(root=1)"]


def test_a_rank_that_sleeps_is_named_within_20_steps(tmp_path):
    log = tmp_path / "events.jsonl"

    def rank(session):
        policy = load_policy("NameStragglers")
        with job_on(session, policy, log=log) as job:
            for _ in range(20):
                time.sleep(0.06 if session.rank == 1 else 0.02)
                job.step([np.ones(100)])
        return policy.stragglers

    stragglers = kf.inproc_world(3, rank)
    assert all(named == stragglers[0] for named in stragglers)
    assert 1 in stragglers[0]
    assert "rank 1 is slow: computed for 0." in log.read_text()


@pytest.mark.processes
def test_kf_run_trains_the_example_on_four_real_processes(tmp_path):
    pytest.importorskip("sklearn")
    rows, events = tmp_path / "rows.jsonl", tmp_path / "events.jsonl"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "kfcore", "run", "-n", "4", "--policy", GROW_BATCH),
            *(sys.executable, "examples/digits.py", "--epochs", "6"),
            *("--log", rows, "--events", events, "--record"),
        ],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "4 workers, " in done.stdout
    steps = [json.loads(line) for line in rows.read_text().splitlines()]
    assert [row["step"] for row in steps] == list(range(1, len(steps) + 1))
    assert steps[-1]["loss"] < steps[0]["loss"] / 2
    changes = decisions(events)
    assert steps[-1]["local_batch"] == changes[-1][3] > steps[0]["local_batch"] == 8
    replayed = replay(load_policy(GROW_BATCH), events)
    assert [(r.step, "local_batch", r.action.local_batch) for r in replayed] == [
        (step, what, new) for step, what, _, new, _ in decisions(events, "proposed")
    ]


class FakeClock:
    """Each reading is one tick after the last."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.tick_s = 0.1

    def __call__(self) -> float:
        self.now_s += self.tick_s
        return self.now_s


@pytest.mark.filterwarnings("ignore:metric gns is undefined")
@pytest.mark.parametrize("world_size", [1, 4])
def test_digits_learn_with_the_example_policy(world_size):
    pytest.importorskip("sklearn")
    examples = _load(ROOT / "examples" / "digits.py")

    def rank(session):
        task = examples.Digits()
        with job_on(
            session,
            load_policy(GROW_BATCH),
            local_batch=32 // world_size,
            learning_rate=0.5,
        ) as job:
            result = job.train(task, epochs=6)
            return result, job.local_batch, [p.tolist() for p in task.model.parameters()]

    ranks = kf.inproc_world(world_size, rank)
    for result, local_batch, weights in ranks:
        assert result["accuracy"] > 0.9
        assert local_batch > 8 or world_size == 1
        assert weights == ranks[0][2]


def _load(path: Path) -> Any:
    import importlib.util

    spec = importlib.util.spec_from_file_location("digits_example", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
