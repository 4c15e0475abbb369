"""Trains digits under one policy file, on real processes and in the simulator; a row a step."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from experiments._shared.record import RowWriter
from experiments._shared.runner import Progress
from kfcore.errors import KfError, UsageError
from kfcore.launch import LaunchSpec, launch
from kfsim import load, simulate

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
EXAMPLE = ROOT / "examples" / "digits.py"
POLICY = f"{ROOT / 'examples' / 'policies' / 'grow_batch.py'}:GrowBatch"
WORKERS = 4
SCENARIO = HERE / "scenario.toml"
STEPS = {"quick": 120, "full": 400}
REPEATS = {"quick": 5, "full": 5}
EPOCHS = 1000  # never reached: the number of steps ends the run
VALUES = ("epoch", "loss", "local_batch", "global_batch", "noise_scale")


def run(out: Path, seed: int, quick: bool, progress: Progress) -> dict[str, Any]:
    """Both worlds, for each repeat's seed; see README.md."""
    size = "quick" if quick else "full"
    steps, repeats = STEPS[size], REPEATS[size]
    seeds = [int(s) for s in np.random.SeedSequence(seed).generate_state(repeats) % 2**31]
    worlds = {"real": real_steps, "simulated": simulated_steps}
    columns = ["world", "repeat", "step", *VALUES]
    with RowWriter(out / "rows.csv", columns, key=["world", "repeat", "step"]) as rows:
        todo = [(repeat, world) for repeat in range(repeats) for world in worlds]
        for done, (repeat, world) in enumerate(todo):
            progress(done, len(todo), f"{world}, repeat {repeat}")
            if rows.has(world=world, repeat=repeat, step=steps):
                continue
            for row in worlds[world](out, seeds[repeat], steps):
                if not rows.has(world=world, repeat=repeat, step=row["step"]):
                    rows.add(world=world, repeat=repeat, **row)
        progress(len(todo), len(todo), "done")
    return {
        "repeats": repeats,
        "seeds": seeds,
        "steps": steps,
        "workers": WORKERS,
        "policy": Path(POLICY).name,
    }


def real_steps(out: Path, seed: int, steps: int) -> list[dict[str, Any]]:
    """What 4 processes logged, a dictionary a step."""
    if not EXAMPLE.is_file():
        raise UsageError(f"this experiment needs {EXAMPLE}: run it from a source tree")
    logs = out / "real"
    log = logs / "steps.jsonl"
    log.unlink(missing_ok=True)
    workload = load(SCENARIO).workload
    arguments = ("--epochs", EPOCHS, "--steps", steps, "--seed", seed, "--log", log)
    arguments += ("--local-batch", workload.local_batch)
    arguments += ("--learning-rate", workload.learning_rate, "--transport", "tcp")
    spec = LaunchSpec(
        command=(sys.executable, str(EXAMPLE), *map(str, arguments)),
        world_size=WORKERS,
        policies=(POLICY,),
        log_dir=logs,
    )
    with (logs.parent / "real.log").open("wb") as output:
        result = launch(spec, stdout=output, stderr=output)
    if result.exit_code != 0:
        raise KfError(
            f"the real job failed with exit code {result.exit_code}; see {output.name}"
        )
    entries = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    # The example logs the batch from the next step on; a row here has that of its own step.
    first = {
        "local_batch": workload.local_batch,
        "global_batch": WORKERS * workload.local_batch,
    }
    return [
        _row({**entry, **{name: before[name] for name in first}})
        for before, entry in zip([first, *entries], entries, strict=False)
    ]


def simulated_steps(out: Path, seed: int, steps: int) -> list[dict[str, Any]]:
    """What 4 simulated workers did, a dictionary a step."""
    scenario = load(SCENARIO).with_values(
        {"run.steps": steps, "task.seed": seed, "task.arguments": {"seed": seed}}
    )
    result = simulate(scenario, policies=[POLICY])
    result.write(out / "simulated")
    return [_row(row) for row in result.rows]


def _row(entry: dict[str, Any]) -> dict[str, Any]:
    """One step's values; a metric that is undefined is an empty cell."""
    values = {name: entry[name] for name in VALUES}
    return {
        "step": entry["step"],
        **{name: None if isinstance(value, dict) else value for name, value in values.items()},
    }
