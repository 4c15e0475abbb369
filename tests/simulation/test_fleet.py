"""Fleets: hosts come, go, fail and cost money; jobs wait, shrink, grow and end once."""

import json
import os
import random
import subprocess
import sys
import tracemalloc
from itertools import pairwise

import pytest

from kfcore.errors import UsageError
from kfsim.fleet import parse_fleet, run_fleet
from kfsim.fleet.config import FleetJob
from kfsim.fleet.schedulers import SCHEDULERS
from kfsim.fleet.traces import PriceHistory, facts, read_prices, read_trace


def fleet(jobs, hosts=None, **run):
    return parse_fleet({"run": run, "hosts": hosts or {"count": 1}, "jobs": jobs})


def job(name, samples=100.0, **values):
    return {"name": name, "samples": samples, "samples_per_s": 1.0, **values}


def play(config, **more):
    events, rows = [], []
    result = run_fleet(config, on_event=events.append, on_row=rows.append, **more)
    return result, events, {row["job"]: row for row in rows}


def test_fifo_runs_one_after_another_and_counts_time_and_money():
    config = fleet([job("a"), job("b")], {"count": 1, "price_per_host_hour": 36.0})
    result, _, rows = play(config)
    assert (rows["a"]["end_s"], rows["b"]["end_s"]) == (100.0, 200.0)
    assert rows["b"]["began_s"] == 100.0
    assert result.summary["makespan_s"] == 200.0
    assert result.summary["cost"] == pytest.approx(2.0)
    assert rows["a"]["cost"] == pytest.approx(1.0)
    assert result.summary["utilisation"] == pytest.approx(1.0)


def test_a_cancelled_waiter_leaves_no_claim():
    """P3, first half: holder until 5, waiter cancelled at 1, third queued at 1 starts at 5."""
    jobs = [
        job("holder", 5.0),
        job("waiter", 5.0, cancel_s=1.0),
        job("third", 5.0, arrival_s=1.0),
    ]
    result, _, rows = play(fleet(jobs))
    assert rows["waiter"]["ended"] == "cancelled"
    assert (rows["holder"]["end_s"], rows["third"]["began_s"]) == (5.0, 5.0)
    assert not result.starved


def test_a_failed_host_takes_all_its_users_down_and_no_others(tmp_path):
    """P3, second half: at 3 s the host of two jobs goes; the third stays queued."""
    trace = tmp_path / "t.csv"
    trace.write_text("0,add,n1\n3000,remove,n1\n10000,add,n2\n")
    jobs = [job("a", 5.0), job("b", 5.0), job("queued", 5.0)]
    _, events, rows = play(fleet(jobs, {"slots": 2, "trace": str(trace)}))
    hit = [e for e in events if e["kind"] == "interrupted"]
    assert [(e["job"], e["time_s"], e["workers"]) for e in hit] == [
        ("a", 3.0, 0),
        ("b", 3.0, 0),
    ]
    assert rows["queued"]["began_s"] == 12.0  # when a and b have done their last 2 s on n2
    assert [rows[name]["ended"] for name in ("a", "b", "queued")] == ["done"] * 3


def test_work_since_the_last_checkpoint_is_lost(tmp_path):
    trace = tmp_path / "t.csv"
    trace.write_text("0,add,n1\n35000,remove,n1\n40000,add,n2\n")
    _, events, rows = play(fleet([job("a", 100.0, checkpoint_s=10.0)], {"trace": str(trace)}))
    assert next(e["lost"] for e in events if e["kind"] == "interrupted") == pytest.approx(5.0)
    assert rows["a"]["end_s"] == pytest.approx(40.0 + 70.0)


def test_an_elastic_job_shrinks_instead_of_stopping(tmp_path):
    trace = tmp_path / "t.csv"
    trace.write_text("0,add,n1\n0,add,n2\n10000,remove,n2\n")
    _, events, rows = play(fleet([job("a", 100.0, max_workers=2)], {"trace": str(trace)}))
    assert [e["workers"] for e in events if e["kind"] == "interrupted"] == [1]
    assert rows["a"]["end_s"] == pytest.approx(10.0 + 80.0)


def test_fair_shares_and_goodput_prefers_who_scales():
    jobs = [
        job("scales", 1000.0, max_workers=8),
        job("does_not", 1000.0, max_workers=8, scaling_loss=1.0),
    ]
    shares = {}
    for name in ("fair", "goodput"):
        _, events, _ = play(fleet(jobs, {"count": 8}, scheduler=name))
        first = [e for e in events if e["kind"] == "resized"][:2]
        shares[name] = {e["job"]: e["workers"] for e in first}
    assert shares["fair"] == {"scales": 4, "does_not": 4}
    assert shares["goodput"] == {"scales": 7, "does_not": 1}


