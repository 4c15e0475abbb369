"""The built-in policies follow their formulas; policies load from text."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

import kfcore as kf
from kfcore.controller import Controller, LocalStep
from kfcore.errors import UsageError
from kfcore.monitors import Metrics, Undefined
from kfcore.policy import Observation, Resize, SetLocalBatch, SetSchedule
from kfcore.policy.interference import InterferenceSchedule
from kfcore.policy.load import BUILT_IN, find_policy, load_policy
from kfcore.policy.noise_scale import NoiseScaleBatch
from kfcore.policy.scheduled import FixedSchedule, ScheduledBatch, ScheduledResize
from kfcore.policy.stragglers import NameStragglers

ROOT = Path(__file__).resolve().parents[2]
MIB = 2.0**20


def seen(gns=None, *, local_batch=32, step=1) -> Observation:
    metric = Undefined("no data yet") if gns is None else gns
    return Observation(
        step=step,
        epoch=0,
        world_size=4,
        local_batch=local_batch,
        global_batch=4 * local_batch,
        learning_rate=0.1,
        schedule="ring",
        metrics=Metrics(gns=metric),
    )


def epoch(policy: NoiseScaleBatch, values, local_batch=32):
    for value in values:
        assert policy.after_step(seen(value, local_batch=local_batch)) is None
    return policy.after_epoch(seen(local_batch=local_batch))


def test_noise_scale_batch_doubles_after_an_epoch_of_rising_noise():
    policy = NoiseScaleBatch()
    assert epoch(policy, [32.0] * 10) is None  # nothing to compare with yet
    action = epoch(policy, [48.0] * 10)
    assert action == SetLocalBatch(64, reason=action.reason)
    assert "rose from 1 to" in action.reason
    assert epoch(policy, [64.0] * 100, local_batch=64) is None  # noise per batch fell


def test_noise_scale_batch_average_follows_its_formula():
    policy = NoiseScaleBatch(decay=0.9)
    epoch(policy, [32.0, 64.0, 3200.0, 0.032])
    ratio = 1.0
    for sample in (2.0, 100.0, 0.001):
        ratio = 0.9 * ratio + 0.1 * min(max(sample, ratio / 2), 2 * ratio)
    assert policy.ratio == pytest.approx(ratio, rel=1e-15)


def test_noise_scale_batch_takes_the_size_of_a_negative_value():
    policy = NoiseScaleBatch()
    epoch(policy, [-64.0])
    assert policy.ratio == 2.0


def test_noise_scale_batch_stops_at_its_cap():
    policy = NoiseScaleBatch(cap=100)
    epoch(policy, [64.0] * 5, local_batch=64)
    assert epoch(policy, [128.0] * 5, local_batch=64).local_batch == 100
    assert epoch(policy, [1000.0] * 50, local_batch=100) is None


def test_noise_scale_batch_does_nothing_without_a_noise_scale():
    policy = NoiseScaleBatch()
    for _ in range(3):
        assert epoch(policy, [None] * 5) is None
    assert policy.ratio is None


def test_noise_scale_batch_goes_on_from_saved_state():
    one, other = NoiseScaleBatch(), NoiseScaleBatch()
    epoch(one, [32.0] * 10)
    other.load_state(json.loads(json.dumps(one.state())))
    assert epoch(one, [48.0] * 10) == epoch(other, [48.0] * 10)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: NoiseScaleBatch(cap=0), "cap must be >= 1, got 0"),
        (lambda: NoiseScaleBatch(decay=1.0), "decay must be in"),
        (lambda: InterferenceSchedule(threshold=1.0), "threshold must be in"),
        (lambda: InterferenceSchedule(reference_step=0), "reference_step must be >= 1"),
        (lambda: NameStragglers(factor=1.0), "factor must be > 1"),
        (lambda: NameStragglers(patience=0), "patience must be >= 1"),
        (lambda: NameStragglers(excess_s=-1.0), "excess_s must be >= 0"),
        (lambda: ScheduledBatch("10:4,x"), "must read 'step:value,step:value'"),
        (lambda: ScheduledBatch("0:4"), "must be >= 1"),
        (lambda: ScheduledResize({3: 0}), "must be >= 1"),
    ],
)
def test_built_in_policies_refuse_arguments_out_of_range(make, match):
    with pytest.raises(UsageError, match=match):
        make()


class Rates:
    """A job of n simulated ranks that is fed each rank's all-reduce rate."""

    def __init__(self, policy: InterferenceSchedule, world_size: int = 8) -> None:
        self.job = Controller(
            world_size=world_size,
            local_batch=32,
            learning_rate=0.1,
            schedule="star",
            policies=[policy],
        )

    def step(self, rates) -> str:
        local = LocalStep(
            comm_s=np.ones(self.job.world_size), comm_bytes=np.asarray(rates, float)
        )
        sums, maxes = self.job.fill(local)
        self.job.step_done(sums.sum(axis=0), maxes.max(axis=0))
        return self.job.schedule


