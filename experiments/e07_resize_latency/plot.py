"""Latency and pause of real resizes, and of simulated ones over workers; reads rows only."""

import csv
import statistics
from pathlib import Path
from typing import Any

from experiments._shared.record import read_rows
from experiments._shared.style import PALETTE, axis_labels, legend, new_figure, save

HERE = Path(__file__).resolve().parent
LABELS = {"kf": "ours", "horovod": "Horovod"}
MARKERS = {"kf": "o", "horovod": "D"}
COLOURS = {"kf": PALETTE["blue"], "horovod": PALETTE["orange"]}
KEY = ("system", "change", "old", "new", "state_bytes")
LEAST_S = 1e-4  # a pause below it is drawn there


def plot(rows_path: Path, out: Path) -> list[Path]:
    """Left: real medians, latency filled and pause hollow. Right: simulated."""
    rows = read_rows(rows_path)
    figure, [left, right] = new_figure(1, 2, width_in=9.6, height_in=4.0)
    _real(left, [row for row in rows if row["world"] == "real"])
    _simulated(right, [row for row in rows if row["world"] == "simulated"])
    figure.suptitle("Resizing: decision to first step with the new size, and pause in it")
    return save(figure, out / "figure")


def _real(axes: Any, rows: list[dict[str, Any]]) -> None:
    groups = _groups(rows)
    names = []
    for place, (key, mine) in enumerate(groups.items()):
        system, change, old, new, state = key
        pause_s = max(LEAST_S, statistics.median(row["pause_s"] for row in mine))
        latency_s = statistics.median(row["latency_s"] for row in mine)
        look = {"color": COLOURS[system], "marker": MARKERS[system], "linestyle": ""}
        axes.plot(latency_s, place, label=None, **look)
        axes.plot(pause_s, place, fillstyle="none", **look)
        size = ", 100 MB" if state > 10**6 else ""
        names.append(f"{LABELS[system]} {old} to {new}{size}")
        for star in _published() if system == "kf" and not size else []:
            if (star["change"], int(star["old"]), int(star["new"])) == (change, old, new):
                axes.plot(float(star["latency_s"]), place, "*", color="black", markersize=9)
    axes.set_yticks(range(len(names)), names)
    axes.set_xscale("log")
    axis_labels(axes, "time (s), lower is better", "real job")
    grey = {"color": "0.3", "linestyle": ""}
    axes.plot([], [], marker="o", label="latency", **grey)
    axes.plot([], [], marker="o", fillstyle="none", label="pause of training", **grey)
    axes.plot([], [], marker="*", label="KungFu, published", **grey)
    legend(axes)


def _simulated(axes: Any, rows: list[dict[str, Any]]) -> None:
    for (change, state), look in {
        ("out", 8000): {"color": PALETTE["blue"], "marker": "o", "linestyle": "-"},
        ("out", 100_000_000): {"color": PALETTE["sky"], "marker": "P", "linestyle": "--"},
        ("in", 8000): {"color": PALETTE["green"], "marker": "^", "linestyle": "-."},
    }.items():
        mine = [row for row in rows if (row["change"], row["state_bytes"]) == (change, state)]
        mine.sort(key=lambda row: max(row["old"], row["new"]))
        way = "1 to N" if change == "out" else "N to 1"
        size = ", 100 MB" if state > 10**6 else ""
        axes.plot(
            [max(row["old"], row["new"]) for row in mine],
            [row["latency_s"] for row in mine],
            label=f"{way}{size}",
            **look,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axis_labels(axes, "workers N (simulated)", "latency (s)", better="lower")
    legend(axes)


def _groups(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in KEY), []).append(row)
    return dict(sorted(groups.items(), key=lambda item: (item[0][0] != "kf", item[0][1:])))


def _published() -> list[dict[str, str]]:
    with (HERE / "published.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def table(rows_path: Path) -> list[dict[str, Any]]:
    """Medians of real resizes, and the simulated ones."""
    out = []
    rows = read_rows(rows_path)
    for world in ("real", "simulated"):
        for key, mine in _groups([row for row in rows if row["world"] == world]).items():
            starts = [row["start_s"] for row in mine if row["start_s"] is not None]
            out.append(
                {
                    "world": world,
                    **dict(zip(KEY, key, strict=True)),
                    "runs": len(mine),
                    "latency_s": statistics.median(row["latency_s"] for row in mine),
                    "pause_s": statistics.median(row["pause_s"] for row in mine),
                    "slowest_pause_s": max(row["pause_s"] for row in mine),
                    "start_s": statistics.median(starts) if starts else None,
                }
            )
    return out
