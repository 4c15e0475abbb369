"""Accuracy over time, without and with a slow worker; reads rows only."""

from pathlib import Path
from typing import Any

from experiments._shared.grid import intervals
from experiments._shared.record import read_rows
from experiments._shared.stats import median_interval
from experiments._shared.style import (
    axis_labels,
    draw_intervals,
    legend,
    new_figure,
    save,
    spread_note,
)

LABELS = {"ssgd": "S-SGD", "sma": "SMA", "pairs": "pair averaging"}
GOAL = 0.9


def plot(rows_path: Path, out: Path) -> list[Path]:
    """A panel without a slow worker, one with."""
    rows = read_rows(rows_path)
    figure, panels = new_figure(1, 2, width_in=7.0, height_in=3.2)
    for axes, slow_ms in zip(panels, sorted({row["slow_ms"] for row in rows}), strict=True):
        for method, label in LABELS.items():
            points = intervals(rows, "time_s", "accuracy", method=method, slow_ms=slow_ms)
            draw_intervals(axes, method, points, label=label)
        axis_labels(axes, "time (s)", "accuracy", better="higher")
        axes.set_ylim(0, 1)
        slow = f"one worker {slow_ms} ms a step slower" if slow_ms else "all alike"
        axes.set_title(slow, fontsize=9)
    legend(panels[0], "lower right")
    repeats = len({row["repeat"] for row in rows})
    figure.suptitle(f"4 real workers ({spread_note(repeats)})", fontsize=10)
    return save(figure, out / "figure")


def table(rows_path: Path) -> list[dict[str, Any]]:
    """Samples a second, time to a goal and the last accuracy: medians over repeats."""
    rows = read_rows(rows_path)
    out = []
    for slow_ms in sorted({row["slow_ms"] for row in rows}):
        for method in LABELS:
            runs = _runs(rows, method, slow_ms)
            reached = [_first(run) for run in runs]
            there = [time_s for time_s in reached if time_s is not None]
            out.append(
                {
                    "slow_ms": slow_ms,
                    "method": method,
                    "samples_per_s": round(
                        median_interval([float(run[0]["samples_per_s"]) for run in runs]).median
                    ),
                    f"s_to_{GOAL}": round(median_interval(there).median, 3) if there else "",
                    f"runs_at_{GOAL}": f"{len(there)}/{len(runs)}",
                    "last_accuracy": round(
                        median_interval([float(run[-1]["accuracy"]) for run in runs]).median, 3
                    ),
                }
            )
    return out


def _runs(rows: Any, method: str, slow_ms: int) -> list[list[Any]]:
    mine = [row for row in rows if (row["method"], row["slow_ms"]) == (method, slow_ms)]
    return [
        sorted((row for row in mine if row["repeat"] == repeat), key=lambda row: row["time_s"])
        for repeat in sorted({row["repeat"] for row in mine})
    ]


def _first(run: list[Any]) -> float | None:
    """The first time at which the goal was reached, as far as it was looked, seconds."""
    return next((float(row["time_s"]) for row in run if row["accuracy"] >= GOAL), None)
