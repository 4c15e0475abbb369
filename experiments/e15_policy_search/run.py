"""Searches policy parameters in the simulator; confirms the winner on real processes."""

import functools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments._shared.grid import grid, repeat_seeds
from experiments._shared.record import RowWriter, read_rows
from experiments._shared.runner import Progress
from kfcore.errors import KfError, UsageError
from kfcore.launch import LaunchSpec, launch
from kfsim import load, simulate

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parents[1] / "examples" / "digits.py"
WORKERS = 4
STEPS = 400  # of a training; every choice reaches the target in fewer
SHORT = 200  # tried first: a run is the beginning of a longer one
BEYOND = 30  # steps that the real run may go on after the simulated one was there
TARGET_LOSS, MEAN_OVER = 0.25, 10  # the mean loss of this many steps
CHOICES = {
    "quick": {"factor": (0.5, 2.0), "every": (10, 40), "cap": (32,)},
    "full": {
        "factor": (0.5, 1.0, 2.0, 4.0, 8.0),
        "every": (5, 10, 20, 40),
        "cap": (16, 32, 64, 128),
    },
}
REPEATS = {"quick": 5, "full": 10}
NONE = {"factor": 0.0, "every": 0, "cap": 0}  # the fixed batch
KEY = ("world", "factor", "every", "cap", "repeat")
VALUES = ("steps_to_target", "samples_to_target", "time_to_target_s", "last_local_batch")


def run(out: Path, seed: int, quick: bool, progress: Progress) -> dict[str, Any]:
    """The grid in the simulator, then winner and fixed batch on real processes."""
    size = "quick" if quick else "full"
    torch.set_num_threads(1)  # small tensors: a second thread only waits
    seeds = repeat_seeds(seed, REPEATS[size])
    choices = [NONE, *grid(**CHOICES[size])]
    total = len(seeds) * (len(choices) + 2)
    path = out / "rows.csv"
    with RowWriter(path, (*KEY, *VALUES), key=KEY) as rows:

        def fill(world: str, choice: dict[str, Any], measure: Any) -> None:
            for repeat, one in enumerate(seeds):
                progress(len(rows), total, f"{world}, {choice}, repeat {repeat}")
                if not rows.has(world=world, **choice, repeat=repeat):
                    rows.add(world=world, **choice, repeat=repeat, **measure(out, choice, one))

        for choice in choices:
            fill("simulated", choice, simulated)
        best = winner(read_rows(path))
        for choice in (NONE, best):
            fill("real", choice, real)
    return {"repeats": len(seeds), "seeds": seeds, "warmup_steps": 0, "winner": best}


def winner(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The choice with the least median simulated time to the target."""
    scores: dict[tuple[float, int, int], list[float]] = {}
    for row in rows:
        if row["world"] == "simulated" and row["cap"]:
            choice = (row["factor"], row["every"], row["cap"])
            time_s = row["time_to_target_s"]
            scores.setdefault(choice, []).append(np.inf if time_s is None else time_s)
    best = min(scores, key=lambda choice: (float(np.median(scores[choice])), choice))
    return dict(zip(("factor", "every", "cap"), best, strict=True))


def _policies(choice: dict[str, Any]) -> list[str]:
    if not choice["cap"]:
        return []
    arguments = f"factor={choice['factor']},every={choice['every']},cap={choice['cap']}"
    return [f"{HERE / 'policy.py'}:ThresholdBatch({arguments})"]


def to_target(losses: list[float], batches: list[int], times_s: list[float]) -> dict[str, Any]:
    """When the mean of the last losses is first below the target; empty: never."""
    found: dict[str, Any] = dict.fromkeys(VALUES)
    found["last_local_batch"] = batches[-1] // WORKERS
    for end in range(MEAN_OVER, len(losses) + 1):
        if np.mean(losses[end - MEAN_OVER : end]) < TARGET_LOSS:
            found["steps_to_target"] = end
            found["samples_to_target"] = int(sum(batches[:end]))
            found["time_to_target_s"] = times_s[end - 1] if times_s else None
            break
    return found


def simulated(_out: Path, choice: dict[str, Any], seed: int) -> dict[str, Any]:
    """One simulated training."""
    return dict(_simulated(tuple(choice.values()), seed))


@functools.cache
def _simulated(values: tuple[Any, ...], seed: int) -> dict[str, Any]:
    choice = dict(zip(NONE, values, strict=True))
    if not EXAMPLE.is_file():
        raise UsageError(
            f"this experiment needs examples/{EXAMPLE.name}: run it from a source tree"
        )
    task = {"task.seed": seed, "task.arguments": {"seed": seed}}
    scenario = load(HERE / "scenario.toml").with_values(task)
    found: dict[str, Any] = {}
    for steps in (SHORT, STEPS):
        rows = simulate(
            scenario.with_values({"run.steps": steps}), policies=_policies(choice)
        ).rows
        found = to_target(
            [row["loss"] for row in rows],
            [row["global_batch"] for row in rows],
            [row["time_s"] for row in rows],
        )
        if found["steps_to_target"] is not None:
            break
    return found


def real(out: Path, choice: dict[str, Any], seed: int) -> dict[str, Any]:
    """One training on real processes, a little longer than the simulated one needed.

    Its times are not looked at.
    """
    needed = simulated(out, choice, seed)["steps_to_target"]
    steps = STEPS if needed is None else min(STEPS, needed + BEYOND)
    workload = load(HERE / "scenario.toml").workload
    logs = out / "real"
    log = logs / "steps.jsonl"
    log.unlink(missing_ok=True)
    options = {
        "--epochs": 1000,
        "--steps": steps,
        "--seed": seed,
        "--log": log,
        "--local-batch": workload.local_batch,
        "--learning-rate": workload.learning_rate,
    }
    words = [str(word) for pair in options.items() for word in pair]
    spec = LaunchSpec(
        command=(sys.executable, str(EXAMPLE), *words),
        world_size=WORKERS,
        policies=tuple(_policies(choice)),
        log_dir=logs,
    )
    with (out / "real.log").open("wb") as output:
        result = launch(spec, stdout=output, stderr=output)
    if result.exit_code != 0:
        raise KfError(f"the real job failed with exit code {result.exit_code}; see real.log")
    entries = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    # The example logs the batch from the next step on.
    batches = [WORKERS * workload.local_batch, *(entry["global_batch"] for entry in entries)]
    return to_target([entry["loss"] for entry in entries], batches[:-1], [])
