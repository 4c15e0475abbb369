"""How far the fast tiers are from exact max-min sharing: the bounds that ``auto`` relies on."""

import numpy as np
import pytest

from kfcore import _native, schedule

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
