"""Four batch sizes on real gradients (digits) and on published traces (CIFAR-10)."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments._shared.grid import repeat_seeds
from experiments._shared.record import RowWriter, read_rows
from experiments._shared.runner import Progress
from experiments.e04_adaptive_batch.digits import recorded_digits
from experiments.e04_adaptive_batch.policy import LinearWarmup, StopAfter, StopAtProgress
from kfcore.errors import InternalError
from kfcore.policy.noise_scale import NoiseScaleBatch
from kfsim import load, simulate

HERE = Path(__file__).resolve().parent
VARIANTS = ("small", "large", "large_tuned", "adaptive")
WORKERS = 4
# The rate is the one that examples/digits.py was tuned for, at the small batch.
DIGITS = {"small": 8, "large": 64, "rate": 0.5, "warmup_epochs": 5}
CIFAR = {"small": 32, "large": 1024}
EPOCHS = {"quick": 30, "full": 60}
REPEATS = {"quick": 5, "full": 20}
STANDS_FOR = 10  # steps of CIFAR-10 that a simulated one stands for
KEY = ("part", "variant", "repeat", "point")
VALUES = ("time_s", "epoch", "steps", "local_batch", "accuracy", "progress_ratio")


def run(out: Path, seed: int, quick: bool, progress: Progress) -> dict[str, Any]:
    """Both parts, all variants."""
    size = "quick" if quick else "full"
    seeds = repeat_seeds(seed, REPEATS[size])
    torch.set_num_threads(1)
    parts = {"digits": lambda v, s: digits(v, s, EPOCHS[size]), "cifar10": cifar10}
    todo = [(p, v, r) for p in parts for v in VARIANTS for r in range(REPEATS[size])]
    with RowWriter(out / "rows.csv", (*KEY, *VALUES), key=KEY) as rows:
        for done, (part, variant, repeat) in enumerate(todo):
            progress(done, len(todo), f"{part}, {variant}, repeat {repeat}")
            key = {"part": part, "variant": variant, "repeat": repeat}
            if rows.has(**key, point=0):
                continue
            found = parts[part](variant, seeds[repeat])
            for point, row in reversed(
                list(enumerate(found))
            ):  # point 0 last: then all are there
                if not rows.has(**key, point=point):
                    rows.add(**key, point=point, **row)
        progress(len(todo), len(todo), "done")
    return {
        "repeats": REPEATS[size],
        "seeds": seeds,
        "epochs": EPOCHS[size],
        "warmup_steps": 0,
        "policy": "NoiseScaleBatch",
    }


def digits(variant: str, seed: int, epochs: int) -> list[dict[str, Any]]:
    """Real gradients: a row after each pass over the data."""
    task = recorded_digits(seed)
    small, large, rate = DIGITS["small"], DIGITS["large"], DIGITS["rate"]
    policies: list[Any] = [StopAfter(epochs)]
    if variant == "adaptive":
        policies.append(NoiseScaleBatch(cap=int(large)))
    if variant == "large_tuned":
        steps = int(DIGITS["warmup_epochs"] * task.n_samples / (WORKERS * large))
        policies.append(LinearWarmup(rate, rate * (large / small) ** 0.5, steps))
    scenario = load(HERE / "scenario.toml").with_values(
        {
            "run.seed": seed,
            "workload.local_batch": large if variant.startswith("large") else small,
            "workload.learning_rate": rate,
        }
    )
    rows = simulate(scenario, policies=policies, task=task).rows
    return [
        {
            "time_s": rows[step - 1]["time_s"],
            "epoch": epoch,
            "steps": step,
            "local_batch": rows[step - 1]["local_batch"],
            "accuracy": accuracy,
            "progress_ratio": None,
        }
        for epoch, (step, accuracy, _) in enumerate(task.history, start=1)
    ]


@functools.cache
def iterations_to_target(global_batch: float) -> float:
    """Published iterations to 94 % at a batch, log-log between the published ones."""
    points = read_rows(HERE / "published.csv")
    batches = np.log([row["global_batch"] for row in points])
    counts = np.log([row["iterations_to_94_percent"] for row in points])
    return float(np.exp(np.interp(np.log(global_batch), batches, counts)))


def cifar10(variant: str, seed: int) -> list[dict[str, Any]]:
    """Published traces: progress towards 94 % at about twenty moments."""
    fixed = variant != "adaptive"
    scenario = load(HERE / "scenario.toml").with_values(
        {
            "run.seed": seed,
            "run.steps": 100 if fixed else 4000,
            "workload.local_batch": CIFAR["large" if variant.startswith("large") else "small"],
        }
    )
    policies: list[Any] = []
    if not fixed:
        policies = [
            NoiseScaleBatch(),
            StopAtProgress(lambda batch: STANDS_FOR / iterations_to_target(batch) / 1.02),
        ]
    rows = simulate(scenario, policies=policies).rows
    step_s = np.array([row["step_s"] for row in rows]) * STANDS_FOR
    batch = np.array([row["global_batch"] for row in rows])
    worth = {
        b: STANDS_FOR / iterations_to_target(128 if variant == "large" else b)
        for b in set(batch)
    }
    gain = np.array([worth[b] for b in batch])
    if fixed:  # nothing changes: go on with the mean
        count = int(np.ceil(1 / gain[0]))
        step_s, gain = np.full(count, step_s.mean()), np.full(count, gain[0])
        batch = np.full(count, batch[0])
    done, time_s = np.cumsum(gain), np.cumsum(step_s)
    samples = np.cumsum(batch) * STANDS_FOR
    if done[-1] < 1 - 1e-9:
        raise InternalError(
            f"{variant} is only {done[-1]:.2f} of the way after {len(rows)} steps"
        )
    end = int(np.searchsorted(done, 1 - 1e-9)) + 1
    return [
        {
            "time_s": float(time_s[i]),
            "epoch": float(samples[i] / 50_000),
            "steps": int((i + 1) * STANDS_FOR),
            "local_batch": int(batch[i] // WORKERS),
            "accuracy": None,
            "progress_ratio": float(min(1.0, done[i])),
        }
        for i in sorted({*np.linspace(0, end - 1, 21).astype(int)})
    ]
