"""Simulates 2 x 8 GPUs at several network rates under four all-reduces."""

from pathlib import Path
from typing import Any

from experiments._shared.grid import fill_rows, grid, repeat_seeds
from experiments._shared.runner import Progress
from kfsim import load, simulate

HERE = Path(__file__).resolve().parent
SCHEDULES = {
    "flat": "ring",
    "hierarchical": "hierarchical(intra=ring,inter=ring,ranks_per_host=8)",
    "own": "hierarchical(intra=star,inter=binary_tree,ranks_per_host=8)",
    "own_flat": "multi_binary_tree_star",
}
NIC_GBPS = {
    "quick": (2.5, 5.0, 7.5, 10.0, 15.0, 20.0, 40.0, 80.0),
    "full": (2.5, 5.0, 7.5, 10.0, 12.5, 15.0, 20.0, 40.0, 80.0),
}
REPEATS = {"quick": 5, "full": 20}


def run(out: Path, seed: int, quick: bool, progress: Progress) -> dict[str, Any]:
    """Every schedule at every rate."""
    size = "quick" if quick else "full"
    seeds = repeat_seeds(seed, REPEATS[size])
    scenario = load(HERE / "scenario.toml")

    def measure(series: str, nic_gbps: float, repeat: int) -> dict[str, Any]:
        values = {
            "cluster.nic_gbps": nic_gbps,
            "system.schedule": SCHEDULES[series],
            "run.seed": seeds[repeat],
        }
        summary = simulate(scenario.with_values(values)).summary
        return {
            "samples_per_s_per_gpu": summary["per_worker_samples_per_s"],
            "exposed_s": summary["exposed_s"],
        }

    points = grid(series=tuple(SCHEDULES), nic_gbps=NIC_GBPS[size], repeat=range(REPEATS[size]))
    values = ("samples_per_s_per_gpu", "exposed_s")
    fill_rows(out / "rows.csv", points, measure, values, progress)
    return {
        "repeats": REPEATS[size],
        "seeds": seeds,
        "warmup_steps": scenario.run.warmup_steps,
        "schedules": SCHEDULES,
    }
