"""Each built-in policy does what its formula says."""

import csv
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfcore.controller import Controller, LocalStep
from kfcore.errors import UsageError
from kfcore.monitors import Metrics, Undefined
from kfcore.policy import (
    Checkpoint,
    Exclude,
    Observation,
    Resize,
    SetCompression,
    SetLocalBatch,
    SetSyncMode,
)
from kfcore.policy.load import BUILT_IN, load_policy

DATA = Path(__file__).resolve().parents[1] / "data"


def seen(step: int = 1, **more: Any) -> Observation:
    values: dict[str, Any] = {
        "step": step,
        "epoch": 0,
        "world_size": 4,
        "local_batch": 32,
        "learning_rate": 0.1,
        "schedule": "ring",
        **more,
    }
    values.setdefault("global_batch", values["world_size"] * values["local_batch"])
    values["metrics"] = Metrics(values.get("metrics", {}))
    return Observation(**values)


def asked(returned: Any) -> list[Any]:
    return [] if returned is None else returned if isinstance(returned, list) else [returned]


# --- provisioning


def throughput_of(workers: int) -> float:
    """16 samples/s alone, each further worker brings 80 % of the one before."""
    return 16 * sum(0.8**i for i in range(workers))


def test_marginal_throughput_adds_workers_until_one_is_not_worth_it():
    policy = load_policy("MarginalThroughput(window=10)")
    workers, sizes = 1, [1]
    for step in range(1, 400):
        now = {"step_s": 8 * workers / throughput_of(workers)}
        for action in asked(
            policy.after_step(seen(step, world_size=workers, local_batch=8, metrics=now))
        ):
            workers = action.world_size
            sizes.append(workers)
    # T[n] / T[n-1] - 1 = 0.8^(n-1) / sum: 0.8 0.36 0.21 0.14 0.10 ... against 1 / (3 n).
    worth = [throughput_of(n) >= (1 + 1 / (3 * n)) * throughput_of(n - 1) for n in range(2, 20)]
    last = 1 + worth.index(False)
    assert sizes == [*range(1, last + 2), last]
    assert policy.ended


# --- learning rates


def test_linear_and_square_root_scaling_ramp_to_their_target():
    for name, target in (("LinearScaling", 0.4), ("SqrtScaling", 0.2)):
        policy = load_policy(f"{name}(base_batch=32, warmup_steps=4)")
        rate, rates = 0.1, []
        for step in range(8):
            hook = policy.after_step if step else policy.before_train
            for action in asked(hook(seen(step, learning_rate=rate))):
                rate = action.learning_rate
            rates.append(rate)
        steps = [0.1 + (target - 0.1) * min(1, (i + 1) / 4) for i in range(8)]
        assert rates == pytest.approx(steps)


def test_linear_scaling_follows_a_change_of_batch():
    policy = load_policy("LinearScaling(base_batch=128)")
    assert policy.before_train(seen(0)) is None
    (action,) = asked(policy.after_step(seen(5, local_batch=64)))
    assert action.learning_rate == pytest.approx(0.2)


def test_adascale_rate_is_the_rate_times_the_gain():
    policy = load_policy("AdaScaleRate(base_batch=32)")
    policy.before_train(seen(0))
    moments = {"adascale_gns_sqr": 1.0, "adascale_gns_var": 96.0}  # sigma^2 = 3 at batch 32
    (action,) = asked(policy.after_step(seen(1, metrics=moments)))
    assert action.learning_rate == pytest.approx(0.1 * 4 / (3 / 4 + 1))
    assert policy.after_step(seen(2, metrics=moments, learning_rate=0.2285)) is None
    unknown = dict.fromkeys(moments, Undefined("no data yet"))
    assert policy.after_step(seen(3, metrics=unknown)) is None


@pytest.mark.parametrize("noise", [0.0, 1.0, 1e3, 1e9])
def test_adascale_rate_lies_between_no_scaling_and_linear_scaling(noise):
    policy = load_policy("AdaScaleRate(base_batch=32, tolerance=0)")
    policy.before_train(seen(0))
    moments = {"adascale_gns_sqr": 1.0, "adascale_gns_var": noise}
    for action in asked(policy.after_step(seen(1, metrics=moments, learning_rate=1.0))):
        assert 0.1 <= action.learning_rate <= 0.4 * (1 + 1e-12)


