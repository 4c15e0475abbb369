"""Draws throughput over the global batch beside the published curves; reads rows only."""

from pathlib import Path
from typing import Any

from experiments._shared.grid import intervals
from experiments._shared.published import compared
from experiments._shared.record import read_rows
from experiments._shared.style import (
    axis_labels,
    draw_intervals,
    draw_published,
    legend,
    new_figure,
    power_of_two_axis,
    save,
    series_style,
    spread_note,
)

HERE = Path(__file__).resolve().parent
LABELS = {
    "kf": "ours, multi_binary_tree_star",
    "horovod": "Horovod, as measured for KungFu",
    "pair": "ours, pair averaging",
    "server": "parameter server",
}
SERIES = {
    "kf": "kf",
    "horovod": "horovod_untuned",
    "pair": "kf_ring",
    "server": "horovod_tuned",
}
HALVES = {  # of the published figure: ours, theirs, file
    "synchronous": ("kf", "horovod", "published.csv"),
    "asynchronous": ("pair", "server", "published_async.csv"),
}
RATE = "throughput_samples_per_s"


def plot(rows_path: Path, out: Path) -> list[Path]:
    """Throughput of both halves, and how many times the other's ours is."""
    rows = read_rows(rows_path)
    figure, [*rates, ratio] = new_figure(1, 3, width_in=11.0, height_in=3.6)
    for axes, (half, (ours, other, file)) in zip(rates, HALVES.items(), strict=True):
        published = read_rows(HERE / file)
        for system in (ours, other):
            found = intervals(rows, "global_batch", RATE, system=system)
            draw_intervals(axes, SERIES[system], found, label=LABELS[system])
            for point in published:
                words = f"published, {point['role']}" if point["global_batch"] <= 512 else None
                draw_published(
                    axes, SERIES[system], point["global_batch"], point[system], label=words
                )
        times = _ratios(rows, ours, other)
        look = series_style(SERIES[ours])
        ratio.plot(list(times), list(times.values()), label=f"{half}, simulated", **look)
        for point in published:
            batch, value = point["global_batch"], point[ours] / point[other]
            draw_published(ratio, SERIES[ours], batch, value)
        axes.set_title(half, fontsize=9)
    ratio.axhline(1, color="black", linewidth=0.8, linestyle=":")
    for axes in (*rates, ratio):
        power_of_two_axis(axes)
        name, better = "throughput (images/s, 16 GPUs)", "higher"
        if axes is ratio:
            name, better = "ours over the other (ratio, 1 = equal)", None
        axis_labels(axes, "global batch (images)", name, better=better)
        axes.set_ylim(bottom=0)
    for axes in rates:
        legend(axes, "lower right")
    legend(ratio, "upper right")
    repeats = len({row["repeat"] for row in rows})
    figure.suptitle(f"ResNet-50 on 2 x 8 V100, simulated ({spread_note(repeats)})", fontsize=10)
    return save(figure, out / "figure")


def _ratios(rows: list[dict[str, Any]], ours: str, other: str) -> dict[int, float]:
    mine = intervals(rows, "global_batch", RATE, system=ours)
    theirs = intervals(rows, "global_batch", RATE, system=other)
    return {batch: mine[batch].median / theirs[batch].median for batch in mine}


def _systems() -> list[tuple[str, str]]:
    return [(system, file) for ours, other, file in HALVES.values() for system in (ours, other)]


def table(rows_path: Path) -> list[dict[str, Any]]:
    """A line a system and batch, with the published rate and the difference."""
    rows = read_rows(rows_path)
    lines = []
    for system, file in _systems():
        found = intervals(rows, "global_batch", RATE, system=system)
        for point in read_rows(HERE / file):
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
    for half, (ours, other, file) in HALVES.items():
        errors = [
            abs(line["difference (%)"])
            for line in table(rows_path)
            if line["published is"] != "fitted" and line["system"] in (ours, other)
        ]
        prefix = "" if half == "synchronous" else "async_"
        found[f"{prefix}predicted_median_error_percent"] = sorted(errors)[len(errors) // 2]
        found[f"{prefix}predicted_worst_error_percent"] = max(errors)
        for batch, times in _ratios(read_rows(rows_path), ours, other).items():
            found[f"{prefix}ratio_{batch}"] = times
        for point in read_rows(HERE / file):
            batch, times = point["global_batch"], point[ours] / point[other]
            found[f"published_{prefix}ratio_{batch}"] = times
    return found


WHY = {
    "horovod": "theirs hides less communication under backward than the model of it",
    "pair": "theirs fetches a model while it computes; ours exchanges after the update",
}


def published(rows_path: Path) -> list[dict[str, Any]]:
    """Each published rate beside ours."""
    return [
        compared(
            "KungFu, README",
            f"{LABELS[line['system']]}, global batch {line['global batch']}",
            "images/s, 16 GPUs",
            line["published"],
            line["images/s"],
            use="fitted" if line["published is"] == "fitted" else "compared",
            why=WHY.get(line["system"], ""),
        )
        for line in table(rows_path)
    ]
