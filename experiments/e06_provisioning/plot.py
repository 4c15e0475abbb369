"""Draws throughput and workers over windows, and what a sample costs; reads rows only."""

from pathlib import Path
from typing import Any

from experiments._shared.grid import intervals
from experiments._shared.published import compared
from experiments._shared.record import read_rows
from experiments._shared.stats import Interval, median_interval
from experiments._shared.style import (
    axis_labels,
    draw_intervals,
    legend,
    new_figure,
    save,
    series_style,
    spread_note,
)

CLUSTERS = {
    "ring_10": "ring, 10 Gbit/s",
    "star_25": "star, 25 Gbit/s",
    "ring_4": "ring, 4 Gbit/s",
}
VARIANTS = {"adaptive": "policy", "fixed_1": "1 worker", "fixed_10": "10 workers"}
SERIES = {"adaptive": "kf", "fixed_1": "horovod_tuned", "fixed_10": "horovod_untuned"}
RATE = "throughput_samples_per_s"


def plot(rows_path: Path, out: Path) -> list[Path]:
    """Throughput above, workers below; a column a cluster."""
    rows = read_rows(rows_path)
    figure, panels = new_figure(2, len(CLUSTERS), width_in=10.0, height_in=5.0)
    for column, (cluster, name) in enumerate(CLUSTERS.items()):
        rate, workers = panels[column], panels[column + len(CLUSTERS)]
        for variant, label in VARIANTS.items():
            found = intervals(rows, "window", RATE, cluster=cluster, variant=variant)
            draw_intervals(rate, SERIES[variant], found, label=label)
            count = intervals(rows, "window", "workers", cluster=cluster, variant=variant)
            look = series_style(SERIES[variant])
            workers.step(
                list(count),
                [p.median for p in count.values()],
                where="mid",
                label=label,
                **look,
            )
        rate.set_title(name, fontsize=9)
        axis_labels(rate, "window", "throughput (samples/s)", better="higher")
        axis_labels(workers, "window", "workers")
        rate.set_ylim(bottom=0)
        workers.set_ylim(0, 11)
    legend(panels[0], "upper left")
    repeats = len({row["repeat"] for row in rows})
    figure.suptitle(
        f"BERT-base, provisioning by marginal throughput, simulated ({spread_note(repeats)})",
        fontsize=10,
    )
    return save(figure, out / "figure")


def _last(rows: list[dict[str, Any]], cluster: str, variant: str) -> dict[str, Interval]:
    last = max(row["window"] for row in rows)
    mine = [
        row
        for row in rows
        if (row["cluster"], row["variant"], row["window"]) == (cluster, variant, last)
    ]
    return {
        "workers": median_interval([row["workers"] for row in mine]),
        "rate": median_interval([row[RATE] for row in mine]),
        "price": median_interval([1e6 * row["cost_usd"] / row["samples"] for row in mine]),
        "hours": median_interval([1e6 * row["time_s"] / row["samples"] / 3600 for row in mine]),
    }


def table(rows_path: Path) -> list[dict[str, Any]]:
    """A line a cluster and variant, over the whole run."""
    rows = read_rows(rows_path)
    lines = []
    for cluster in CLUSTERS:
        for variant in VARIANTS:
            found = _last(rows, cluster, variant)
            lines.append(
                {
                    "cluster": cluster,
                    "variant": variant,
                    "workers at the end": found["workers"].median,
                    "samples/s at the end": found["rate"].median,
                    "USD / 1e6 samples": found["price"].median,
                    "low": found["price"].low,
                    "high": found["price"].high,
                    "hours / 1e6 samples": found["hours"].median,
                }
            )
    return lines


def numbers(rows_path: Path) -> dict[str, float]:
    """What the report quotes."""
    rows = read_rows(rows_path)
    found: dict[str, float] = {}
    for cluster in CLUSTERS:
        for variant in VARIANTS:
            for name, value in _last(rows, cluster, variant).items():
                found[f"{cluster}_{variant}_{name}"] = value.median
        adaptive = intervals(rows, "window", "workers", cluster=cluster, variant="adaptive")
        found[f"{cluster}_most_workers"] = max(point.median for point in adaptive.values())
    return found


def published(rows_path: Path) -> list[dict[str, Any]]:
    """The published figure prints no rates; its axis of workers ends where ours does."""
    found = numbers(rows_path)
    source, ours = "KungFu, Figure 6", found["ring_10_adaptive_workers"]
    return [
        compared(source, "workers that the policy grows to", "workers", 10.0, ours),
        compared(
            "KungFu, pull request 271",
            "BERT-base, batch 8, one worker",
            "samples/s",
            17.47,
            found["ring_10_fixed_1_rate"],
            use="input",
        ),
    ]