def test_noise_scale_limits_what_a_large_batch_is_worth():
    one = FleetJob("a", 1.0, 10.0, local_batch=32, noise_scale=32.0, max_workers=64)
    assert one.goodput(1) == pytest.approx(10.0)
    assert one.goodput(2) == pytest.approx(20.0 * 64 / 96)
    assert all(one.goodput(n + 1) > one.goodput(n) for n in range(1, 64))


@pytest.mark.parametrize("scheduler", sorted(SCHEDULERS))
def test_random_fleets_keep_their_laws(scheduler, tmp_path):
    """P1: times never decrease, each job ends at most once, no slot is used twice."""
    check_random_fleets(scheduler, tmp_path, range(40))


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", sorted(SCHEDULERS))
def test_ten_thousand_random_fleets_keep_their_laws(scheduler, tmp_path):
    check_random_fleets(scheduler, tmp_path, range(40, 3400))


def check_random_fleets(scheduler, tmp_path, seeds):
    for seed in seeds:
        rng = random.Random(seed)
        lines, up, at = [], [], 0
        for number in range(60):
            at += rng.choice([0, 0, 1000, 5000])  # many things at one instant
            if up and rng.random() < 0.4:
                lines.append(f"{at},remove,{up.pop(rng.randrange(len(up)))}")
            else:
                up.append(f"n{number}")
                lines.append(f"{at},add,n{number}")
        trace = tmp_path / "t.csv"
        trace.write_text("\n".join(lines) + "\n")
        jobs = [
            job(
                f"j{number}",
                rng.choice([1.0, 5.0, 50.0]),
                arrival_s=float(rng.choice([0, 1, 5, 10])),
                max_workers=(most := rng.randint(1, 6)),
                min_workers=rng.randint(1, most),
                **({"cancel_s": float(rng.randint(1, 40))} if rng.random() < 0.3 else {}),
            )
            for number in range(12)
        ]
        hosts = {"trace": str(trace), "slots": 2, "start_median_s": 1.0, "start_sigma": 0.5}
        config = fleet(jobs, hosts, scheduler=scheduler, interval_s=7.0, horizon_h=1.0)
        result, events, _ = play(config)
        times = [event["time_s"] for event in events]
        assert all(a <= b for a, b in pairwise(times))
        ends = [e["job"] for e in events if e["kind"] in ("done", "cancelled")]
        assert len(ends) == len(set(ends))
        assert len(ends) + len(result.starved) == 12
        assert 0 <= (result.summary["utilisation"] or 0) <= 1


def test_the_scheduler_runs_exactly_every_ten_seconds():
    """P6: 10,000 times in 100,000 s of ten-second intervals; the horizon itself counts."""
    config = fleet([job("a", 1e9)], interval_s=10.0, horizon_h=100_000 / 3600)
    seen = []
    result, _, _ = play(config, scheduler=lambda _jobs, _slots: seen.append(1) or {"a": 1})
    assert result.summary["scheduled"] == len(seen) == 1 + 10_000  # one at time zero
    assert "horizon" in result.starved["a"]


def test_tenths_of_a_second_add_up_without_rounding():
    """P6: a million steps of 0.1 s end at 100000.0, not at 100000.00000133288."""
    config = fleet([job("a", 1e6)], {"count": 1}, interval_s=1e5)
    jobs = (FleetJob(f"j{n}", 1.0, 10.0, arrival_s=n / 10) for n in range(10_000))
    rows = []
    run_fleet(config, jobs, on_row=rows.append)
    assert [row["end_s"] for row in rows[:3]] == [0.1, 0.2, 0.3]
    assert rows[-1]["end_s"] == 1000.0


def peak_bytes(count):
    config = fleet([job("unused")], {"count": 4})
    jobs = (FleetJob(f"j{n}", 1.0, 1.0, arrival_s=n / 2) for n in range(count))
    with open(os.devnull, "w") as sink:
        tracemalloc.start()
        run_fleet(config, jobs, on_event=lambda e: sink.write(json.dumps(e)))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


def test_memory_depends_on_live_jobs_not_on_history():
    """P4."""
    assert peak_bytes(4000) < 1.2 * peak_bytes(1000)


@pytest.mark.slow
def test_memory_depends_on_live_jobs_not_on_long_history():
    assert peak_bytes(100_000) < 1.2 * peak_bytes(10_000)


def test_a_starved_job_is_named_with_its_reason():
    """P7: it ends by itself and says who waits for what."""
    result, _, _ = play(fleet([job("big", max_workers=4, min_workers=4), job("small")]))
    assert result.starved["big"] == "waits for 4 workers, 1 slots are up"
    assert result.starved["small"] == "waits for 1 workers, 1 slots are up"  # fifo: behind it


