"""The pure parts of experiment e12: its fit finds constants, its verdict counts."""

import pytest

from experiments.e12_sim_vs_real import model, run

TRUE = {"tcp_efficiency": 0.9, "latency_us": 200.0}


def rows():
    out = []
    for hosts in (2, 4):
        for spec in ("ring", "star", "binary_tree"):
            for size in (65536, 1 << 20, 8 << 20):
                row = {"hosts": hosts, "rate_mbit": 500, "disturbance": "none", "repeat": 0,
                       "schedule": spec, "buffer_bytes": size}  # fmt: skip
                seconds = model.simulate(row, TRUE)
                out.append({**row, "real_s": seconds, "simulated_s": seconds})
    return out


def test_the_fit_finds_the_constants_that_made_the_rings():
    found = model.fit([row for row in rows() if model.fitted(row, 500)])
    assert found["tcp_efficiency"] == pytest.approx(0.9, abs=0.011)
    assert found["latency_us"] == pytest.approx(200.0, rel=0.2)


def test_the_verdict_of_a_perfect_simulator_is_perfect():
    verdict = model.judge(rows(), 500)
    assert verdict["median_error"] == verdict["p95_error"] == 0.0
    assert verdict["best_picked"] == verdict["best_asked"] == 6


def test_a_wrong_pick_and_a_wrong_time_are_counted():
    some = rows()
    for row in some:
        if row["schedule"] == "star" and row["hosts"] == 4:
            row["simulated_s"] /= 10
    verdict = model.judge(some, 500)
    assert verdict["best_picked"] == 3
    assert verdict["p95_error"] == pytest.approx(0.9)


@pytest.mark.parametrize(("disturbance", "factor"), [("slow link", 4), ("background flow", 2)])
def test_a_disturbed_ring_is_slower_by_what_its_worst_link_lost(disturbance, factor):
    row = {"hosts": 4, "rate_mbit": 500, "disturbance": "none", "schedule": "ring",
           "buffer_bytes": 8 << 20}  # fmt: skip
    slow = model.simulate({**row, "disturbance": disturbance}, TRUE)
    assert slow == pytest.approx(factor * model.simulate(row, TRUE), rel=0.1)


@pytest.mark.parametrize("size", ["quick", "full"])
def test_the_networks_that_the_fit_needs_come_first(size):
    networks = run._networks(size)
    fits = [run._fits(network, size) for network in networks]
    assert fits == sorted(fits, reverse=True)
    assert sum(fits) == 2 * run.REPEATS[size]
    assert len(set(networks)) == len(networks)


def test_every_schedule_is_asked_in_every_network_and_none_takes_long():
    for hosts, rate, disturbance, _ in run._networks("full"):
        asked = model.configurations(hosts, rate, disturbance, run.SIZES["full"])
        assert {row["schedule"] for row in asked} == set(model.SCHEDULES)