def test_plateau_lowers_the_rate_after_enough_bad_epochs():
    policy = load_policy("Plateau(factor=0.5, patience=2, min_rate=0.03)")
    rate, rates = 0.1, []
    for loss in [1.0, 0.9, 0.9, 0.9, 0.9, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8]:
        policy.after_step(seen(metrics={"loss": loss}, learning_rate=rate))
        for action in asked(policy.after_epoch(seen(learning_rate=rate))):
            rate = action.learning_rate
        rates.append(rate)
    assert rates == [*[0.1] * 4, *[0.05] * 4, *[0.03] * 4]


# --- batches


def test_critical_batch_is_the_noise_scale_within_limits():
    policy = load_policy("CriticalBatch(smallest=8, cap=100, interval=10)")
    for gns, batch in ((256.0, 64), (1e9, 100), (1.0, 8)):
        (action,) = asked(policy.after_step(seen(10, metrics={"batch_gns": gns})))
        assert action.local_batch == batch
    assert policy.after_step(seen(10, metrics={"batch_gns": 140.0})) is None  # 35, too near
    assert policy.after_step(seen(11, metrics={"batch_gns": 1e9})) is None


def test_cabs_couples_the_batch_to_rate_variance_and_loss():
    policy = load_policy("Cabs(interval=1)")
    facts = {"batch_gns_var": 8000.0, "loss": 2.0}
    (action,) = asked(policy.after_step(seen(1, metrics=facts)))
    assert action.local_batch == 0.1 * 8000 / 2 / 4
    assert policy.after_step(seen(1, metrics={**facts, "loss": 0.0})) is None


def test_adabatch_decays_rate_over_batch_by_its_factor():
    policy = load_policy("AdaBatch(every_epochs=2, factor=2, decay=0.5, cap=100)")
    assert policy.after_epoch(seen(epoch=1)) is None
    batch, rate = asked(policy.after_epoch(seen(epoch=2)))
    assert (batch.local_batch, rate.learning_rate) == (64, pytest.approx(0.1))
    batch, rate = asked(policy.after_epoch(seen(epoch=4, local_batch=64)))
    assert batch.local_batch == 100
    assert rate.learning_rate / batch.local_batch == pytest.approx(0.5 * 0.1 / 64)


def pollux_step_s(batch: int) -> tuple[float, float]:
    return 0.05 + 0.001 * batch, 0.1  # computing, exposed


def test_pollux_finds_the_batch_of_greatest_goodput():
    policy = load_policy("PolluxGoodput(base_batch=128, cap=512, cooldown_steps=5)")
    policy.before_train(seen(0))
    batch, rate, gns = 32, 0.1, 600.0
    for step in range(1, 60):
        compute_s, exposed_s = pollux_step_s(batch)
        facts = {"pollux_gns": gns, "compute_s": compute_s, "exposed_s": exposed_s}
        now = seen(step, local_batch=batch, learning_rate=rate, metrics=facts)
        for action in asked(policy.after_step(now)):
            if isinstance(action, SetLocalBatch):
                batch = action.local_batch
            else:
                rate = action.learning_rate

    def goodput(b: int) -> float:
        return 4 * b / sum(pollux_step_s(b)) * (gns + 128) / (gns + 4 * b)

    assert goodput(batch) > 0.95 * max(goodput(b) for b in range(32, 513))
    assert rate == pytest.approx(0.1 * (gns / 128 + 1) / (gns / (4 * batch) + 1), rel=1e-9)


# --- workers


def replay_times(policy: Any, rows: list[tuple[int, list[float]]]) -> list[tuple[int, str]]:
    """Feeds computing times of 10 ranks; what the policy noted at which iteration."""
    notes: list[tuple[int, str]] = []
    at = 0
    job = Controller(
        world_size=10,
        local_batch=1,
        learning_rate=0.1,
        policies=[policy],
        on_event=lambda event: notes.append((at, event["reason"])),
    )
    for at, times in rows:  # noqa: B007 - read by on_event
        sums, maxes = job.fill(LocalStep(compute_s=np.array(times)))
        job.step_done(sums.sum(axis=0), maxes.max(axis=0))
    return notes


def test_only_the_straggler_of_a_real_job_is_named_and_only_while_it_is_one():
    with (DATA / "alibaba_mini_batch_times.csv").open() as file:
        rows = [
            (int(iteration), [float(t) for t in times])
            for iteration, *times in list(csv.reader(file))[1:]
        ]
    notes = replay_times(load_policy("NameStragglers(excess_s=0)"), rows)
    assert [(text.split(":")[0]) for _, text in notes] == [
        "rank 6 is slow",
        "rank 6 is no longer slow",
    ]
    (named, _), (cleared, _) = notes
    assert 1811 <= named < cleared <= 1961