def test_interference_switches_at_the_published_rates():
    # KungFu's figure 5 log: reference 115.14 MiB/s, so threshold 92.11; hit 68.82 by 7 of 8.
    ranks = Rates(InterferenceSchedule())
    for _ in range(30):
        assert ranks.step([115.14 * MIB] * 8) == "star"
    assert ranks.step([68.82 * MIB] * 7 + [115.14 * MIB]) == "star"  # proposed
    assert ranks.step([68.82 * MIB] * 8) == "star(root=1)"  # installed a step later


@pytest.mark.parametrize(("slow", "switches"), [(4, False), (5, True)])
def test_interference_needs_more_than_half_of_the_votes(slow, switches):
    ranks = Rates(InterferenceSchedule())
    for _ in range(5):
        ranks.step([100.0] * 8)
    for _ in range(10):
        schedule = ranks.step([79.0] * slow + [81.0] * (8 - slow))
    assert (schedule == "star(root=1)") is switches


def test_interference_switches_once_only():
    policy = InterferenceSchedule("ring")
    slow = dataclasses.replace(seen(), signals={"slow": 4.0})
    assert policy.after_step(slow).schedule == "ring"
    assert policy.after_step(slow) is None
    assert policy.state()["switched"]


def test_interference_takes_another_reference_when_the_workers_change():
    policy = InterferenceSchedule(reference_step=2)
    ranks = Rates(policy, world_size=4)
    for _ in range(3):
        ranks.step([1000.0] * 4)
    ranks.job.propose(Resize(8))
    for _ in range(4):
        ranks.step([100.0] * ranks.job.world_size)
    assert ranks.job.world_size == 8
    assert ranks.step([50.0] * 8) == "star"
    assert ranks.job.signals == {"slow": 8.0}


def test_interference_takes_its_reference_at_the_fifth_measured_step():
    ranks = Rates(InterferenceSchedule())
    for rate in (1.0, 1.0, 1.0, 1.0, 100.0):
        ranks.step([rate] * 8)
    ranks.step([79.0] * 8)
    assert ranks.step([79.0] * 8) == "star(root=1)"


def test_interference_leaves_steps_without_a_rate_out():
    ranks = Rates(InterferenceSchedule())
    for _ in range(20):
        assert ranks.step([np.nan] * 8) == "star"
    assert ranks.job.signals == {"slow": 0.0}


def test_scheduled_changes_are_in_force_one_step_later():
    job = Controller(
        world_size=1,
        local_batch=1,
        learning_rate=0.1,
        policies=[ScheduledBatch("2:8,4:16"), ScheduledResize({3: 2}), FixedSchedule("clique")],
    )
    job.train_begin()
    history = []
    for _ in range(6):
        sums, maxes = job.fill(LocalStep(loss=np.ones(job.world_size)))
        job.step_done(sums.sum(axis=0), maxes.max(axis=0))
        history.append((job.local_batch, job.world_size, job.schedule))
    assert history == [
        (1, 1, "clique"),
        (1, 1, "clique"),
        (8, 1, "clique"),
        (8, 2, "clique"),
        (16, 2, "clique"),
        (16, 2, "clique"),
    ]


def test_policies_load_from_names_files_and_modules(tmp_path):
    assert load_policy("NoiseScaleBatch( cap=64, decay=0.5 )").state()["cap"] == 64
    assert isinstance(load_policy("FixedSchedule('star(root=1)')"), FixedSchedule)
    assert isinstance(load_policy("kfcore.policy.noise_scale:NoiseScaleBatch"), NoiseScaleBatch)
    path = ROOT / "examples" / "policies" / "grow_batch.py"
    assert load_policy(f"{path}:GrowBatch(cap=16)").cap == 16
    assert type(load_policy(str(path))).__name__ == "GrowBatch"
    assert type(load_policy(f"{path}:GrowBatch")) is type(load_policy(f"{path}:GrowBatch"))


