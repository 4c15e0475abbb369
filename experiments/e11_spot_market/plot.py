"""Draws money per progress and time on each market; reads rows only."""

from pathlib import Path
from typing import Any

import numpy as np

from experiments._shared.aims import aim
from experiments._shared.record import read_rows
from experiments._shared.stats import Interval, median_interval
from experiments._shared.style import (
    PALETTE,
    axis_labels,
    legend,
    new_figure,
    save,
    spread_note,
)

LABELS = {
    "on_demand": "on demand, static",
    "spot_restart": "8 spot machines, restarts",
    "spot_all": "all spot machines, elastic",
    "policy": "CostAwareResize",
}
COLOURS = dict(zip(LABELS, ("black", "vermilion", "orange", "blue"), strict=True))
HATCHES = dict(zip(LABELS, ("", "//", "..", "xx"), strict=True))
DEADLINE_H = 10


def _values(rows: list[dict[str, Any]], law: str, contender: str) -> dict[str, Any]:
    mine = [row for row in rows if (row["law"], row["contender"]) == (law, contender)]
    return {
        "price": median_interval([1e6 * row["cost_usd"] / row["samples"] for row in mine]),
        "hours": median_interval([row["time_s"] / 3600 for row in mine]),
        "met": sum(row["deadline_met"] for row in mine),
        "runs": len(mine),
        "removals": float(np.median([row["removals"] for row in mine])),
    }


def plot(rows_path: Path, out: Path) -> list[Path]:
    """Money left, time right; a group of bars a law."""
    rows = read_rows(rows_path)
    laws = list(dict.fromkeys(row["law"] for row in rows))
    figure, [money, time] = new_figure(1, 2, width_in=10.0, height_in=3.8)
    width = 0.8 / len(LABELS)
    for place, (contender, label) in enumerate(LABELS.items()):
        found = [_values(rows, law, contender) for law in laws]
        xs = np.arange(len(laws)) + (place - 1.5) * width
        for axes, name in ((money, "price"), (time, "hours")):
            points: list[Interval] = [values[name] for values in found]
            medians = np.array([point.median for point in points])
            axes.bar(
                xs,
                medians,
                width,
                yerr=[
                    medians - [point.low for point in points],
                    [point.high for point in points] - medians,
                ],
                capsize=2,
                label=label,
                facecolor=PALETTE[COLOURS[contender]],
                edgecolor="white",
                hatch=HATCHES[contender],
            )
    time.axhline(DEADLINE_H, color="black", linestyle=":", linewidth=1)
    time.annotate("deadline", (-0.45, DEADLINE_H + 0.2), fontsize=7)
    for axes, name in (
        (money, "USD per million samples"),
        (time, "hours until the work is done"),
    ):
        axes.set_xticks(np.arange(len(laws)), laws)
        axis_labels(axes, "law of the spot market", name, better="lower")
    money.set_ylim(0, 1.35 * money.get_ylim()[1])
    legend(money, "upper left", ncols=2)
    repeats = len({row["repeat"] for row in rows})
    figure.suptitle(
        f"BERT-base with a deadline on drawn spot markets, simulated ({spread_note(repeats)})",
        fontsize=10,
    )
    return save(figure, out / "figure")


def table(rows_path: Path) -> list[dict[str, Any]]:
    """A line a law and contender."""
    rows = read_rows(rows_path)
    lines = []
    for law in dict.fromkeys(row["law"] for row in rows):
        for contender in LABELS:
            found = _values(rows, law, contender)
            lines.append(
                {
                    "law": law,
                    "contender": contender,
                    "USD / 1e6 samples": found["price"].median,
                    "low": found["price"].low,
                    "high": found["price"].high,
                    "hours": found["hours"].median,
                    "deadline met": f"{found['met']} of {found['runs']}",
                    "removals": found["removals"],
                }
            )
    return lines


def numbers(rows_path: Path) -> dict[str, float]:
    """What the report quotes: also in how many markets the policy was the cheapest in time."""
    rows = read_rows(rows_path)
    counts = ("markets", "beats_on_demand", "beats_static", "beats_all", "met")
    found = {name if name == "markets" else f"policy_{name}": 0.0 for name in counts}
    by = {(row["law"], row["contender"], row["repeat"]): row for row in rows}
    for law in dict.fromkeys(row["law"] for row in rows):
        for contender in LABELS:
            values = _values(rows, law, contender)
            found[f"{law}_{contender}_usd"] = values["price"].median
            found[f"{law}_{contender}_hours"] = values["hours"].median
            found[f"{law}_{contender}_met"] = values["met"]
        for repeat in sorted({row["repeat"] for row in rows}):
            mine, static = (by[law, name, repeat] for name in ("policy", "on_demand"))
            fair = [by[law, name, repeat] for name in ("on_demand", "spot_restart")]
            in_time = [other for other in fair if other["deadline_met"]]
            price = mine["cost_usd"] / mine["samples"]
            found["policy_beats_static"] += all(
                price < other["cost_usd"] / other["samples"] for other in in_time
            )
            everyone = [by[law, name, repeat] for name in LABELS if name != "policy"]
            found["policy_beats_all"] += all(
                price < other["cost_usd"] / other["samples"]
                for other in everyone
                if other["deadline_met"]
            )
            found["markets"] += 1
            found["policy_met"] += mine["deadline_met"]
            found["policy_beats_on_demand"] += (
                mine["cost_usd"] / mine["samples"] < static["cost_usd"] / static["samples"]
            )
        found[f"{law}_saved_percent"] = 100 * (
            1 - found[f"{law}_policy_usd"] / found[f"{law}_on_demand_usd"]
        )
    return found


def aims(rows_path: Path) -> list[dict[str, Any]]:
    """Each drawn market is one in which the policy must be in time, and cheaper."""
    found = numbers(rows_path)
    return [
        aim(f"markets in which the policy {what}", found[key], at_least=found["markets"])
        for what, key in (
            ("holds the deadline", "policy_met"),
            ("is cheaper than the static choice on demand", "policy_beats_on_demand"),
            ("is cheaper than every static choice in time", "policy_beats_static"),
            ("is cheaper than every other contender in time", "policy_beats_all"),
        )
    ]
