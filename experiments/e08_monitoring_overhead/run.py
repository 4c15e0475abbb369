"""Launches the two workers once a repeat; a row for each step length and variant."""

import json
import sys
from pathlib import Path
from typing import Any

from experiments._shared.record import RowWriter
from experiments._shared.runner import Progress
from kfcore.errors import KfError
from kfcore.launch import LaunchSpec, launch

HERE = Path(__file__).resolve().parent
WORKERS = 2
REPEATS = {"quick": 5, "full": 15}
STEPS_MS = (1, 10, 30)
BLOCKS = {"quick": 5, "full": 15}
BLOCK_STEPS = {"quick": 8, "full": 20}
KEY = ("step_ms", "variant", "repeat")
VALUES = ("parameters", "step_s", "overhead_percent")


def run(out: Path, seed: int, quick: bool, progress: Progress) -> dict[str, Any]:
    """All repeats; see README.md."""
    size = "quick" if quick else "full"
    repeats = REPEATS[size]
    with RowWriter(out / "rows.csv", [*KEY, *VALUES], key=KEY) as rows:
        for repeat in range(repeats):
            progress(repeat, repeats, f"repeat {repeat}")
            if not rows.has(step_ms=STEPS_MS[-1], variant="naive", repeat=repeat):
                for row in measure(out, size):
                    point = {name: row[name] for name in ("step_ms", "variant")}
                    if not rows.has(**point, repeat=repeat):
                        rows.add(repeat=repeat, **row)
        progress(repeats, repeats, "done")
    return {
        "repeats": repeats,
        "workers": WORKERS,
        "seed_is_unused": f"gradients do not depend on the seed {seed}",
        "blocks": BLOCKS[size],
        "block_steps": BLOCK_STEPS[size],
        "warmup_steps": BLOCK_STEPS[size],
    }


def measure(out: Path, size: str) -> list[dict[str, Any]]:
    """One run of both workers; a dictionary for each step length and variant."""
    written = out / "measured.jsonl"
    written.unlink(missing_ok=True)
    arguments = ("--out", written, "--steps-ms", *STEPS_MS)
    arguments += ("--blocks", BLOCKS[size], "--block-steps", BLOCK_STEPS[size])
    spec = LaunchSpec(
        command=(sys.executable, str(HERE / "worker.py"), *map(str, arguments)),
        world_size=WORKERS,
    )
    with (out / "real.log").open("wb") as output:
        result = launch(spec, stdout=output, stderr=output)
    if result.exit_code != 0:
        raise KfError(f"the workers failed with exit code {result.exit_code}; see real.log")
    found = [json.loads(line) for line in written.read_text(encoding="utf-8").splitlines()]
    plain = {row["step_ms"]: row["step_s"] for row in found if row["variant"] == "off"}
    return [
        {**row, "overhead_percent": 100 * (row["step_s"] / plain[row["step_ms"]] - 1)}
        for row in found
    ]
