"""Draws throughput over steps in both worlds, with and without the policy; reads rows only."""

from pathlib import Path
from typing import Any

import numpy as np

from experiments._shared.aims import aim
from experiments._shared.grid import intervals
from experiments._shared.published import compared
from experiments._shared.record import read_rows
from experiments._shared.stats import median_interval
from experiments._shared.style import (
    axis_labels,
    draw_intervals,
    draw_published,
    legend,
    new_figure,
    save,
    spread_note,
)

PUBLISHED = Path(__file__).resolve().parent / "published.csv"
RATE = "samples_per_s_per_worker"
DISTURBED_FROM = {"simulated": 31, "real": 15}
LABELS = {"adaptive": "with InterferenceSchedule", "fixed": "star stays at rank 0"}
SERIES = {"adaptive": "kf", "fixed": "horovod_untuned"}
SKIP = 5  # first steps, while connections open


def plot(rows_path: Path, out: Path) -> list[Path]:
    """One panel a world."""
    rows = read_rows(rows_path)
    worlds = [w for w in DISTURBED_FROM if any(row["world"] == w for row in rows)]
    repeats = len({row["repeat"] for row in rows})
    figure, panels = new_figure(1, len(worlds), width_in=4.8 * len(worlds), height_in=3.4)
    for axes, world in zip(panels, worlds, strict=True):
        mine = [row for row in rows if row["world"] == world and row["step"] > SKIP]
        for variant, label in LABELS.items():
            points = intervals(mine, "step", RATE, variant=variant)
            draw_intervals(axes, SERIES[variant], points, label=label)
        axes.axvline(DISTURBED_FROM[world], color="black", linewidth=0.8, linestyle=":")
        axes.annotate("disturbed", (DISTURBED_FROM[world], 0), fontsize=7, rotation=90)
        if world == "simulated":
            for point in read_rows(PUBLISHED):
                first = point["iteration"] == 20
                label = "published (KungFu, Fig. 5 log)" if first else None
                draw_published(axes, "kf", point["iteration"], point[RATE], label=label)
        axis_labels(axes, "step", "throughput (samples/s, one worker)", better="higher")
        axes.set_ylim(bottom=0)
        what = (
            "8 VMs, ResNet-50" if world == "simulated" else "6 hosts, 200 Mbit/s, 1 MB a step"
        )
        axes.set_title(f"{world}: {what}", fontsize=9)
    legend(panels[0], "lower left")
    figure.suptitle(f"A star whose root is disturbed ({spread_note(repeats)})", fontsize=10)
    return save(figure, out / "figure")


def summary(
    rows: list[dict[str, Any]], world: str, variant: str, repeat: int
) -> dict[str, float]:
    """One run: throughput before, at the hit, after the switch, and when things happened."""
    mine = [
        row
        for row in rows
        if (row["world"], row["variant"], row["repeat"]) == (world, variant, repeat)
    ]
    rate = {row["step"]: row[RATE] for row in mine}
    start = DISTURBED_FROM[world]
    before = float(np.median([rate[s] for s in rate if SKIP < s < start]))
    moved = [row["step"] for row in mine if row["root"] != 0]
    hit = min(rate[s] for s in rate if start <= s < start + 5)
    found = {"before": before, "hit_percent": 100 * hit / before}
    if moved:
        after = [rate[s] for s in rate if moved[0] <= s < moved[0] + 5]
        found["steps_to_switch"] = moved[0] - start
        found["best_of_5_percent"] = 100 * max(after) / before
        found["median_of_5_percent"] = 100 * float(np.median(after)) / before
    else:
        found["steps_to_switch"] = found["best_of_5_percent"] = float("nan")
        found["median_of_5_percent"] = (
            100 * float(np.median([rate[s] for s in rate if s >= start + 2])) / before
        )
    return found


def _summaries(rows: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, list[float]]]:
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    runs = sorted({(row["world"], row["variant"], row["repeat"]) for row in rows})
    for world, variant, repeat in runs:
        for name, value in summary(rows, world, variant, repeat).items():
            if not np.isnan(value):
                found.setdefault((world, variant), {}).setdefault(name, []).append(value)
    return found


