"""Simulated over real time, one point a configuration; reads rows only."""

from pathlib import Path

from experiments._shared.record import read_rows
from experiments._shared.style import PALETTE, axis_labels, legend, new_figure, save


def plot(rows_path: Path, out: Path) -> list[Path]:
    """Both axes logarithmic; the line is equality, the band 15 %."""
    rows = read_rows(rows_path)
    figure, panels = new_figure(1, 1, width_in=4.8, height_in=4.4)
    axes = panels[0] if hasattr(panels, "__len__") else panels
    names = sorted({str(row["schedule"]) for row in rows})
    known = list(PALETTE.values())
    for place, name in enumerate(names):
        mine = [row for row in rows if row["schedule"] == name and row["use"] == "predict"]
        axes.scatter(
            [row["real_s"] for row in mine],
            [row["simulated_s"] for row in mine],
            s=12,
            color=known[place % len(known)],
            label=name,
        )
    low = min(row["real_s"] for row in rows)
    high = max(row["real_s"] for row in rows)
    axes.plot([low, high], [low, high], color="black", linewidth=0.8)
    axes.fill_between(
        [low, high], [0.85 * low, 0.85 * high], [1.15 * low, 1.15 * high], alpha=0.15
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axis_labels(axes, "real all-reduce (s, median)", "simulated all-reduce (s)")
    legend(axes, "upper left")
    return save(figure, out / "figure")
