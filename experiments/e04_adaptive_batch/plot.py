"""Draws accuracy and batch over simulated time; reads rows only."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from experiments._shared.aims import aim
from experiments._shared.record import read_rows
from experiments._shared.stats import Interval, median_interval
from experiments._shared.style import (
    axis_labels,
    draw_intervals,
    legend,
    new_figure,
    power_of_two_axis,
    save,
    series_style,
    spread_note,
)

LABELS = {
    "small": "small batch",
    "large": "large batch, same rate",
    "large_tuned": "large batch, tuned rate",
    "adaptive": "NoiseScaleBatch",
}
SERIES = {
    "small": "kf_ring",
    "large": "horovod_untuned",
    "large_tuned": "horovod_tuned",
    "adaptive": "kf",
}
MARGIN = 0.01  # below the small batch's final accuracy counts as reached


def _runs(rows: list[dict[str, Any]], part: str, variant: str) -> list[list[dict[str, Any]]]:
    mine = [row for row in rows if row["part"] == part and row["variant"] == variant]
    return [
        sorted((row for row in mine if row["repeat"] == repeat), key=lambda row: row["point"])
        for repeat in sorted({row["repeat"] for row in mine})
    ]


def _over_points(
    runs: list[list[dict[str, Any]]], column: str, scale: float = 1.0
) -> dict[float, Interval]:
    """Interval of a column at each point, placed at the median time of that point, seconds."""
    found = {}
    for same in zip(*runs, strict=False):
        when = float(np.median([row["time_s"] for row in same])) / scale
        found[when] = median_interval([row[column] for row in same])
    return found


def plot(rows_path: Path, out: Path) -> list[Path]:
    """Digits: accuracy and batch; CIFAR-10: progress and batch."""
    rows = read_rows(rows_path)
    figure, panels = new_figure(2, 2, width_in=9.0, height_in=6.0)
    accuracy, progress, batch, batch_cifar = panels
    for variant, label in LABELS.items():
        real, traced = (_runs(rows, part, variant) for part in ("digits", "cifar10"))
        look = SERIES[variant]
        draw_intervals(accuracy, look, _over_points(real, "accuracy"), label=label)
        draw_intervals(
            progress, look, _over_points(traced, "progress_ratio", 3600.0), label=label
        )
        for axes, run, scale in ((batch, real[0], 1.0), (batch_cifar, traced[0], 3600.0)):
            axes.plot(
                [row["time_s"] / scale for row in run],
                [row["local_batch"] for row in run],
                **series_style(look),
            )
    axis_labels(accuracy, "simulated time (s)", "held-out accuracy", better="higher")
    axis_labels(progress, "simulated time (h)", "progress to 94 % (ratio)", better="higher")
    axis_labels(batch, "simulated time (s)", "local batch (samples)")
    axis_labels(batch_cifar, "simulated time (h)", "local batch (samples)")
    accuracy.set_title("digits: real gradients", fontsize=9)
    progress.set_title("CIFAR-10: published traces", fontsize=9)
    accuracy.set_ylim(0.7, 1.0)
    for axes in (batch, batch_cifar):
        power_of_two_axis(axes, "y")
    legend(accuracy, "lower right")
    repeats = len({row["repeat"] for row in rows})
    figure.suptitle(f"Batch size by noise scale, 4 GPUs ({spread_note(repeats)})", fontsize=10)
    return save(figure, out / "figure")


def time_to(run: list[dict[str, Any]], target: float) -> float:
    """When a run first holds an accuracy for two passes, seconds; NaN: never."""
    for row, after in pairwise(run):
        if row["accuracy"] >= target and after["accuracy"] >= target:
            return float(row["time_s"])
    return float("nan")


def _digits(rows: list[dict[str, Any]], variant: str) -> dict[str, list[float]]:
    small = _runs(rows, "digits", "small")
    found: dict[str, list[float]] = {"final": [], "total_s": [], "to_target_s": []}
    for run, base in zip(_runs(rows, "digits", variant), small, strict=True):
        found["final"].append(float(np.mean([row["accuracy"] for row in run[-3:]])))
        found["total_s"].append(run[-1]["time_s"])
        target = float(np.mean([row["accuracy"] for row in base[-3:]])) - MARGIN
        found["to_target_s"].append(time_to(run, target))
    return found


def _finals(rows: list[dict[str, Any]], variant: str) -> list[float]:
    return _digits(rows, variant)["final"]


def table(rows_path: Path) -> list[dict[str, Any]]:
    """A line a part and variant."""
    rows = read_rows(rows_path)
    lines = []
    for variant in LABELS:
        found = _digits(rows, variant)
        final = median_interval(found["final"])
        reached = [t for t in found["to_target_s"] if not np.isnan(t)]
        lines.append(
            {
                "part": "digits",
                "variant": variant,
                "final accuracy": final.median,
                "low": final.low,
                "high": final.high,
                "all epochs (s)": float(np.median(found["total_s"])),
                "to target (s)": float(np.median(reached)) if reached else None,
                "reached": f"{len(reached)} of {len(found['to_target_s'])}",
            }
        )
    for variant in LABELS:
        ends = median_interval([run[-1]["time_s"] for run in _runs(rows, "cifar10", variant)])
        lines.append(
            {
                "part": "cifar10",
                "variant": variant,
                "to target (s)": ends.median,
                "low": ends.low,
                "high": ends.high,
            }
        )
    return lines


def numbers(rows_path: Path) -> dict[str, float]:
    """What the report quotes."""
    rows = read_rows(rows_path)
    found: dict[str, float] = {}
    for variant in LABELS:
        values = _digits(rows, variant)
        final = median_interval(values["final"])
        found[f"digits_{variant}_accuracy_percent"] = 100 * final.median
        found[f"digits_{variant}_accuracy_low_percent"] = 100 * final.low
        found[f"digits_{variant}_accuracy_high_percent"] = 100 * final.high
        found[f"digits_{variant}_total_s"] = float(np.median(values["total_s"]))
        reached = [t for t in values["to_target_s"] if not np.isnan(t)]
        found[f"digits_{variant}_reached"] = len(reached)
        if reached:
            found[f"digits_{variant}_to_target_s"] = float(np.median(reached))
        ends = [run[-1]["time_s"] for run in _runs(rows, "cifar10", variant)]
        found[f"cifar10_{variant}_hours"] = float(np.median(ends)) / 3600
    for variant in ("adaptive", "large"):
        # the same seed draws the same initial weights, so repeats are compared one by one
        pairs = zip(_finals(rows, variant), _finals(rows, "small"), strict=True)
        behind = median_interval([100 * (small - mine) for mine, small in pairs])
        found[f"digits_{variant}_behind_points"] = behind.median
        found[f"digits_{variant}_behind_low_points"] = behind.low
        found[f"digits_{variant}_behind_high_points"] = behind.high
    for part, key in (("digits", "total_s"), ("cifar10", "hours")):
        small, adaptive = (found[f"{part}_{v}_{key}"] for v in ("small", "adaptive"))
        found[f"{part}_speedup_ratio"] = small / adaptive
    return found


NOISE_POINTS = 1.0  # of accuracy: within it, adaptive and small batch are the same


def aims(rows_path: Path) -> list[dict[str, Any]]:
    """What the published figure says without numbers, and whether it holds here."""
    found = numbers(rows_path)
    behind, large = (
        found["digits_adaptive_behind_points"],
        found["digits_large_behind_low_points"],
    )
    return [
        aim(
            "digits: adaptive is at most 1 point of accuracy behind the small batch",
            behind,
            at_most=NOISE_POINTS,
        ),
        aim(
            "digits: time of the small batch over that of adaptive",
            found["digits_speedup_ratio"],
            at_least=1.0,
        ),
        aim(
            "digits: points that the untuned large batch is surely behind",
            large,
            at_least=0.0,
        ),
        aim(
            "CIFAR-10 traces: time of the small batch over that of adaptive",
            found["cifar10_speedup_ratio"],
            at_least=1.0,
        ),
    ]