def test_a_scheduler_that_breaks_the_rules_is_told_so():
    config = fleet([job("a", max_workers=2)], {"count": 1})
    with pytest.raises(UsageError, match="2 workers, there are 1 slots"):
        run_fleet(config, scheduler=lambda _jobs, _slots: {"a": 2})
    with pytest.raises(UsageError, match="no live job"):
        run_fleet(config, scheduler=lambda _jobs, _slots: {"x": 1})


FILE = """
[run]
seed = {seed}
scheduler = "goodput"
horizon_h = 50
[hosts]
count = 6
mtbf_h = 0.2
failure_shape = 0.7
repair_h = 0.05
start_median_s = 20
start_sigma = 0.4
[[jobs]]
name = "a"
samples = 5000
samples_per_s = 1.0
max_workers = 3
checkpoint_s = 60
[[jobs]]
name = "b"
samples = 4000
samples_per_s = 1.0
max_workers = 2
{more}
"""


def events_of(tmp_path, name, seed, hash_seed, more=""):
    file = tmp_path / f"{name}.toml"
    file.write_text(FILE.format(seed=seed, more=more))
    code = "from kfcore.cli import main; main()"
    subprocess.run(
        [sys.executable, "-c", code, "fleet", str(file), "--out", str(tmp_path / name)],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        check=True, capture_output=True, timeout=100,
    )  # fmt: skip
    return (tmp_path / name / "events.jsonl").read_bytes()


def test_the_same_seed_gives_the_same_bytes_under_any_hash_seed(tmp_path):
    """P11, first half."""
    first = events_of(tmp_path, "x", 7, 0)
    assert first == events_of(tmp_path, "y", 7, 1)
    assert first != events_of(tmp_path, "z", 8, 0)
    assert b"host_down" in first


def test_one_more_job_leaves_the_draws_of_all_others_unchanged():
    """P11, second half: failures and start-ups are the same with and without the third job."""
    hosts = {"count": 8, "mtbf_h": 0.05, "start_median_s": 5.0, "start_sigma": 0.5}
    two = [job("a", 300.0), job("b", 300.0)]
    seen = []
    for jobs in (two, [*two, job("late", 10.0, arrival_s=1.0)]):
        _, events, rows = play(fleet(jobs, hosts, seed=3))
        downs = {e["host"]: e["time_s"] for e in reversed(events) if e["kind"] == "host_down"}
        seen.append((downs, rows["a"]["end_s"], rows["b"]["end_s"]))
    known = seen[0][0].keys() & seen[1][0].keys()
    assert {h: seen[0][0][h] for h in known} == {h: seen[1][0][h] for h in known}
    assert seen[0][1:] == seen[1][1:]


def test_a_bamboo_trace_counts_to_its_facts(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("0,add,a\n0,add,b\n1800000,remove,a\n3600000,add,c\n")
    found = facts(read_trace(file))
    assert (found.host_hours, found.most, found.final) == (1.5, 2, 2)
    assert found.mean == pytest.approx(1.5)
    file.write_text("0,add,a\n5,remove,b\n")
    with pytest.raises(UsageError, match=r"line 2: b is not up"):
        read_trace(file)
    file.write_text("9,add,a\n5,remove,a\n")
    with pytest.raises(UsageError, match=r"line 2: time goes back"):
        read_trace(file)


def test_a_skypilot_trace_is_hosts_at_each_tick(tmp_path):
    file = tmp_path / "t.json"
    file.write_text(json.dumps({"metadata": {"gap_seconds": 60}, "data": [2, 2, 0, 3]}))
    found = facts(read_trace(file))
    assert (found.most, found.final) == (3, 3)
    assert found.host_hours == pytest.approx(4 / 60)
    file.write_text("{}")
    with pytest.raises(UsageError, match="gap_seconds"):
        read_trace(file)


def test_spot_prices_hold_until_the_next_one(tmp_path):
    file = tmp_path / "p.json"
    rows = [
        {"AvailabilityZone": "z1", "InstanceType": "p3", "ProductDescription": "Linux/UNIX",
         "SpotPrice": price, "Timestamp": stamp}
        for price, stamp in (("3.0", "2024-01-01T02:00:00Z"), ("1.5", "2024-01-01T01:00:00Z"))
    ]  # fmt: skip
    file.write_text(json.dumps({"SpotPriceHistory": rows, "NextToken": ""}))
    prices = read_prices(file, "p3")
    assert (prices.at(0), prices.at(3599.9), prices.at(3600)) == (1.5, 1.5, 3.0)
    assert prices.cost(1800, 7200) == pytest.approx(0.75 + 3.0)
    with pytest.raises(UsageError, match="p4 in any zone"):
        read_prices(file, "p4")
    assert PriceHistory([0.0], [2.0]).cost(0, 1800) == pytest.approx(1.0)
