"""Draws throughput over the global batch beside the published curves; reads rows only."""

from pathlib import Path
from typing import Any

from experiments._shared.grid import intervals
from experiments._shared.record import read_rows
from experiments._shared.style import (
    axis_labels,
    draw_intervals,
    draw_published,
    legend,
    new_figure,
    power_of_two_axis,
    save,
    spread_note,
)

PUBLISHED = Path(__file__).resolve().parent / "published.csv"
LABELS = {"kf": "ours, multi_binary_tree_star", "horovod": "Horovod, as measured for KungFu"}
SERIES = {"kf": "kf", "horovod": "horovod_untuned"}
RATE = "throughput_samples_per_s"


def plot(rows_path: Path, out: Path) -> list[Path]:
    """Throughput, and how many times Horovod's ours is."""
    rows = read_rows(rows_path)
    published = read_rows(PUBLISHED)
    figure, [rate, ratio] = new_figure(1, 2, width_in=8.4, height_in=3.6)
    for system, label in LABELS.items():
        draw_intervals(
            rate,
            SERIES[system],
            intervals(rows, "global_batch", RATE, system=system),
            label=label,
        )
        for point in published:
            words = f"published, {point['role']}" if point["global_batch"] <= 512 else None
            draw_published(
                rate, SERIES[system], point["global_batch"], point[system], label=words
            )
    times = _ratios(rows)
    ratio.plot(list(times), list(times.values()), color="black", marker="o", label="simulated")
    for point in published:
        draw_published(ratio, "kf", point["global_batch"], point["kf"] / point["horovod"])
    ratio.axhline(1, color="black", linewidth=0.8, linestyle=":")
    for axes, name, better in (
        (rate, "throughput (images/s, 16 GPUs)", "higher"),
        (ratio, "ours over Horovod (ratio, 1 = equal)", None),
    ):
        power_of_two_axis(axes)
        axis_labels(axes, "global batch (images)", name, better=better)
        axes.set_ylim(bottom=0)
    legend(rate, "upper left")
    repeats = len({row["repeat"] for row in rows})
    figure.suptitle(f"ResNet-50 on 2 x 8 V100, simulated ({spread_note(repeats)})", fontsize=10)
    return save(figure, out / "figure")


def _ratios(rows: list[dict[str, Any]]) -> dict[int, float]:
    kf = intervals(rows, "global_batch", RATE, system="kf")
    horovod = intervals(rows, "global_batch", RATE, system="horovod")
    return {batch: kf[batch].median / horovod[batch].median for batch in kf}


def table(rows_path: Path) -> list[dict[str, Any]]:
    """A line a system and batch, with the published rate and the difference."""
    rows = read_rows(rows_path)
    lines = []
    for system in LABELS:
        found = intervals(rows, "global_batch", RATE, system=system)
        for point in read_rows(PUBLISHED):
            mine = found[point["global_batch"]]
            lines.append(
                {
                    "system": system,
                    "global batch": point["global_batch"],
                    "images/s": mine.median,
                    "low": mine.low,
                    "high": mine.high,
                    "published": point[system],
                    "difference (%)": 100 * (mine.median / point[system] - 1),
                    "published is": point["role"],
                }
            )
    return lines


def numbers(rows_path: Path) -> dict[str, float]:
    """What the report quotes."""
    found: dict[str, float] = {}
    for line in table(rows_path):
        key = f"{line['system']}_{line['global batch']}"
        found[f"{key}_images_per_s"] = line["images/s"]
        found[f"{key}_published"] = line["published"]
        found[f"{key}_difference_percent"] = line["difference (%)"]
    predicted = [
        abs(d["difference (%)"]) for d in table(rows_path) if d["published is"] != "fitted"
    ]
    found["predicted_median_error_percent"] = sorted(predicted)[len(predicted) // 2]
    found["predicted_worst_error_percent"] = max(predicted)
    for batch, times in _ratios(read_rows(rows_path)).items():
        found[f"ratio_{batch}"] = times
    for point in read_rows(PUBLISHED):
        found[f"published_ratio_{point['global_batch']}"] = point["kf"] / point["horovod"]
    return found
