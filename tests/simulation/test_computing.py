"""The compute side: batch to time, devices, memory limits, accumulation, replayed times."""

import json
from pathlib import Path

import numpy as np
import pytest

from kfcore.errors import UsageError
from kfsim import simulate
from kfsim.computing import Curve
from kfsim.scenario import parse

ALIBABA = Path(__file__).resolve().parents[1] / "data" / "alibaba_mini_batch_times.csv"


def scenario(steps=4, hosts=4, system=None, **workload):
    base = {"model": "mobilenet_v2", "local_batch": 32}
    if "curve" not in workload:
        base["samples_per_s"] = 100.0
    return parse(
        {
            "run": {"steps": steps},
            "cluster": {"hosts": hosts, "nic_gbps": 8.0},
            "workload": {**base, **workload},
            "system": {"kind": "kf", **(system or {})},
        }
    )


def compute_s(one, step=-1):
    return simulate(one).rows[step]["compute_s"]


def test_a_curve_meets_its_points_and_goes_on_at_the_last_slope():
    curve = Curve((8.0, 16.0, 32.0), (20.0, 30.0, 55.0))
    at = np.array([8.0, 12.0, 16.0, 24.0, 32.0, 64.0])
    np.testing.assert_allclose(curve.seconds(at) * 1e3, [20, 25, 30, 42.5, 55, 105])
    assert curve.seconds(np.array([0.0]))[0] == pytest.approx(0.010)  # what no batch avoids
    bent = Curve((8.0, 16.0), (20.0, 60.0))  # would be negative at 2
    np.testing.assert_allclose(bent.seconds(np.array([2.0, 4.0])) * 1e3, [5, 10])
    one = Curve((10.0,), (50.0,))
    np.testing.assert_allclose(one.seconds(np.array([5.0, 20.0])) * 1e3, [25, 100])


def test_a_batch_takes_what_the_curve_says():
    curve = {"batch": [8, 16, 32], "step_ms": [20, 30, 55]}
    for batch, expected_ms in ((8, 20), (24, 42.5), (64, 105)):
        one = scenario(curve=curve, local_batch=batch)
        assert compute_s(one) == pytest.approx(expected_ms * 1e-3)


@pytest.mark.parametrize(
    ("workload", "complaint"),
    [
        ({"curve": {"batch": [8, 8], "step_ms": [1, 2]}}, "batch must increase"),
        ({"curve": {"batch": [8], "step_ms": [1, 2]}}, "as many and not empty"),
        ({"curve": {"batch": [8], "step_ms": [0]}}, "step_ms\\[0\\]: must be > 0"),
        (
            {"curve": {"batch": [8], "step_ms": [1]}, "samples_per_s": 3.0},
            "give samples_per_s or curve, one of them",
        ),
        ({"devices": [{"first_host": 0}]}, "devices: give samples_per_s or curve"),
        ({"max_samples": 31}, "rank 0 would hold 32 samples at once, its device holds 31"),
        ({"accumulation": 0}, "accumulation: must be >= 1"),
        ({"times": "no_such.csv"}, "times: 'no_such.csv' cannot be read"),
    ],
)
def test_what_cannot_be_computed_is_refused(workload, complaint):
    with pytest.raises(UsageError, match=complaint):
        scenario(**workload)


def test_hosts_with_other_devices_set_the_pace():
    slow = [{"first_host": 2, "hosts": 1, "samples_per_s": 50.0}]
    rows = simulate(scenario(devices=slow)).rows
    assert rows[-1]["compute_s"] == pytest.approx((3 * 0.32 + 0.64) / 4)
    assert rows[-1]["step_s"] > 0.64
    two = parse(
        {
            "run": {"steps": 2},
            "cluster": {"hosts": 2, "nic_gbps": 8.0, "ranks_per_host": 2},
            "workload": {
                "model": "mobilenet_v2", "samples_per_s": 100.0, "local_batch": 32,
                "devices": [{"first_host": 1, "samples_per_s": 50.0}],
            },
            "system": {"kind": "kf"},
        }
    )  # fmt: skip
    assert compute_s(two) == pytest.approx((0.32 + 0.64) / 2)  # both ranks of host 1


