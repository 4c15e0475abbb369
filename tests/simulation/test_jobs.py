"""Simulated jobs: time adds up, actions take effect, and both worlds decide alike."""

import itertools
from typing import Any

import numpy as np
import pytest

import kfcore as kf
from kfcore.config import Config
from kfcore.errors import UsageError
from kfcore.policy import Observation, Resize, SetLocalBatch, SetSchedule, Stop
from kfsim import simulate
from kfsim.scenario import parse

GRADIENT_BYTES = 25_583_592 * 4


def scenario(**tables: Any):
    raw: dict[str, Any] = {
        "run": {"steps": 6},
        "cluster": {"hosts": 4, "nic_gbps": 8.0, "latency_us": 0},
        "workload": {"model": "resnet50", "samples_per_s": 100.0, "local_batch": 32},
        "system": {"kind": "kf", "overlap": False, "bucket_mib": 1000.0},
    }
    for name, table in tables.items():
        old = raw.get(name)
        raw[name] = {**old, **table} if isinstance(old, dict) else table
    return parse(raw)


class Script(kf.Policy):
    """Asks for given actions after given steps."""

    def __init__(self, actions: dict[int, Any]) -> None:
        self.actions = actions

    def after_step(self, seen: Observation) -> Any:
        return self.actions.get(seen.step)


def test_step_time_is_compute_plus_ring_without_overlap():
    rows = simulate(scenario()).rows
    ring_s = 2 * 3 / 4 * GRADIENT_BYTES / 1e9
    for row in rows:
        assert row["step_s"] == pytest.approx(0.32 + ring_s, abs=1e-6)  # and the control block
        assert row["throughput_samples_per_s"] == pytest.approx(128 / row["step_s"])
    assert rows[-1]["time_s"] == pytest.approx(sum(r["step_s"] for r in rows), abs=1e-8)


def test_overlap_hides_communication_but_sends_the_same_bytes():
    apart = simulate(scenario(system={"bucket_mib": 4.0})).summary
    hidden = simulate(scenario(system={"bucket_mib": 4.0, "overlap": True})).summary
    assert 0 < hidden["exposed_s"] < 0.5 * apart["exposed_s"]
    assert hidden["step_s"] == pytest.approx(0.32 + hidden["exposed_s"])
    assert hidden["bytes_sent_per_rank_step"] == apart["bytes_sent_per_rank_step"]


def test_one_worker_has_nothing_to_wait_for():
    alone = simulate(scenario(cluster={"hosts": 1}))
    assert [row["step_s"] for row in alone.rows] == pytest.approx([0.32] * 6)
    assert alone.summary["bytes_sent_per_rank_step"] == 0


def test_a_straggler_slows_all_ranks_while_it_lasts():
    slow = [{"rank": 2, "factor": 2.0, "start_step": 3, "stop_step": 5}]
    steps = [r["step_s"] for r in simulate(scenario(workload={"stragglers": slow})).rows]
    for step, step_s in enumerate(steps, start=1):
        extra = 0.32 if step in (3, 4) else 0.0
        assert step_s == pytest.approx(steps[0] + extra, abs=1e-9), step


def test_batch_and_schedule_actions_take_effect_one_step_after_the_proposal():
    policy = Script({2: [SetLocalBatch(64), SetSchedule("star")]})
    rows = simulate(scenario(), [policy]).rows
    assert [row["local_batch"] for row in rows] == [32, 32, 32, 64, 64, 64]
    assert [row["schedule"] for row in rows] == ["ring"] * 3 + ["star"] * 3
    assert rows[3]["compute_s"] == pytest.approx(0.64)
    assert rows[3]["comm_s"] == pytest.approx(6 * GRADIENT_BYTES / 1e9, rel=1e-4)


def test_resize_changes_the_world_and_costs_its_time():
    policy = Script({1: Resize(6), 3: Resize(2)})
    result = simulate(scenario(resize={"join_s": 20.0, "leave_s": 0.5}), [policy])
    assert [row["world_size"] for row in result.rows] == [4, 4, 6, 6, 2, 2]
    gaps = [b["time_s"] - a["time_s"] - b["step_s"] for a, b in itertools.pairwise(result.rows)]
    assert gaps == pytest.approx([0, 20.0, 0, 0.5, 0], abs=1e-8)


def test_the_scenario_can_impose_a_resize():
    rows = simulate(scenario(events=[{"step": 2, "workers": 3}])).rows
    assert [row["world_size"] for row in rows] == [4, 4, 4, 3, 3, 3]


def test_stop_ends_the_job_at_the_next_boundary():
    assert len(simulate(scenario(), [Script({2: Stop(reason="enough")})]).rows) == 3


