"""Draws batch, noise scale and loss over steps, both worlds in each panel; reads rows only."""

from itertools import pairwise
from pathlib import Path
from typing import Any

from experiments._shared.record import read_rows
from experiments._shared.style import (
    PALETTE,
    axis_labels,
    legend,
    new_figure,
    power_of_two_axis,
    save,
)

WORLDS = {
    "real": ("4 real processes, TCP", {"color": PALETTE["blue"], "linestyle": "-"}),
    "simulated": (
        "simulated, same policy file",
        {"color": PALETTE["vermilion"], "linestyle": "--"},
    ),
}
PANELS = (
    ("local_batch", "local batch (samples)", None),
    ("noise_scale", "noise scale (samples)", None),
    ("loss", "training loss", "lower"),
)


def _series(rows: list[dict[str, Any]], world: str, repeat: int) -> list[dict[str, Any]]:
    return [r for r in rows if r["world"] == world and r["repeat"] == repeat]


def plot(rows_path: Path, out: Path) -> list[Path]:
    """Three panels; the real world is the wide line, so that an equal one shows inside it."""
    rows = read_rows(rows_path)
    repeats = sorted({row["repeat"] for row in rows})
    figure, panels = new_figure(1, 3, width_in=9.6, height_in=3.2)
    for axes, (column, label, better) in zip(panels, PANELS, strict=True):
        for world, (name, look) in WORLDS.items():
            for repeat in repeats:
                points = _series(rows, world, repeat)
                axes.plot(
                    [r["step"] for r in points],
                    [float("nan") if r[column] is None else r[column] for r in points],
                    label=name if repeat == repeats[0] else None,
                    linewidth=3.2 if world == "real" else 1.2,
                    alpha=0.55 if world == "real" else 1.0,
                    **look,
                )
        axis_labels(axes, "step", label, better=better)
    power_of_two_axis(panels[0], "y")
    panels[1].set_yscale("log")
    legend(panels[0], "upper left")
    count = f"{len(repeats)} repeat" + "s" * (len(repeats) > 1)
    figure.suptitle(f"One policy file, two worlds ({count})", fontsize=10)
    return save(figure, out / "figure")


def table(rows_path: Path) -> list[dict[str, Any]]:
    """One row a world and repeat: when the batch grew, where it ended, and the last loss."""
    rows = read_rows(rows_path)
    lines = []
    for repeat in sorted({row["repeat"] for row in rows}):
        for world in WORLDS:
            points = _series(rows, world, repeat)
            pairs = pairwise(points)
            grown = [b["step"] for a, b in pairs if a["local_batch"] != b["local_batch"]]
            lines.append(
                {
                    "world": world,
                    "repeat": repeat,
                    "steps": len(points),
                    "batch grew at step": " ".join(map(str, grown)) or "never",
                    "last batch": points[-1]["local_batch"],
                    "last noise scale": points[-1]["noise_scale"],
                    "last loss": points[-1]["loss"],
                }
            )
    return lines


def numbers(rows_path: Path) -> dict[str, float]:
    """What the report quotes: how far the two worlds are apart."""
    rows = read_rows(rows_path)
    repeats = sorted({row["repeat"] for row in rows})
    pairs = [
        pair
        for repeat in repeats
        for pair in zip(*(_series(rows, world, repeat) for world in WORLDS), strict=True)
    ]
    losses = [abs(b["loss"] / a["loss"] - 1) for a, b in pairs]
    return {
        "repeats": len(repeats),
        "steps_compared": len(pairs),
        "batch_differences": sum(a["local_batch"] != b["local_batch"] for a, b in pairs),
        "largest_loss_difference_percent": 100 * max(losses),
    }