def test_accumulation_computes_the_same_and_communicates_behind_the_last_micro_batch_only():
    plain = scenario(local_batch=128, system={"bucket_mib": 1.0})
    split = scenario(local_batch=128, accumulation=4, system={"bucket_mib": 1.0})
    a, b = simulate(plain).rows[-1], simulate(split).rows[-1]
    assert a["compute_s"] == pytest.approx(b["compute_s"])
    assert a["bytes_sent_max"] == b["bytes_sent_max"]
    assert b["exposed_s"] >= a["exposed_s"]  # less to hide behind
    overhead = compute_s(scenario(local_batch=128, accumulation=4, overhead_ms=10.0))
    assert overhead == pytest.approx(1.28 + 4 * 0.010)
    # a step of the same batch a micro-batch: one exchange for four times the samples
    often = simulate(scenario(local_batch=32)).rows[-1]
    assert b["throughput_samples_per_s"] > often["throughput_samples_per_s"]
    without = scenario(local_batch=128, accumulation=4, system={"overlap": False})
    same = scenario(local_batch=128, system={"overlap": False})
    assert simulate(without).rows[-1]["step_s"] == pytest.approx(
        simulate(same).rows[-1]["step_s"]
    )


def test_a_batch_that_grows_beyond_memory_stops_the_job_and_says_where():
    grows = {"policies": ["ScheduledBatch({2: 64})"]}
    one = parse({**scenario(steps=8, max_samples=48).raw, **grows})
    events = []
    with pytest.raises(UsageError, match="step 4: out of memory: rank 0 would hold 64 samples"):
        simulate(one, on_event=events.append)
    assert [e["what"] for e in events if e["kind"] == "memory"] == ["out_of_memory"]


def test_or_is_cut_into_micro_batches_that_fit():
    small = [{"first_host": 3, "samples_per_s": 100.0, "max_samples": 20}]
    one = scenario(devices=small, on_out_of_memory="accumulate", overhead_ms=10.0)
    result = simulate(one)
    assert result.rows[-1]["compute_s"] == pytest.approx(0.32 + 2 * 0.010)  # all ranks alike
    (event,) = [e for e in result.events if e["kind"] == "memory"]
    assert (event["what"], event["old"], event["new"]) == ("micro_batches", 1, 2)


def test_times_of_a_real_job_are_replayed_as_they_were(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("step,a,b\n1,0.1,0.2\n2,0.3,0.4\n3,0.1,0.1\n")
    two = scenario(steps=3, hosts=2, times=str(table), times_are="seconds")
    assert [r["compute_s"] for r in simulate(two).rows] == pytest.approx([0.15, 0.35, 0.1])
    relative = scenario(steps=3, hosts=2, times=str(table))  # median 0.15 -> 0.32 s
    assert [r["compute_s"] for r in simulate(relative).rows] == pytest.approx(
        [0.32, 0.32 * 0.35 / 0.15, 0.32 * 0.1 / 0.15]
    )
    for text, complaint in (
        ("step,a\n1,x\n", "line 2: must hold 1 times > 0"),
        ("step,a\n1,1,2\n", "line 2"),
        ("step,a\n1,0\n", "line 2"),
        ("step\n1\n", "must have a header"),
        ("step,a\n1,1\n", "has 1 steps, run.steps is 2"),
        ("step,a\n1,1\n1,1\n", "has 1 ranks, the job starts with 2"),
    ):
        bad = tmp_path / f"{abs(hash(text))}.csv"
        bad.write_text(text)
        with pytest.raises(UsageError, match=complaint):
            scenario(steps=2, hosts=2, times=str(bad))


def test_only_the_straggler_of_a_real_job_is_named_and_only_while_it_is_one():
    """O5: mini-batch times of 10 workers, replayed; the policy is that of real ranks."""
    one = scenario(steps=300, hosts=10, times=str(ALIBABA), system={"schedule": "ring"})
    result = simulate(one, ["NameStragglers(excess_s=0)"])
    notes = [event for event in result.events if event["kind"] == "note"]
    assert [note["reason"].split(":")[0] for note in notes] == [
        "rank 6 is slow",
        "rank 6 is no longer slow",
    ]
    iterations = [line.split(",")[0] for line in ALIBABA.read_text().splitlines()[1:]]
    named, cleared = (int(iterations[note["step"] - 1]) for note in notes)
    assert 1811 <= named < cleared <= 1971
    slowest = max(result.rows, key=lambda row: row["step_s"])
    assert 1811 <= int(iterations[slowest["step"] - 1]) <= 1931
    assert json.dumps(notes)  # plain values only
