"""Simulated over published, a panel a unit; reads rows only."""

from pathlib import Path
from typing import Any

import numpy as np

from experiments._shared.aims import aim
from experiments._shared.record import read_rows
from experiments._shared.style import PALETTE, axis_labels, legend, new_figure, save

UNITS = {
    "samples_per_s": ("published (samples/s)", "simulated (samples/s)"),
    "step_s": ("published (s a step)", "simulated (s a step)"),
}
MARKERS = "osD^vP*X<>ph"
Rows = list[dict[str, Any]]


def plot(rows_path: Path, out: Path) -> list[Path]:
    """Fitted rows hollow; the line is equality, the band 10 %."""
    rows = read_rows(rows_path)
    titles = list(dict.fromkeys(row["title"] for row in rows))
    units = [unit for unit in UNITS if any(row["unit"] == unit for row in rows)]
    figure, panels = new_figure(1, len(units), width_in=5.0 * len(units), height_in=4.4)
    colours = list(PALETTE.values())
    for axes, unit in zip(panels, units, strict=True):
        mine = [row for row in rows if row["unit"] == unit]
        for place, title in enumerate(titles):
            for use, fill in (("predicted", "full"), ("fitted", "none")):
                points = [r for r in mine if (r["title"], r["use"]) == (title, use)]
                axes.plot(
                    [row["published"] for row in points],
                    [row["simulated"] for row in points],
                    linestyle="",
                    marker=MARKERS[place % len(MARKERS)],
                    color=colours[place % len(colours)],
                    fillstyle=fill,
                    label=title if use == "predicted" and points else None,
                )
        ends = np.array([min(r["published"] for r in mine), max(r["published"] for r in mine)])
        axes.plot(ends, ends, color="black", linewidth=0.8)
        axes.fill_between(ends, 0.9 * ends, 1.1 * ends, color="0.5", alpha=0.15)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axis_labels(axes, *UNITS[unit])
        legend(axes, "upper left")
    figure.suptitle(
        "Published measurements and the simulator (1 run; hollow: fitted, band: 10 %)",
        fontsize=10,
    )
    return save(figure, out / "figure")


def table(rows_path: Path) -> list[dict[str, Any]]:
    """A line a table: errors of its predicted rows."""
    rows = read_rows(rows_path)
    lines = []
    for title in dict.fromkeys(row["title"] for row in rows):
        mine = [row for row in rows if row["title"] == title]
        errors = [row["error_percent"] for row in mine if row["use"] == "predicted"]
        sizes = np.abs(errors)
        lines.append(
            {
                "published table": title,
                "fitted": len(mine) - len(errors),
                "predicted": len(errors),
                "median error (%)": float(np.median(sizes)),
                "95th percentile (%)": float(np.percentile(sizes, 95)),
                "mean signed (%)": float(np.mean(errors)),
            }
        )
    return lines


def numbers(rows_path: Path) -> dict[str, float]:
    """What the report quotes."""
    rows = [row for row in read_rows(rows_path) if row["use"] == "predicted"]
    sizes = np.abs([row["error_percent"] for row in rows])
    return {
        "tables": len(table(rows_path)),
        "predicted": len(rows),
        "median_error_percent": float(np.median(sizes)),
        "p95_error_percent": float(np.percentile(sizes, 95)),
        "within_10_percent": int(np.sum(sizes <= 10)),
    }


def aims(rows_path: Path) -> list[dict[str, Any]]:
    """A median of 10 % in each table."""
    return [
        aim(
            f"{line['published table']}: median error (%)", line["median error (%)"], at_most=10
        )
        for line in table(rows_path)
    ]
