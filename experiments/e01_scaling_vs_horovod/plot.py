"""Draws throughput and bytes on the wire over the number of VMs; reads rows only."""

from pathlib import Path
from typing import Any

from experiments._shared.record import read_rows
from experiments._shared.stats import Interval, median_interval
from experiments._shared.style import (
    SERIES,
    axis_labels,
    legend,
    new_figure,
    power_of_two_axis,
    save,
    series_style,
)

PUBLISHED = Path(__file__).resolve().parent / "published.csv"
LABELS = {
    "ideal": "ideal: no communication",
    "kf": "ours, multi_binary_tree_star",
    "horovod_tuned": "Horovod, tuned",
    "horovod_untuned": "Horovod, as measured for KungFu",
}
TABLE_VMS = (1, 8, 32, 256)


def _intervals(rows: list[dict[str, Any]], system: str, column: str) -> dict[int, Interval]:
    """Median of the repeats at each number of VMs."""
    values: dict[int, list[float]] = {}
    for row in rows:
        if row["system"] == system:
            values.setdefault(row["vms"], []).append(row[column])
    return {vms: median_interval(values[vms]) for vms in sorted(values)}


def plot(rows_path: Path, out: Path) -> list[Path]:
    """Total throughput, share of the ideal, and bytes that one VM sends a step."""
    rows = read_rows(rows_path)
    repeats = len({row["repeat"] for row in rows})
    ideal = _intervals(rows, "ideal", "throughput_samples_per_s")
    figure, [total, share, sent] = new_figure(1, 3, width_in=11.0, height_in=3.8)
    for system, label in LABELS.items():
        rate = _intervals(rows, system, "throughput_samples_per_s")
        percent = {n: 100 / ideal[n].median for n in rate}
        _draw(total, system, label, rate, dict.fromkeys(rate, 1.0))
        _draw(share, system, label, rate, percent)
        if system != "ideal":
            sizes = _intervals(rows, system, "sent_bytes_per_step")
            _draw(sent, system, label, sizes, dict.fromkeys(sizes, 1e-6))
    for point in read_rows(PUBLISHED):
        _draw_published(total, point, "throughput_samples_per_s", "spread_samples_per_s")
        _draw_published(share, point, "efficiency_percent", "spread_percent")
    total.set_yscale("log")
    for axes, name, better in (
        (total, "throughput (samples/s, total)", "higher"),
        (share, "throughput (% of ideal)", "higher"),
        (sent, "sent by one VM a step (MB)", "lower"),
    ):
        power_of_two_axis(axes)
        axis_labels(axes, "VMs (one GPU each)", name, better=better)
    share.set_ylim(0, 105)
    sent.set_ylim(bottom=0)
    legend(total, "upper left")
    figure.suptitle(
        f"ResNet-50, batch 32 a VM, simulated ({repeats} repeats, band: 95 % interval of the"
        " median); stars: published, see published.csv",
        fontsize=10,
    )
    return save(figure, out / "figure")


def _draw(
    axes: Any, system: str, label: str, points: dict[int, Interval], factor: dict[int, float]
) -> None:
    look = series_style(system)
    sizes = list(points)
    axes.plot(sizes, [points[n].median * factor[n] for n in sizes], label=label, **look)
    axes.fill_between(
        sizes,
        [points[n].low * factor[n] for n in sizes],
        [points[n].high * factor[n] for n in sizes],
        color=look["color"],
        alpha=0.2,
        linewidth=0,
    )


def _draw_published(axes: Any, point: dict[str, Any], column: str, spread: str) -> None:
    look = {**SERIES["published"], "color": SERIES[point["system"]]["color"]}
    axes.errorbar(
        point["vms"],
        point[column],
        yerr=point[spread],
        capsize=2,
        markersize=10,
        markeredgecolor="black",
        label=f"published, {point['role']}",
        zorder=5,
        **look,
    )


def table(rows_path: Path) -> list[dict[str, Any]]:
    """Throughput, share of ideal and bytes sent, at some sizes, beside the published points."""
    rows = read_rows(rows_path)
    published = {(p["system"], p["vms"]): p for p in read_rows(PUBLISHED)}
    ideal = _intervals(rows, "ideal", "throughput_samples_per_s")
    lines = []
    for system in LABELS:
        rate = _intervals(rows, system, "throughput_samples_per_s")
        sent = _intervals(rows, system, "sent_bytes_per_step")
        for vms in (n for n in rate if n in TABLE_VMS):
            point = published.get((system, vms), {})
            lines.append(
                {
                    "system": system,
                    "VMs": vms,
                    "samples/s": rate[vms].median,
                    "+- (%)": round(
                        50 * (rate[vms].high - rate[vms].low) / rate[vms].median, 2
                    ),
                    "of ideal (%)": 100 * rate[vms].median / ideal[vms].median,
                    "sent (MB/VM/step)": sent[vms].median / 1e6,
                    "published": point.get("throughput_samples_per_s"),
                    "published is": point.get("role"),
                }
            )
    return lines
