"""Replay of schedules: closed forms, laws, agreement of the tiers."""

import math
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfcore import schedule
from kfcore.errors import UsageError
from kfsim.cluster import Cluster
from kfsim.network import Links

GBPS = 8.0  # 1e9 bytes per second
RATE = 1e9
LATENCY_S = 50e-6


def links(hosts: int, **more) -> Links:
    return Links(Cluster(**{"hosts": hosts, "nic_gbps": GBPS, "latency_us": 50.0, **more}))


def time_s(spec: str, hosts: int, size: int, *, tier: str = "auto", **more) -> float:
    done = links(hosts, **more).run(spec, size, np.zeros(hosts), tier=tier)
    return float(done.finish_s.max())


def tree_s(n: int, size: int) -> float:
    """Un-pipelined full binary tree: each level takes in, then sends out, two buffers."""
    levels = int(math.log2(n + 1)) - 1
    return 2 * levels * (LATENCY_S + 2 * size / RATE)


@pytest.mark.parametrize("tier", ["recurrence", "fluid"])
@pytest.mark.parametrize("n", range(2, 65))
def test_ring_equals_its_closed_form(n, tier):
    size = 4096 * n
    expected = 2 * (n - 1) * (LATENCY_S + size / n / RATE)
    assert time_s("ring", n, size, tier=tier) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("tier", ["recurrence", "fluid"])
@pytest.mark.parametrize("n", [2, 4, 8, 16, 32, 64])
def test_halving_doubling_equals_its_closed_form(n, tier):
    size = 65536 * n
    expected = 2 * math.log2(n) * LATENCY_S + 2 * (n - 1) / n * size / RATE
    assert time_s("halving_doubling", n, size, tier=tier) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("tier", ["recurrence", "fluid"])
@pytest.mark.parametrize("n", [3, 7, 15, 31, 63])
def test_full_binary_tree_equals_its_closed_form(n, tier):
    size = 1_000_000
    assert time_s("binary_tree", n, size, tier=tier) == pytest.approx(tree_s(n, size), rel=1e-9)


@pytest.mark.parametrize("spec", ["ring", "binary_tree", "halving_doubling", "star"])
@pytest.mark.parametrize("n", range(2, 65))
def test_replay_never_exceeds_the_price_list(spec, n):
    size = 4096 * n
    price = schedule.cost(
        schedule.build(spec, n), size, latency_s=LATENCY_S, bytes_per_s=RATE
    ).time_s
    assert 0.5 * price <= time_s(spec, n, size, tier="recurrence") <= price * (1 + 1e-12)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(2, 24),
    spec=st.sampled_from(["ring", "binary_tree", "halving_doubling", "clique", "star"]),
    size=st.integers(0, 3_000_000),
    delays=st.lists(st.floats(0, 0.01), min_size=24, max_size=24),
    tier=st.sampled_from(["recurrence", "fluid"]),
)
def test_nobody_finishes_before_the_bound_or_before_being_ready(n, spec, size, delays, tier):
    ready = np.array(delays[:n])
    done = links(n).run(spec, size, ready, tier=tier)
    assert np.all(done.finish_s >= ready)
    # The news of the last one to be ready must travel.
    assert done.finish_s.max() >= ready.max() + LATENCY_S
    assert done.finish_s.max() - ready.min() >= done.bytes_sent.max() / RATE - 1e-9


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(2, 16),
    spec=st.sampled_from(["ring", "binary_tree", "halving_doubling", "star"]),
    slow=st.floats(1.0, 50.0),
    factor=st.floats(1.0, 4.0),
)
def test_more_bandwidth_is_never_slower(n, spec, slow, factor):
    before = time_s(spec, n, 1_000_000, nic_gbps=slow)
    assert time_s(spec, n, 1_000_000, nic_gbps=slow * factor) <= before * (1 + 1e-12)


@settings(max_examples=30, deadline=None)
@given(n=st.integers(2, 24), delays=st.lists(st.floats(0, 0.02), min_size=24, max_size=24))
def test_tiers_agree_on_a_ring_with_uneven_starts(n, delays):
    ready = np.array(delays[:n])
    fast = links(n).run("ring", 1_000_000, ready, tier="recurrence").finish_s.max()
    fluid = links(n).run("ring", 1_000_000, ready, tier="fluid").finish_s.max()
    assert fast == pytest.approx(fluid, rel=1e-9)


def test_racks_and_background_escalate_to_the_fluid_tier():
    racked = links(8, hosts_per_rack=4, over_subscription=4.0)
    racked.run("ring", 1_000_000, np.zeros(8))
    assert racked.tiers["ring over 8"].startswith("fluid: racks or background")
    plain = links(8)
    plain.run("ring", 1_000_000, np.zeros(8))
    assert plain.tiers["ring over 8"].startswith("recurrence")
    plain.disturb(((0, "in", 2),))
    with pytest.raises(UsageError, match="knows ports only"):
        plain.run("ring", 1_000_000, np.zeros(8), tier="recurrence")


def test_a_rack_uplink_limits_a_ring_only_beyond_the_hop_that_leaves_the_rack():
    times = [
        time_s("ring", 8, 8_000_000, hosts_per_rack=4, over_subscription=ratio)
        for ratio in (1.0, 4.0, 8.0)
    ]
    # One hop of the ring leaves each rack of four: up to 4:1 it has a full card's rate.
    assert times[1] == pytest.approx(times[0], rel=1e-9)
    assert times[2] > 1.5 * times[0]


def test_background_flows_slow_a_star_by_their_fair_share():
    quiet, busy = links(8, latency_us=0), links(8, latency_us=0)
    busy.disturb(((0, "in", 7),))
    size = 1_000_000
    before = quiet.run("star", size, np.zeros(8)).finish_s.max()
    after = busy.run("star", size, np.zeros(8)).finish_s.max()
    # Seven connections of ours beside seven of theirs: the reduce half takes twice as long.
    assert before == pytest.approx(14 * size / RATE, rel=1e-9)
    assert after == pytest.approx(21 * size / RATE, rel=1e-9)


def test_ranks_of_one_host_share_its_card():
    one = links(4).run("star", 1_000_000, np.zeros(4)).finish_s.max()
    packed = links(2, ranks_per_host=2).run("star", 1_000_000, np.zeros(4)).finish_s.max()
    # Three buffers in and out of the root's card, or two when a third comes from its own host.
    assert one == pytest.approx(2 * (3e6 / RATE + LATENCY_S), rel=1e-9)
    assert packed == pytest.approx(2 * (2e6 / RATE + LATENCY_S), rel=1e-9)


def test_prepared_collectives_are_dropped_when_they_take_much_memory():
    many = links(100)
    for size in range(1, 101):  # a clique of 100 takes 2.6 MB
        many.run("clique", 400 * size, np.zeros(100))
    assert 100_000_000 < many._kept_bytes <= 200_000_000
    assert 40 < len(many._kept) < 100


def test_rings_are_kept_in_little_memory():
    many = links(256)
    many.run("ring", 4096, np.zeros(256))
    before = resident_bytes()
    for size in range(2, 101):
        many.run("ring", 4096 * size, np.zeros(256))
    assert len(many._kept) == 100
    assert many._kept_bytes < 110_000_000
    assert resident_bytes() - before < 150_000_000  # with their messages: 1.1 GB


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
