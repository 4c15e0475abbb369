"""How far the fast tiers are from exact max-min sharing: the bounds that ``auto`` relies on."""

import numpy as np
import pytest

from kfcore import _native, schedule
from kfcore.errors import UsageError
from kfsim.scenario import parse
from kfsim.simulation import simulate

RATE = 1e9
SIZE = 25_000_000
FEW_ERROR = 0.015  # native/src/replay/replay.cc, kFewError
MANY_ERROR = 0.03
MANY_BATCH = 0.05


def replay(
    spec: str, n: int, tier: str, *, batch_fraction: float = -1.0, racks: int = 0
) -> _native.Replay:
    fabric = _native.make_fabric(
        host_of_rank=list(range(n)),
        egress_bytes_per_s=[RATE] * n,
        ingress_bytes_per_s=[RATE] * n,
        latency_s=50e-6,
        rack_of_host=[host // racks for host in range(n)] if racks else [],
        rack_bytes_per_s=racks * RATE / 4 if racks else float("inf"),
    )
    return _native.Replay(
        schedule.build(spec, n), fabric, SIZE, tier=tier, batch_fraction=batch_fraction
    )


def finishes(one: _native.Replay, starts: list[np.ndarray]) -> np.ndarray:
    return np.array([one.run(start).max() for start in starts])


def starts(n: int, spread_s: float, count: int) -> list[np.ndarray]:
    rng = np.random.default_rng([n, count])
    return [np.abs(rng.normal(size=n)) * spread_s for _ in range(count)]


@pytest.mark.parametrize("spread_s", [1e-4, 0.003, 0.01])
@pytest.mark.parametrize(("n", "count"), [(8, 40), (16, 80), (31, 40), (64, 6)])
def test_batched_forests_finish_as_exact_ones_do_on_average(n, count, spread_s):
    """A forest of trees is chaotic: one run tells little, the mean over starts does."""
    at = starts(n, spread_s, count)
    exact = finishes(replay("multi_binary_tree_star", n, "fluid"), at).mean()
    few = finishes(replay("multi_binary_tree_star", n, "batched"), at).mean()
    coarse = replay("multi_binary_tree_star", n, "batched", batch_fraction=MANY_BATCH)
    assert few == pytest.approx(exact, rel=FEW_ERROR)
    assert finishes(coarse, at).mean() == pytest.approx(exact, rel=MANY_ERROR)


def test_a_forest_of_trees_is_chaotic():
    """Why means are compared: starts 10 us apart move the exact answer by several percent."""
    exact = finishes(replay("multi_binary_tree_star", 16, "fluid"), starts(16, 1e-5, 40))
    assert exact.max() > 1.03 * exact.min()


@pytest.mark.parametrize("spread_s", [1e-5, 1e-4, 0.01])
@pytest.mark.parametrize(
    "spec", ["clique", "halving_doubling", "double_binary_tree", "multi_binary_tree_star"]
)
def test_batched_sharing_of_racks_is_near_the_exact_one(spec, spread_s):
    at = starts(32, spread_s, 12)
    exact = finishes(replay(spec, 32, "fluid", racks=8), at).mean()
    fast = finishes(replay(spec, 32, "batched", racks=8), at).mean()
    assert fast == pytest.approx(exact, rel=FEW_ERROR)


def test_first_come_first_served_ports_are_not_max_min_fair():
    """Why ``auto`` takes the recurrence only where each port serves one connection."""
    one = replay("halving_doubling", 64, "recurrence")
    assert one.tier_error < 0
    at = starts(64, 0.01, 1)
    exact = finishes(replay("halving_doubling", 64, "fluid"), at)
    assert finishes(one, at)[0] < 0.7 * exact[0]


def test_auto_bounds_its_error():
    ring = replay("ring", 64, "auto")
    assert (ring.tier, ring.tier_error) == ("recurrence", 0.0)
    tree = replay("binary_tree", 64, "auto")
    assert (tree.tier, tree.tier_error) == ("fluid", 0.0)
    forest = replay("multi_binary_tree_star", 64, "auto")
    assert (forest.tier, forest.tier_error) == ("batched", FEW_ERROR)
    many = replay("multi_binary_tree_star", 200, "auto")
    assert (many.tier, many.tier_error) == ("batched", MANY_ERROR)


def test_the_three_ways_agree_where_ranks_keep_in_step():
    for spec, n in [("ring", 5), ("ring", 100), ("halving_doubling", 16), ("clique", 2)]:
        size = 4_000 * n
        fabric = _native.make_fabric(
            host_of_rank=list(range(n)), egress_bytes_per_s=[RATE] * n,
            ingress_bytes_per_s=[RATE] * n, latency_s=50e-6, message_s=7e-6,
            reduce_bytes_per_s=3e9,
        )  # fmt: skip
        plan = schedule.build(spec, n)
        tiers = ["closed_form", "recurrence", "fluid", "auto"]
        made = [_native.Replay(plan, fabric, size, tier=tier) for tier in tiers]
        closed, *others = (one.run(np.full(n, 2.5)) for one in made)
        for other in others:
            assert other == pytest.approx(closed, rel=1e-12)
        price = schedule.cost(plan, size, latency_s=50e-6, bytes_per_s=RATE).time_s
        assert closed.max() - 2.5 > price
        assert [one.runs for one in made] == [(1, 0, 0), (0, 1, 0), (0, 1, 0), (1, 0, 0)]
        assert (made[0].tier_error, made[2].tier_error) == (0.0, 0.0)


def test_auto_leaves_the_closed_form_when_a_rank_is_late():
    n = 8
    one = replay("ring", n, "auto")
    late = np.zeros(n)
    late[3] = 1e-3
    both = replay("ring", n, "recurrence").run(late)
    assert one.run(late) == pytest.approx(both, rel=1e-12)
    one.run(late + 1.0)
    one.run(np.zeros(n))
    assert one.runs == (1, 1, 1)


@pytest.mark.parametrize(
    ("spec", "n", "racks"),
    [("binary_tree", 7, 0), ("ring", 7, 0), ("ring", 8, 4), ("star", 4, 0)],
)
def test_no_closed_form_where_ranks_differ_or_links_are_shared(spec, n, racks):
    with pytest.raises(UsageError, match="tier closed_form needs equal ports"):
        replay(spec, n, "closed_form", racks=racks)
    assert replay(spec, n, "auto", racks=racks).closed_form_s is None


def test_a_closed_form_that_was_asked_for_refuses_uneven_starts():
    with pytest.raises(UsageError, match="start together"):
        replay("ring", 8, "closed_form").run(np.arange(8.0))


def test_the_explanation_counts_every_step_and_names_reason_and_bound():
    raw = {
        "run": {"steps": 6},
        "cluster": {"hosts": 8, "nic_gbps": 8.0},
        "workload": {"model": "resnet50", "samples_per_s": 250.0, "local_batch": 64},
        "system": {"kind": "bsp"},
        "interference": [{"host": 0, "flows": 1, "start_step": 4}],
    }
    (told,) = simulate(parse(raw)).explanation
    assert told["steps"] == 6
    plain, disturbed = told["collectives"]
    assert (plain["tier"], plain["disturbed"], plain["error_bound"]) == ("recurrence", False, 0)
    assert "closed form" in plain["reason"]
    assert (disturbed["tier"], disturbed["disturbed"]) == ("fluid", True)
    assert "share links" in disturbed["reason"]
    asked = sum(
        one[how]
        for one in told["collectives"]
        for how in ("closed_form", "replayed", "recalled")
    )
    assert asked + told["recalled"] == 6
