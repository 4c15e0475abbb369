"""Draws time over size for each setting; the table compares with our aims."""

import csv
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt

from experiments._shared.record import read_rows
from experiments._shared.style import axis_labels, save

HERE = Path(__file__).resolve().parent
TITLES = {
    "host2": "one host, 2 ranks",
    "host4": "one host, 4 ranks",
    "host8": "one host, 8 ranks",
    "hosts4x1": "4 hosts, 1 Gbit/s",
    "hosts2x1": "2 hosts, 5 Gbit/s",
    "hosts2x2": "2 hosts of 2 ranks, 1 Gbit/s",
}
MARKERS = "osD^vP*X<>"
Rows = list[dict[str, Any]]


def plot(rows_path: Path, out: Path) -> list[Path]:
    """One panel a setting."""
    rows = [row for row in read_rows(rows_path) if row["case"] == "all_reduce"]
    settings = [name for name in TITLES if any(row["setting"] == name for row in rows)]
    columns = min(3, len(settings))
    lines = -(-len(settings) // columns)
    figure, grid = plt.subplots(
        lines,
        columns,
        figsize=(4.2 * columns, 3.6 * lines),
        squeeze=False,
        layout="constrained",
    )
    names = list(dict.fromkeys(row["contender"] for row in rows))
    for panel, setting in zip(grid.flat, settings, strict=False):
        for index, name in enumerate(names):
            mine = [r for r in rows if r["setting"] == setting and r["contender"] == name]
            mine.sort(key=lambda row: row["buffer_bytes"])
            floor = name.startswith("floor-")
            panel.plot(
                [row["buffer_bytes"] for row in mine],
                [row["p50_us"] for row in mine],
                color="black" if floor else f"C{index}",
                linestyle=":" if floor else "-",
                marker="" if floor else MARKERS[index % len(MARKERS)],
                markersize=4,
                label=name,
            )
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_title(TITLES[setting], fontsize="medium")
        axis_labels(panel, "buffer (bytes)", "median time (us)", better="lower")
    for panel in list(grid.flat)[len(settings) :]:
        panel.set_axis_off()
    grid.flat[0].legend(fontsize="x-small")
    return save(figure, out / "figure")


def table(rows_path: Path) -> list[dict[str, Any]]:
    """Each of our aims: what was measured, and whether it was met."""
    rows = read_rows(rows_path)
    with (HERE / "marks.csv").open(newline="", encoding="utf-8") as file:
        marks = list(csv.DictReader(file))
    return [_judge(mark, rows) for mark in marks]


def _judge(mark: dict[str, str], rows: Rows) -> dict[str, Any]:
    limit = float(mark["limit"])
    value = _measured(mark, rows)
    at_least = mark["direction"] == "at_least"
    if value is None:
        verdict = "not measured"
    else:
        verdict = "met" if (value >= limit if at_least else value <= limit) else "missed"
    return {
        "our aim": mark["aim"],
        "limit": f"{'>=' if at_least else '<='} {limit:g}",
        "measured": None if value is None else float(f"{value:.3g}"),
        "verdict": verdict,
    }


def _measured(mark: dict[str, str], rows: Rows) -> float | None:
    beside = [
        row
        for row in rows
        if row["setting"] == mark["setting"]
        and row["case"] == mark["case"]
        and row["buffer_bytes"] == int(mark["buffer_bytes"])
    ]
    times = {row["contender"]: float(row["p50_us"]) for row in beside}
    mine = times.get(mark["contender"])
    if mine is None:
        return None
    kind, _, other = mark["measure"].partition(":")
    if kind == "p50_us":
        return mine
    if kind == "bound":
        row = next(row for row in beside if row["contender"] == mark["contender"])
        return bound_us(row) / mine
    if kind == "floor":
        floor = times.get(f"floor-{other}")
        return None if floor is None else mine / floor
    peers = {name: t for name, t in times.items() if not name.startswith(("kf", "floor-"))}
    if other != "best":
        peers = {name: t for name, t in peers.items() if name.split("-")[0] == other}
    return min(peers.values()) / mine if peers else None


def bound_us(row: dict[str, Any]) -> float:
    """Least time of a ring over the hosts' links, in us: 2 (n - 1) / n S over the rate."""
    n = row["hosts"]
    return 2 * (n - 1) / n * row["buffer_bytes"] * 8 / row["rate_mbit"]
