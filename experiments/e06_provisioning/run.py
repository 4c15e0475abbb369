"""Simulates provisioning by marginal throughput beside fixed numbers of workers."""

from pathlib import Path
from typing import Any

import numpy as np

from experiments._shared.grid import repeat_seeds
from experiments._shared.record import RowWriter
from experiments._shared.runner import Progress
from kfsim import load, simulate

HERE = Path(__file__).resolve().parent
LIMIT, WINDOWS, PUBLISHED_WINDOW = 10, 10, 800
CLUSTERS = {
    "ring_10": {"cluster.nic_gbps": 10.0, "system.schedule": "ring"},
    "star_25": {"cluster.nic_gbps": 25.0, "system.schedule": "star"},
    "ring_4": {"cluster.nic_gbps": 4.0, "system.schedule": "ring"},
}
VARIANTS = ("adaptive", "fixed_1", "fixed_10")
WINDOW = {"quick": 40, "full": 800}
REPEATS = {"quick": 5, "full": 5}
KEY = ("cluster", "variant", "repeat", "window")
VALUES = ("workers", "throughput_samples_per_s", "time_s", "samples", "cost_usd")


def run(out: Path, seed: int, quick: bool, progress: Progress) -> dict[str, Any]:
    """Every cluster under the policy and under two fixed sizes."""
    size = "quick" if quick else "full"
    window, repeats = WINDOW[size], REPEATS[size]
    seeds = repeat_seeds(seed, repeats)
    todo = [(c, v, r) for c in CLUSTERS for v in VARIANTS for r in range(repeats)]
    with RowWriter(out / "rows.csv", (*KEY, *VALUES), key=KEY) as rows:
        for done, (cluster, variant, repeat) in enumerate(todo):
            progress(done, len(todo), f"{cluster}, {variant}, repeat {repeat}")
            key = {"cluster": cluster, "variant": variant, "repeat": repeat}
            if rows.has(**key, window=WINDOWS):
                continue
            for row in windows(CLUSTERS[cluster], variant, seeds[repeat], window):
                if not rows.has(**key, window=row["window"]):
                    rows.add(**key, **row)
        progress(len(todo), len(todo), "done")
    return {
        "repeats": repeats,
        "seeds": seeds,
        "warmup_steps": window // 2,
        "window_steps": window,
    }


def windows(
    cluster: dict[str, Any], variant: str, seed: int, window: int
) -> list[dict[str, Any]]:
    """One run as a row a window; throughput is the mean of the window's second half."""
    scenario = load(HERE / "scenario.toml")
    shorter = window / PUBLISHED_WINDOW
    values = {
        **cluster,
        "run.steps": WINDOWS * window,
        "run.seed": seed,
        "cluster.hosts": LIMIT if variant == "fixed_10" else 1,
        "resize.join_s": scenario.resize.join_s * shorter,
        "resize.leave_s": scenario.resize.leave_s * shorter,
    }
    policy = f"{HERE / 'policy.py'}:MarginalThroughput(window={window}, limit={LIMIT})"
    policies = [policy] if variant == "adaptive" else []
    steps = simulate(scenario.with_values(values), policies=policies).rows
    found = []
    for number in range(1, WINDOWS + 1):
        part = steps[(number - 1) * window : number * window]
        half = part[window // 2 :]
        found.append(
            {
                "window": number,
                "workers": half[-1]["world_size"],
                "throughput_samples_per_s": float(
                    np.mean([row["throughput_samples_per_s"] for row in half])
                ),
                "time_s": part[-1]["time_s"],
                "samples": sum(row["samples"] for row in steps[: number * window]),
                "cost_usd": part[-1]["cost"],
            }
        )
    return found
