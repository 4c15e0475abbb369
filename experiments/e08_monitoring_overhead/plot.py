"""Overhead over the length of a step, with and beside the naive way; reads rows only."""

from pathlib import Path
from typing import Any

from experiments._shared.grid import intervals
from experiments._shared.record import read_rows
from experiments._shared.style import (
    PALETTE,
    axis_labels,
    legend,
    new_figure,
    save,
    spread_note,
)

LOOKS = {
    "on": ("our monitors", {"color": PALETTE["blue"], "marker": "o", "linestyle": "-"}),
    "naive": (
        "second all-reduce of squares",
        {"color": PALETTE["vermilion"], "marker": "s", "linestyle": "--"},
    ),
}
AIMS = {1: 3.0, 10: 1.0, 30: 1.0}  # per cent, by milliseconds


def plot(rows_path: Path, out: Path) -> list[Path]:
    """One panel; the grey line is the aim."""
    repeats = len({row["repeat"] for row in read_rows(rows_path)})
    figure, [axes] = new_figure()
    for variant, (label, look) in LOOKS.items():
        found = intervals(rows_path, "step_ms", "overhead_percent", variant=variant)
        low = [max(0.0, point.median - point.low) for point in found.values()]
        high = [max(0.0, point.high - point.median) for point in found.values()]
        medians = [point.median for point in found.values()]
        axes.errorbar(list(found), medians, yerr=[low, high], capsize=3, label=label, **look)
    axes.plot(list(AIMS), list(AIMS.values()), color="0.6", linestyle=":", label="our aim")
    axes.set_xscale("log")
    axes.set_xticks(list(AIMS), [str(step_ms) for step_ms in AIMS])
    axis_labels(axes, "computing of a step (ms)", "overhead (%)", better="lower")
    legend(axes)
    figure.suptitle(f"Monitoring, 2 real processes ({spread_note(repeats)})", fontsize=10)
    return save(figure, out / "figure")


def table(rows_path: Path) -> list[dict[str, Any]]:
    """Median overheads and the aims."""
    out = []
    for variant in LOOKS:
        found = intervals(rows_path, "step_ms", "overhead_percent", variant=variant)
        for step_ms, point in found.items():
            out.append(
                {
                    "variant": variant,
                    "step_ms": step_ms,
                    "overhead_percent": round(point.median, 2),
                    "low": round(point.low, 2),
                    "high": round(point.high, 2),
                    "aim_percent": AIMS.get(step_ms, "") if variant == "on" else "",
                }
            )
    return out
