"""Draws throughput over the network rate, with published rates as levels; reads rows only."""

from pathlib import Path
from typing import Any

import numpy as np

from experiments._shared.grid import intervals
from experiments._shared.published import compared
from experiments._shared.record import read_rows
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

PUBLISHED = Path(__file__).resolve().parent / "published.csv"
LABELS = {
    "flat": "flat ring",
    "hierarchical": "hierarchical rings",
    "own": "tree of hosts, star in each",
    "own_flat": "multi_binary_tree_star, hosts unknown",
}
SERIES = {
    "flat": "horovod_untuned",
    "hierarchical": "kf",
    "own": "kf_ring",
    "own_flat": "horovod_tuned",
}
RATE = "samples_per_s_per_gpu"


def plot(rows_path: Path, out: Path) -> list[Path]:
    """One panel."""
    rows = read_rows(rows_path)
    figure, [axes] = new_figure(width_in=6.4, height_in=4.0)
    for series, label in LABELS.items():
        draw_intervals(
            axes, SERIES[series], intervals(rows, "nic_gbps", RATE, series=series), label=label
        )
    rates = sorted({row["nic_gbps"] for row in rows})
    for point in read_rows(PUBLISHED):
        colour = series_style(SERIES[point["series"]])["color"]
        value, spread = point[RATE], point["spread_samples_per_s"]
        axes.fill_between(
            [rates[0], rates[-1]], value - spread, value + spread, color=colour, alpha=0.12
        )
        axes.annotate(
            f"published: {point['series']}", (rates[-1], value), fontsize=7, ha="right"
        )
    power_of_two_axis(axes)
    axis_labels(axes, "rate of the card (Gbit/s)", "images/s, one GPU", better="higher")
    axes.set_ylim(bottom=0)
    legend(axes, "lower right")
    repeats = len({row["repeat"] for row in rows})
    figure.suptitle(f"ResNet-50 on 2 x 8 GPUs, simulated ({spread_note(repeats)})", fontsize=10)
    return save(figure, out / "figure")


def explaining_rate(rows: list[dict[str, Any]], series: str, value: float) -> float | None:
    """The network rate at which a curve reaches a value, Gbit/s; None: nowhere."""
    points = intervals(rows, "nic_gbps", RATE, series=series)
    rates, medians = list(points), [point.median for point in points.values()]
    if not medians[0] <= value <= max(medians):
        return None
    return float(2 ** np.interp(value, np.maximum.accumulate(medians), np.log2(rates)))


def table(rows_path: Path) -> list[dict[str, Any]]:
    """A line a schedule: its rate at some cards, and the card that explains the published."""
    rows = read_rows(rows_path)
    published = {point["series"]: point[RATE] for point in read_rows(PUBLISHED)}
    lines = []
    for series, label in LABELS.items():
        points = intervals(rows, "nic_gbps", RATE, series=series)
        value = published.get(series)
        lines.append(
            {
                "schedule": label,
                **{f"at {rate:g}": points[rate].median for rate in (5.0, 10.0, 40.0)},
                "+- (%)": 50 * (points[10.0].high - points[10.0].low) / points[10.0].median,
                "published": value,
                "explained by (Gbit/s)": value and explaining_rate(rows, series, value),
            }
        )
    return lines


def numbers(rows_path: Path) -> dict[str, float]:
    """What the report quotes."""
    rows = read_rows(rows_path)
    found: dict[str, float] = {}
    for series in LABELS:
        for rate, point in intervals(rows, "nic_gbps", RATE, series=series).items():
            found[f"{series}_{rate:g}_images_per_s"] = point.median
    for point in read_rows(PUBLISHED):
        found[f"published_{point['series']}"] = point[RATE]
        rate = explaining_rate(rows, point["series"], point[RATE])
        if rate is not None:
            found[f"{point['series']}_explaining_gbps"] = rate
    return found


AT_GBPS = 10.0  # assumed: the rate of the card is not published
WHY = {
    "flat": "the rate of the card is not published; a somewhat slower one explains it",
    "own": "their layer moves gradients inside a host in a way that is not modelled",
}


def published(rows_path: Path) -> list[dict[str, Any]]:
    """Each published rate beside ours at the assumed card."""
    rows = read_rows(rows_path)
    return [
        compared(
            "KungFu, Figure 10 (pull request 301)",
            f"{LABELS[point['series']]}, 2 x 8 GPUs",
            "images/s, one GPU",
            point[RATE],
            intervals(rows, "nic_gbps", RATE, series=point["series"])[AT_GBPS].median,
            why=WHY.get(point["series"], ""),
        )
        for point in read_rows(PUBLISHED)
    ]