def table(rows_path: Path) -> list[dict[str, Any]]:
    """A line a world and variant: medians over the repeats, the published run below."""
    lines = []
    for (world, variant), values in _summaries(read_rows(rows_path)).items():
        recovered = median_interval(values["median_of_5_percent"])
        lines.append(
            {
                "world": world,
                "variant": variant,
                "before (samples/s)": float(np.median(values["before"])),
                "at the hit (%)": float(np.median(values["hit_percent"])),
                "steps to switch": _median(values.get("steps_to_switch")),
                "best of 5 after (%)": _median(values.get("best_of_5_percent")),
                "median of 5 after (%)": recovered.median,
                "low": recovered.low,
                "high": recovered.high,
                "runs": recovered.count,
            }
        )
    published = published_summary()
    lines.append(
        {
            "world": "published",
            "variant": "adaptive",
            "before (samples/s)": published["published_before_samples_per_s"],
            "at the hit (%)": published["published_hit_percent"],
            "steps to switch": 1,
            "best of 5 after (%)": published["published_best_percent"],
            "runs": 1,
        }
    )
    return lines


def _median(values: list[float] | None) -> float | None:
    return float(np.median(values)) if values else None


def published_summary() -> dict[str, float]:
    """The same numbers of the published log."""
    rate = {row["iteration"]: row[RATE] for row in read_rows(PUBLISHED)}
    before = float(np.mean([rate[i] for i in range(20, 31)]))
    return {
        "published_before_samples_per_s": before,
        "published_hit_samples_per_s": rate[31],
        "published_hit_percent": 100 * rate[31] / before,
        "published_best_percent": 100 * max(rate[i] for i in range(32, 36)) / before,
    }


def numbers(rows_path: Path) -> dict[str, float]:
    """What the report quotes."""
    found = published_summary()
    for (world, variant), values in _summaries(read_rows(rows_path)).items():
        for name, repeats in values.items():
            found[f"{world}_{variant}_{name}"] = float(np.median(repeats))
    mine = found["simulated_adaptive_before"]
    found["difference_before_percent"] = 100 * (
        mine / found["published_before_samples_per_s"] - 1
    )
    hit = mine * found["simulated_adaptive_hit_percent"] / 100
    found["simulated_hit_samples_per_s"] = hit
    found["difference_hit_percent"] = 100 * (hit / found["published_hit_samples_per_s"] - 1)
    return found


HIT = DISTURBED_FROM["simulated"]
AT_ONCE = "our policy asks for a second vote; after its switch the model's rate is back at once"


def published(rows_path: Path) -> list[dict[str, Any]]:
    """The printed log from the disturbance on, and the simulated steps."""
    found, theirs = numbers(rows_path), published_summary()
    rows = [row for row in read_rows(rows_path) if row["world"] == "simulated"]
    ours = intervals(rows, "step", RATE, variant="adaptive")
    source = "KungFu, Figure 5 log"
    lines = [
        compared(
            source,
            "before the disturbance",
            "images/s, one GPU",
            theirs["published_before_samples_per_s"],
            found["simulated_adaptive_before"],
        )
    ]
    lines += [
        compared(
            source,
            f"iteration {point['iteration']}" + (", the hit" * (point["iteration"] == HIT)),
            "images/s, one GPU",
            point[RATE],
            ours[point["iteration"]].median,
            use="fitted" if point["iteration"] == HIT else "compared",
            why="" if point["iteration"] == HIT else AT_ONCE,
        )
        for point in read_rows(PUBLISHED)
        if point["iteration"] >= HIT
    ]
    best = found["simulated_adaptive_best_of_5_percent"]
    what = "best of the steps after the switch, of before"
    lines.append(
        compared(source, what, "%", theirs["published_best_percent"], best, why=AT_ONCE)
    )
    return lines


def aims(rows_path: Path) -> list[dict[str, Any]]:
    """At least 90 % of the undisturbed rate in the five steps from the switch on."""
    found = numbers(rows_path)
    return [
        aim(
            f"{world}: median of 5 steps from the switch, of the undisturbed rate (%)",
            found.get(f"{world}_adaptive_median_of_5_percent"),
            at_least=90.0,
        )
        for world in DISTURBED_FROM
    ]