def test_exclusion_needs_patience_and_a_gain():
    policy = load_policy("ExcludeStragglers(patience=5, min_workers=3, cooldown_steps=10)")
    times = [1.0, 1.0, 3.0, 1.0]
    gone = []
    for step in range(1, 30):
        signals = {"compute_s_by_rank": tuple(times)}
        for action in asked(policy.after_step(seen(step, world_size=4, signals=signals))):
            if isinstance(action, Exclude):
                gone += [(step, action.rank)]
    assert gone[0] == (5, 2)
    assert all(b[0] - a[0] >= 10 for a, b in itertools.pairwise(gone))
    few = load_policy("ExcludeStragglers(patience=1, min_workers=4)")
    assert not any(
        isinstance(a, Exclude)
        for a in asked(few.after_step(seen(1, signals={"compute_s_by_rank": tuple(times)})))
    )
    little = load_policy("ExcludeStragglers(patience=1, factor=1.1)")  # 1.3 x 3/4 < 1: no gain
    signals = {"compute_s_by_rank": (1.0, 1.0, 1.3, 1.0)}
    assert not any(
        isinstance(a, Exclude) for a in asked(little.after_step(seen(1, signals=signals)))
    )


def test_spot_lets_the_warned_go_saves_at_youngs_interval_and_refills():
    policy = load_policy("SpotPreemption(4, mtbf_s=800.0, checkpoint_s=1.0, cooldown_steps=10)")
    calm, warned = {"leaving_by_rank": (0.0,) * 4}, {"leaving_by_rank": (0.0, 0.0, 1.0, 0.0)}
    saved = []
    for step in range(1, 61):  # Young: sqrt(2 * 1 * 800 / 4) = 20 s
        facts = {"step_s": 1.0}
        actions = asked(policy.after_step(seen(step, metrics=facts, signals=calm)))
        saved += [step for action in actions if isinstance(action, Checkpoint)]
    assert saved == [20, 40, 60]
    (leave,) = asked(policy.after_step(seen(61, metrics={"step_s": 1.0}, signals=warned)))
    assert leave == Exclude(2, reason=leave.reason)
    asks = []
    for step in range(62, 85):
        few = {"leaving_by_rank": (0.0,) * 3}
        now = seen(step, world_size=3, metrics={"step_s": 0.0}, signals=few)
        asks += [step for action in asked(policy.after_step(now)) if isinstance(action, Resize)]
    assert asks == [62, 72, 82]


@pytest.mark.parametrize("deadline_s", [60.0, 100.0, 180.0])
def test_cost_aware_resize_meets_the_deadline_with_few_workers(deadline_s):
    policy = load_policy(f"CostAwareResize(20000, {deadline_s}, max_workers=16)")
    workers, samples, time_s, money, step = 4, 0, 0.0, 0.0, 0
    while samples < 20_000:
        step += 1
        step_s = 0.1 + 0.005 * workers  # scales less than linearly
        time_s, money = time_s + step_s, money + workers * step_s
        samples += 10 * workers
        facts = {"step_s": step_s}
        now = seen(step, world_size=workers, local_batch=10, samples=samples, metrics=facts)
        for action in asked(policy.after_step(now)):
            workers = action.world_size
    assert time_s <= deadline_s * 1.03
    steps = 20_000 / 10

    def cost(n: int) -> float:  # workers times seconds
        return steps * (0.1 + 0.005 * n)

    fits = [n for n in range(1, 17) if cost(n) / n <= deadline_s]
    assert money <= 1.15 * cost(fits[0])


# --- communication


def test_compression_switches_with_hysteresis_and_cool_down():
    policy = load_policy("CompressOnSlowNetwork('int8', patience=3, cooldown_steps=20)")
    compression, changes = "none", []
    for step in range(1, 201):
        plain_s = 1.0 if 50 <= step < 120 else 0.05  # communication next to 0.5 s of computing
        exposed_s = plain_s / (4 if compression == "int8" else 1)
        facts = {"exposed_s": exposed_s, "compute_s": 0.5}
        now = seen(step, compression=compression, metrics=facts)
        for action in asked(policy.after_step(now)):
            assert isinstance(action, SetCompression)
            compression = action.compression
            changes.append((step, compression))
    assert changes == [(52, "int8"), (122, "none")]
    for share in (0.2, 0.3):  # between the limits nothing changes, whichever side it came from
        for active in ("none", "int8"):
            calm = load_policy("CompressOnSlowNetwork(patience=1)")
            scale = 4 if active == "int8" else 1
            facts = {"exposed_s": share / (1 - share) / scale, "compute_s": 1.0}
            assert calm.after_step(seen(1, compression=active, metrics=facts)) is None


