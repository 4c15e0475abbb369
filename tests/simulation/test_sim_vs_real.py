"""The pure parts of experiment e12: its fit finds constants, its verdict counts."""

import pytest

from experiments.e12_sim_vs_real import run as e12

TRUE = {"tcp_efficiency": 0.9, "latency_us": 200.0}


def rows():
    out = []
    for hosts in (2, 4):
        for spec in ("ring", "star", "binary_tree"):
            for size in (65536, 1 << 20, 8 << 20):
                row = {"hosts": hosts, "rate_mbit": 500, "disturbance": "none", "repeat": 0,
                       "schedule": spec, "buffer_bytes": size}  # fmt: skip
                out.append({**row, "real_s": e12._simulate(row, TRUE)})
    return out


def test_the_fit_finds_the_constants_that_made_the_rings():
    found = e12._fit([row for row in rows() if e12._fitted(row, 500)])
    assert found["tcp_efficiency"] == pytest.approx(0.9, abs=0.011)
    assert found["latency_us"] == pytest.approx(200.0, rel=0.2)


def test_the_verdict_of_a_perfect_simulator_is_perfect():
    verdict = e12.judge(rows(), TRUE, "quick")
    assert verdict["median_error"] == verdict["p95_error"] == 0.0
    assert verdict["best_picked"] == verdict["best_asked"] == 6


def test_a_slow_link_is_slower_than_none():
    row = {"hosts": 4, "rate_mbit": 500, "disturbance": "none", "schedule": "ring",
           "buffer_bytes": 8 << 20}  # fmt: skip
    slow = e12._simulate({**row, "disturbance": "slow link"}, TRUE)
    assert slow == pytest.approx(4 * e12._simulate(row, TRUE), rel=0.1)