def test_what_is_no_policy_is_refused_with_what_there_is(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0\n")
    empty = tmp_path / "empty.py"
    empty.write_text("class P: pass\n")
    for spec, match in [
        ("NoSuch", r"no policy is built in as 'NoSuch'; there are: .*FixedSchedule, "),
        (f"{tmp_path}/none.py:P", "none.py does not exist"),
        (f"{broken}:P", r"broken.py failed: ZeroDivisionError"),
        (f"{empty}:P", "has no policy 'P'; it has: none"),
        ("no.such.module:P", "no.such.module cannot be imported"),
        (
            "NoiseScaleBatch(caps=3)",
            r"unexpected keyword argument 'caps'; NoiseScaleBatch\(cap",
        ),
        ("NoiseScaleBatch(cap=open('x'))", "arguments must be literals"),
        ("NoiseScaleBatch(cap=1)) + (f()", "arguments must be literals"),
        ("", "must read FILE:CLASS"),
    ]:
        with pytest.raises(UsageError, match=match):
            load_policy(spec)


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_built_in_states_its_source_or_is_trivial(name):
    doc = find_policy(name).__doc__
    assert "Args:" in doc
    assert "Source:" in doc or name == "FixedSchedule"


def test_actions_compare_by_value():
    assert SetLocalBatch(3) == SetLocalBatch(3) != SetLocalBatch(4)
    assert SetSchedule("ring") != SetLocalBatch(3)


class Times:
    """A job of n simulated ranks that is fed each rank's computing time."""

    def __init__(self, policy: NameStragglers, world_size: int) -> None:
        self.policy = policy
        self.notes: list[str] = []
        self.job = Controller(
            world_size=world_size,
            local_batch=32,
            learning_rate=0.1,
            policies=[policy],
            on_event=lambda event: self.notes.append(event["reason"]),
        )

    def step(self, times) -> list[int]:
        sums, maxes = self.job.fill(LocalStep(compute_s=np.asarray(times, float)))
        self.job.step_done(sums.sum(axis=0), maxes.max(axis=0))
        return self.policy.stragglers


def test_a_straggler_is_named_and_its_recovery_too():
    ranks = Times(NameStragglers(patience=3), 4)
    for _ in range(10):
        assert ranks.step([0.01, 0.011, 0.01, 0.01]) == []
    named = [list(ranks.step([0.01, 0.06, 0.01, 0.01])) for _ in range(5)]
    assert named == [[], [], [1], [1], [1]]
    assert ranks.notes == ["rank 1 is slow: computed for 0.06 s, median of all ranks 0.01 s"]
    named = [list(ranks.step([0.01] * 4)) for _ in range(4)]
    assert named == [[1], [1], [], []]
    assert "rank 1 is no longer slow" in ranks.notes[1]


def test_one_slow_step_and_a_constant_ten_percent_name_nobody():
    ranks = Times(NameStragglers(), 4)
    for step in range(50):
        assert ranks.step([0.011, 0.1 if step % 5 == 0 else 0.01, 0.01, 0.01]) == []
    assert ranks.step([np.nan, 0.01, 0.01, 0.01]) == []
    for _ in range(10):
        assert ranks.step([1e-5, 9e-4, 1e-5, 1e-5]) == []  # 90 times as long, but who cares
    assert ranks.notes == []


def test_each_rank_fills_its_own_word_and_the_layout_follows_the_world_size():
    jobs = [
        Controller(
            world_size=3,
            local_batch=1,
            learning_rate=0.1,
            policies=[NameStragglers()],
            rank=rank,
        )
        for rank in range(3)
    ]
    filled = [job.fill(LocalStep(compute_s=float(rank))) for rank, job in enumerate(jobs)]
    sums = np.sum([pair[0] for pair in filled], axis=0)
    maxes = np.max([pair[1] for pair in filled], axis=0)
    jobs[0].step_done(sums, maxes)
    assert jobs[0].signals == {"compute_s_by_rank": (0.0, 1.0, 2.0)}
    assert Observation.from_json(jobs[0].observe().to_json()).signals == jobs[0].signals
    before = jobs[0].sum_len
    jobs[0].propose(Resize(7))
    jobs[0].step_done(*jobs[0].fill(LocalStep()))
    assert jobs[0].sum_len == before + 4


@pytest.mark.parametrize(
    ("action", "says"),
    [
        (
            SetLocalBatch(8, reason="half of \udc80"),
            "the reason of SetLocalBatch must be valid",
        ),
        (SetLocalBatch(8, reason=5), "the reason of SetLocalBatch must be a text"),
        (SetSchedule("ring\udc80"), "schedule must be valid Unicode"),
    ],
)
def test_an_action_that_cannot_be_written_down_is_refused(action, says):
    with pytest.raises(UsageError, match=says):
        action.to_change("mine")


def _nothing(*_: object) -> None: ...


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("after_stpe", "did you mean 'after_step'"),
        ("afterStep", "did you mean 'after_step'"),
        ("signal", "did you mean 'signals'"),
        ("on_resize", "hooks are before_train"),
    ],
)
def test_a_misspelt_hook_is_an_error(name, hint):
    kind = type("Wrong", (kf.Policy,), {name: _nothing})
    with pytest.raises(UsageError, match=f"policy Wrong has a method '{name}', which.*{hint}"):
        Controller(world_size=1, local_batch=1, learning_rate=0.1, policies=[kind()])


def test_helpers_of_a_policy_may_have_any_other_name():
    kind = type("Fine", (kf.Policy,), {"_after_stpe": _nothing, "score": _nothing})
    Controller(world_size=1, local_batch=1, learning_rate=0.1, policies=[kind()])