def test_adacomm_averages_more_often_as_the_loss_falls():
    policy = load_policy("AdaComm(first_period=16, interval=10)")
    (first,) = asked(policy.before_train(seen(0)))
    assert first == SetSyncMode("local_sgd(16)", reason=first.reason)
    periods = []
    for step in range(1, 81):
        loss = [4.0, 4.0, 1.0, 0.25, 0.25, 4.0, 0.0625, 0.0625][(step - 1) // 10]
        for action in asked(policy.after_step(seen(step, metrics={"loss": loss}))):
            periods += [(step, int(action.mode[10:-1]))]
    assert periods == [(20, 8), (30, 4), (40, 2), (50, 1)]  # sqrt(1/4) 16 = 8 is not below 8


def test_sma_gives_way_to_averaged_gradients_at_its_step():
    policy = load_policy("SmaThenAllreduce(3)")
    (first,) = asked(policy.before_train(seen(0)))
    modes = [asked(policy.after_step(seen(step))) for step in range(1, 6)]
    assert first.mode == "sma(0.1)"
    assert [m[0].mode if m else "" for m in modes] == ["", "", "allreduce", "", ""]


# --- all of them

ARGUMENTS = {
    "AdaScaleRate": "base_batch=128",
    "PolluxGoodput": "base_batch=128",
    "LinearScaling": "base_batch=128",
    "SqrtScaling": "base_batch=128",
    "FixedSchedule": "'binary_tree'",
    "ScheduledBatch": "'3:64'",
    "ScheduledResize": "'3:8'",
    "SmaThenAllreduce": "5",
    "SpotPreemption": "8",
    "CostAwareResize": "100000, 100.0",
    "MarginalThroughput": "window=4",
    "ExcludeStragglers": "patience=4",
    "TuneSchedule": "trial_steps=2",
    "AdaComm": "4, 5",
    "Cabs": "interval=5",
    "CriticalBatch": "interval=5",
}


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_policy_runs_in_the_simulator_and_goes_on_from_its_saved_state(name):
    from kfsim import simulate
    from kfsim.scenario import parse

    spec = f"{name}({ARGUMENTS.get(name, '')})"
    raw = {
        "run": {"steps": 40},
        "cluster": {"hosts": 4, "nic_gbps": 8.0},
        "workload": {
            "model": "resnet50",
            "samples_per_s": 100.0,
            "local_batch": 32,
            "jitter_sigma": 0.05,
            "samples_per_epoch": 1000,
            "stragglers": [{"rank": 1, "factor": 2.0, "start_step": 10}],
        },
        "noise": {"epochs": [0, 2], "noise_scale": [100, 1000]},
        "system": {"kind": "kf"},
    }
    events = [simulate(parse(raw), policies=[load_policy(spec)]).events for _ in range(2)]
    assert events[0] == events[1]
    policy = load_policy(spec)
    simulate(parse(raw), policies=[policy])
    fresh = load_policy(spec)
    fresh.load_state(json.loads(json.dumps(policy.state())))
    assert fresh.state() == policy.state()


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        ("MarginalThroughput(window=1)", "window must be >= 2, got 1"),
        ("MarginalThroughput(alpha=0)", "alpha must be > 0"),
        ("LinearScaling(0)", "base_batch must be >= 1"),
        ("AdaScaleRate(8, tolerance=-1)", "tolerance must be >= 0"),
        ("PolluxGoodput(8, margin=-1)", "margin must be >= 0"),
        ("ExcludeStragglers(min_workers=0)", "min_workers must be >= 1"),
        ("SpotPreemption(0)", "target must be >= 1"),
        ("SpotPreemption(1, mtbf_s=0)", "mtbf_s and checkpoint_s must be > 0"),
        ("CostAwareResize(1, 0)", "deadline_s must be > 0"),
        ("CostAwareResize(1, 1, 3, 2)", "min_workers <= max_workers"),
        ("CompressOnSlowNetwork('none')", "one that sends fewer bytes"),
        ("CompressOnSlowNetwork(on=0.1)", "0 <= off < on < 1"),
        ("AdaComm(0)", "first_period must be >= 1"),
        ("SmaThenAllreduce(0)", "change_step must be >= 1"),
        ("Cabs(interval=0)", "interval must be >= 1"),
        ("AdaBatch(factor=1)", "factor must be > 1"),
        ("Plateau(factor=1)", "factor must be in"),
        ("TuneSchedule('ring;ring')", "candidates must be different specs"),
        ("TuneSchedule(trial_steps=0)", "trial_steps must be >= 1"),
    ],
)
def test_arguments_out_of_range_are_refused(spec, match):
    with pytest.raises(UsageError, match=match):
        load_policy(spec)
