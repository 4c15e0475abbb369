"""Launches four workers once; a row for each method, slow worker, repeat and time."""

import json
import sys
from pathlib import Path
from typing import Any

from experiments._shared.grid import grid, repeat_seeds
from experiments._shared.record import RowWriter
from experiments._shared.runner import Progress
from kfcore.errors import KfError
from kfcore.launch import LaunchSpec, launch

HERE = Path(__file__).resolve().parent
WORKERS = 4
METHODS = ("ssgd", "sma", "pairs")
REPEATS = {"quick": 5, "full": 9}
BUDGET_S = {"quick": 1.5, "full": 4.0}
SLOW_MS = (0, 20)
TICKS = 12  # as in worker.py
KEY = ("method", "slow_ms", "repeat", "time_s")
VALUES = ("accuracy", "samples_per_s")


def run(out: Path, seed: int, quick: bool, progress: Progress) -> dict[str, Any]:
    """All repeats that are not in the rows; see README.md."""
    size = "quick" if quick else "full"
    repeats, budget_s = REPEATS[size], BUDGET_S[size]
    seeds = repeat_seeds(seed, repeats)
    with RowWriter(out / "rows.csv", [*KEY, *VALUES], key=KEY) as rows:
        points = grid(method=METHODS, slow_ms=SLOW_MS)
        missing = [
            repeat
            for repeat in range(repeats)
            if not all(rows.has(**p, repeat=repeat, time_s=budget_s) for p in points)
        ]
        progress(repeats - len(missing), repeats, f"{len(missing)} repeats")
        for row in measure(out, missing, seeds, budget_s) if missing else ():
            if not rows.has(**{name: row[name] for name in KEY}):
                rows.add(**row)
        progress(repeats, repeats, "done")
    return {
        "repeats": repeats,
        "seeds": seeds,
        "workers": WORKERS,
        "budget_s": budget_s,
        "slow_ms": list(SLOW_MS),
    }


def measure(
    out: Path, repeats: list[int], seeds: list[int], budget_s: float
) -> list[dict[str, Any]]:
    """One launch of the workers, through all methods in each repeat; its rows."""
    written = out / "measured.jsonl"
    written.unlink(missing_ok=True)
    spec = LaunchSpec(
        command=(
            *(sys.executable, str(HERE / "worker.py"), "--out", str(written)),
            *("--budget-s", str(budget_s), "--slow-ms", *map(str, SLOW_MS)),
            *("--repeats", *map(str, repeats)),
            *("--seeds", *(str(seeds[repeat]) for repeat in repeats)),
        ),
        world_size=WORKERS,
    )
    with (out / "real.log").open("wb") as output:
        result = launch(spec, stdout=output, stderr=output)
    if result.exit_code != 0:
        raise KfError(f"the workers failed with exit code {result.exit_code}; see real.log")
    rows = []
    for line in written.read_text(encoding="utf-8").splitlines():
        found = json.loads(line)
        for tick, accuracy in enumerate(found["curve"], start=1):
            time_s = budget_s if tick == TICKS else round(tick * budget_s / TICKS, 3)
            rows.append(
                {
                    **{name: found[name] for name in found if name != "curve"},
                    "time_s": time_s,
                    "accuracy": accuracy,
                }
            )
    return rows