def test_interference_policy_leaves_the_disturbed_root():
    """The rule of KungFu's Fig. 5 on its setting: 8 VMs, a star, traffic at its root."""
    disturbed = scenario(
        run={"steps": 30},
        cluster={"hosts": 8, "nic_gbps": 7.0},
        workload={"samples_per_s": 49.5},
        system={"schedule": "star", "overlap": True, "bucket_mib": 25.0},
        # Five connections beside the root's seven leave it 4.1 of 7 Gbit/s; the log shows 4.0.
        interference=[{"host": 0, "flows": 5, "start_step": 15}],
    )
    steps = [row["step_s"] for row in simulate(disturbed).rows]
    adapted = simulate(disturbed, ["InterferenceSchedule"])
    changes = [e for e in adapted.events if e["kind"] == "installed"]
    assert [(c["what"], c["new"]) for c in changes] == [("schedule", "star(root=1)")]
    assert 15 < changes[0]["step"] <= 19
    normal, hit = steps[10], steps[20]
    assert hit > 1.25 * normal
    assert adapted.rows[-1]["step_s"] < normal + 0.1 * (hit - normal)


def test_noise_law_reaches_the_policy_and_the_batch_grows():
    growing = scenario(
        run={"steps": 60},
        workload={"samples_per_epoch": 1024},
        noise={"epochs": [0, 5], "noise_scale": [100, 20_000]},
    )
    rows = simulate(growing, ["NoiseScaleBatch"]).rows
    assert rows[-1]["noise_scale"] > 10 * rows[0]["noise_scale"]
    batches = [row["local_batch"] for row in rows]
    assert batches[0] == 32
    assert batches[-1] >= 128
    assert batches == sorted(batches)


def test_the_monitor_recovers_the_noise_scale_of_the_law():
    class Watch(kf.Policy):
        monitors = (kf.monitors.GradientNoiseScale(decay=0.9),)

    steady = scenario(run={"steps": 30}, noise={"epochs": [0], "noise_scale": [1500.0]})
    assert simulate(steady, [Watch()]).rows[-1]["noise_scale"] == pytest.approx(1500, rel=1e-9)


class Line:
    """Least squares in five dimensions: a `kfcore.task.Task`."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self.n_samples = 203
        self.x = rng.normal(size=(self.n_samples, 5))
        self.y = self.x @ np.arange(5.0) + 3 * rng.normal(size=self.n_samples)
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


class Grow(kf.Policy):
    """Acts on what is measured, so that equal actions mean equal measurements."""

    monitors = (kf.monitors.GradientNoiseScale(decay=0.5),)

    def after_epoch(self, seen: Observation) -> Any:
        if seen.metrics["gns"] > seen.global_batch / 4 and seen.local_batch < 16:
            return SetLocalBatch(seen.local_batch * 2, reason="noise")
        return None


def test_real_ranks_and_simulated_ones_train_the_same_model_and_act_alike():
    def rank(session):
        task, seen = Line(), []
        with kf.Job(
            session, local_batch=2, learning_rate=0.02, policies=[Grow()], config=Config()
        ) as job:
            job.train(
                task,
                epochs=4,
                on_step=lambda job, _: seen.append((job.local_batch, job.metrics["loss"])),
            )
        return task.weights, seen

    (weights, seen), *_ = kf.inproc_world(4, rank)
    task = Line()
    steps = {"steps": len(seen)}
    start = {"local_batch": 2, "learning_rate": 0.02}
    simulated = simulate(scenario(run=steps, workload=start), [Grow()], task)
    assert len({batch for batch, _ in seen}) > 1, "nothing changed: the test shows nothing"
    # A row says what was in force in its step; the real log what is in force after it.
    assert [row["local_batch"] for row in simulated.rows[1:]] == [b for b, _ in seen[:-1]]
    losses = [row["loss"] for row in simulated.rows]
    np.testing.assert_allclose(losses, [loss for _, loss in seen], rtol=1e-9)
    np.testing.assert_allclose(task.weights, weights, rtol=1e-9)
    assert simulated.summary["evaluation"] == task.evaluate()


def test_repeats_need_fresh_policies_and_vary_with_jitter():
    noisy = scenario(run={"repeats": 3}, workload={"jitter_sigma": 0.1})
    with pytest.raises(UsageError, match=r"run\.repeats is 3"):
        simulate(noisy, [Grow()])
    result = simulate(noisy)
    assert {row["repeat"] for row in result.rows} == {0, 1, 2}
    assert result.summary["throughput_std_samples_per_s"] > 0


def test_an_impossible_action_ends_the_run_with_an_error():
    with pytest.raises(UsageError, match="no_such_schedule"):
        simulate(scenario(), [Script({1: SetSchedule("no_such_schedule")})])


def test_rows_and_events_never_go_back_in_time():
    policy = Script({1: Resize(6), 3: SetLocalBatch(8)})
    result = simulate(scenario(workload={"jitter_sigma": 0.3}), [policy])
    for log in (result.rows, result.events):
        times = [item["time_s"] for item in log]
        assert len(times) > 3
        assert times == sorted(times)
