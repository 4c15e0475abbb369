"""Time from the kill to the next step, a point a run; reads rows only."""

import statistics
from pathlib import Path
from typing import Any

from experiments._shared.record import read_rows
from experiments._shared.style import PALETTE, axis_labels, legend, new_figure, save

LOOKS = {
    "kf": ("ours", PALETTE["blue"], "o"),
    "torchrun": ("torchrun, restart", PALETTE["vermilion"], "s"),
    "horovod": ("Horovod Elastic", PALETTE["orange"], "D"),
}
AIM_S = 0.3


def plot(rows_path: Path, out: Path) -> list[Path]:
    """One panel, time on a logarithmic axis; the grey line is the mark."""
    rows = read_rows(rows_path)
    figure, [axes] = new_figure(height_in=3.2)
    names = [name for name in LOOKS if any(row["system"] == name for row in rows)]
    for place, name in enumerate(names):
        times = sorted(_times(rows, name))
        if not times:
            continue
        label, colour, marker = LOOKS[name]
        spread = [place + 0.3 * (i / max(1, len(times) - 1) - 0.5) for i in range(len(times))]
        axes.scatter(spread, times, color=colour, marker=marker, s=18, label=label)
        axes.hlines(statistics.median(times), place - 0.3, place + 0.3, color=colour)
    axes.axhline(AIM_S, color="0.6", linestyle=":", label="published by Spotnik (own system)")
    axes.set_yscale("log")
    axes.set_xticks(range(len(names)), [LOOKS[name][0] for name in names])
    axis_labels(axes, "system", "kill to next step (s)", better="lower")
    legend(axes)
    figure.suptitle("One of 3 real workers is killed: a point a run, line: median", fontsize=10)
    return save(figure, out / "figure")


def table(rows_path: Path) -> list[dict[str, Any]]:
    """A row a system."""
    out = []
    rows = read_rows(rows_path)
    for name, (label, _, _) in LOOKS.items():
        mine = [row for row in rows if row["system"] == name]
        times = _times(rows, name)
        if times:
            out.append(
                {
                    "system": label,
                    "runs": len(mine),
                    "failed": len(mine) - len(times),
                    "median_s": round(statistics.median(times), 4),
                    "fastest_s": round(min(times), 4),
                    "slowest_s": round(max(times), 4),
                    "workers_after": _least(mine, "workers_after"),
                    "survivors": _least(mine, "survivors"),
                }
            )
    return out


def numbers(rows_path: Path) -> dict[str, float]:
    """Medians, seconds."""
    rows = read_rows(rows_path)
    found = {name: _times(rows, name) for name in LOOKS}
    return {
        f"{name}_next_step_s": statistics.median(times)
        for name, times in found.items()
        if times
    }


def _least(rows: list[dict[str, Any]], column: str) -> int:
    return min(row[column] for row in rows if row[column] is not None)


def _times(rows: list[dict[str, Any]], name: str) -> list[float]:
    """Of the runs that recovered, seconds."""
    return [
        row["next_step_s"]
        for row in rows
        if row["system"] == name and row["next_step_s"] is not None
    ]
