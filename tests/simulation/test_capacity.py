"""Cards that change over time, token buckets, and traces of a run."""

import json

import numpy as np
import pytest

from kfcore.errors import UsageError
from kfsim.cluster import Cluster
from kfsim.network import Links
from kfsim.scenario import parse
from kfsim.simulation import simulate

RAW = {
    "run": {"steps": 6},
    "cluster": {"hosts": 4, "nic_gbps": 8.0, "latency_us": 0.0},
    "workload": {"model": "resnet50", "samples_per_s": 250.0, "local_batch": 64},
    "system": {"kind": "bsp"},
}
RING_S = 2 * 3 / 4 * 25_583_592 * 4 / 1e9


def test_a_slow_card_slows_the_steps_that_it_covers_and_no_others():
    raw = {**RAW, "capacity": [{"host": 2, "share": 0.25, "start_step": 3, "stop_step": 5}]}
    exposed = [row["exposed_s"] for row in simulate(parse(raw)).rows]
    assert exposed[0] == pytest.approx(RING_S, rel=1e-3)
    # The mean of the ranks: those that receive last wait less than four times as long.
    assert all(3.2 * RING_S < value < 4.1 * RING_S for value in exposed[2:4])
    assert all(value < 1.5 * RING_S for value in exposed[4:])


def test_a_card_that_does_not_exist_is_refused():
    with pytest.raises(UsageError, match=r"capacity\[0\]: host must be < 4"):
        parse({**RAW, "capacity": [{"host": 4, "share": 0.5}]})


def test_a_full_bucket_saves_its_own_time_and_never_more_than_all():
    def ring_s(size: int, burst_kib: float) -> float:
        links = Links(Cluster(hosts=4, nic_gbps=0.8, latency_us=100.0, burst_kib=burst_kib))
        return float(links.run("ring", size, np.zeros(4)).finish_s.max())

    assert ring_s(10_000_000, 0) - ring_s(10_000_000, 100) == pytest.approx(102_400 / 1e8)
    assert ring_s(4000, 100) == pytest.approx(6 * 100e-6)  # all of it passes at once


def test_a_trace_opens_and_shows_every_step(tmp_path):
    simulate(parse(RAW), trace=tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == 6 * 4 * 2
    assert all(event["dur"] >= 0 for event in spans)
    assert {event["args"]["step"] for event in spans} == set(range(1, 7))
    last = {}
    for event in spans:
        key = (event["pid"], event["tid"])
        assert event["ts"] >= last.get(key, 0.0) - 0.01
        last[key] = event["ts"] + event["dur"]
