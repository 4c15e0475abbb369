"""What policies change in simulated time: bytes, times, and who leaves."""

from typing import Any

import pytest

import kfcore as kf
from kfcore.errors import UsageError
from kfcore.policy.load import load_policy
from kfcore.policy.replay import replay
from kfsim import simulate
from kfsim.scenario import parse

GRADIENT_BYTES = 25_583_592 * 4
RING_BYTES = 2 * 3 / 4 * GRADIENT_BYTES


class Script(kf.Policy):
    """Asks for given actions after given steps."""

    def __init__(self, actions: dict[int, Any]) -> None:
        self.actions = actions

    def after_step(self, seen):
        return self.actions.get(seen.step)


def run(actions: dict[int, Any], steps: int = 8, **tables: Any) -> Any:
    raw: dict[str, Any] = {
        "run": {"steps": steps},
        "cluster": {
            "hosts": 4,
            "nic_gbps": 8.0,
            "latency_us": 0,
            "price_per_host_hour": 3600.0,
        },
        "workload": {"model": "resnet50", "samples_per_s": 100.0, "local_batch": 32},
        "system": {"kind": "kf", "overlap": False},
    }
    for name, table in tables.items():
        raw[name] = {**raw[name], **table}
    return simulate(parse(raw), policies=[Script(actions)])


def sent(result: Any) -> list[float]:
    """Bytes a rank sent in each step, in units of the plain ring's; the control block aside."""
    return [round(row["bytes_sent_mean"] / RING_BYTES, 3) for row in result.rows]


def test_models_are_sent_when_the_mode_says_so():
    assert sent(run({1: kf.SetSyncMode("local_sgd(3)")})) == [1, 1, 1, 0, 0, 1, 0, 0]
    assert sent(run({1: kf.SetSyncMode("sma(0.1)")})) == [1] * 8
    pairs = run({1: kf.SetSyncMode("pair_averaging"), 4: kf.SetSyncMode("allreduce")})
    one_model = round(GRADIENT_BYTES / RING_BYTES, 3)
    assert sent(pairs) == [1, 1, one_model, one_model, one_model, 1, 1, 1]


@pytest.mark.parametrize(
    ("spec", "share"), [("f16", 0.5), ("int8", 0.25), ("top_k(0.01)", 0.01 * 3 * 8 / 4 / 1.5)]
)
def test_compression_sends_less_and_takes_less_time(spec, share):
    result = run({1: kf.SetCompression(spec)})
    assert sent(result)[:3] == [1, 1, pytest.approx(share, abs=2e-3)]
    comm_s = [row["comm_s"] for row in result.rows]
    assert comm_s[2] == pytest.approx(share * comm_s[0], rel=0.01)


def test_bucket_size_changes_the_number_of_collectives_only():
    result = run({1: kf.SetBucketBytes(2**20)})
    counts = [row["collectives"] for row in result.rows]
    assert counts[0] == counts[1] < counts[2] == counts[-1]
    assert sent(result) == [1] * 8


def test_an_excluded_straggler_takes_its_slowness_along():
    slow = {"stragglers": [{"rank": 1, "factor": 3.0}]}
    result = run({2: kf.Exclude(1, reason="slow")}, workload=slow)
    worlds = [row["world_size"] for row in result.rows]
    assert worlds == [4, 4, 4, 3, 3, 3, 3, 3]
    compute = [row["compute_s"] for row in result.rows]
    assert compute[0] == pytest.approx(0.32 * 1.5)
    assert compute[-1] == pytest.approx(0.32)
    installed = [event for event in result.events if event["kind"] == "installed"]
    changes = {event["what"]: (event["old"], event["new"]) for event in installed}
    assert changes == {"excluded": ("nobody", "rank 1 after step 3"), "world_size": (4, 3)}


def test_a_worker_that_is_not_there_cannot_be_excluded():
    with pytest.raises(UsageError, match=r"needs a rank in \[0, 4\), got 4 from Script"):
        run({2: kf.Exclude(4)})
    with pytest.raises(UsageError, match="the only worker cannot be excluded"):
        run({2: kf.Exclude(0)}, cluster={"hosts": 1})


def test_a_checkpoint_costs_time_and_money():
    plain = run({}).rows[-1]
    plan = {2: kf.Checkpoint(), 5: kf.Checkpoint()}
    saved = run(plan, workload={"checkpoint_s": 10.0}).rows[-1]
    assert saved["time_s"] == pytest.approx(plain["time_s"] + 20)
    assert saved["cost"] == pytest.approx(plain["cost"] + 20 * 4)


def test_systems_that_have_no_such_setting_refuse_it():
    raw = {
        "cluster": {"hosts": 4, "nic_gbps": 8.0},
        "workload": {"model": "resnet50", "samples_per_s": 100.0, "local_batch": 32},
        "system": {"kind": "ideal"},
    }
    policy = Script({1: kf.SetSyncMode("local_sgd(2)")})
    with pytest.raises(UsageError, match="the simulated system Ideal has nothing of the kind"):
        simulate(parse(raw), policies=[policy])


def test_a_recorded_simulation_replays(tmp_path):
    raw = {
        "run": {"steps": 8},
        "cluster": {"hosts": 4, "nic_gbps": 8.0},
        "workload": {"model": "resnet50", "samples_per_s": 100.0, "local_batch": 32},
        "system": {"kind": "kf"},
    }
    spec = "ScheduledBatch('3:64,5:128')"
    simulate(parse(raw), policies=[spec], record=True).write(tmp_path)
    actions = replay(load_policy(spec), tmp_path / "events.jsonl")
    assert [(item.step, item.action.local_batch) for item in actions] == [(3, 64), (5, 128)]
