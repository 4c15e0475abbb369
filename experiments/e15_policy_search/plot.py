"""Draws the search and its confirmation; reads rows only."""

from pathlib import Path
from typing import Any

import numpy as np

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

TIME, STEPS = "time_to_target_s", "steps_to_target"
Choice = tuple[float, int, int]


def _groups(rows: list[dict[str, Any]], world: str, column: str) -> dict[Choice, list[Any]]:
    found: dict[Choice, list[Any]] = {}
    for row in rows:
        if row["world"] == world:
            choice = (row["factor"], row["every"], row["cap"])
            found.setdefault(choice, []).append(row[column])
    return found


def _scores(rows: list[dict[str, Any]]) -> list[tuple[Choice, Interval]]:
    """Choices that always reached the target, the fastest first."""
    groups = _groups(rows, "simulated", TIME)
    whole = {c: median_interval(v) for c, v in groups.items() if None not in v}
    return sorted(whole.items(), key=lambda item: (item[1].median, item[0]))


def _name(choice: Choice) -> str:
    factor, every, cap = choice
    return f"{factor:g} / {every} / {cap}" if cap else "fixed batch 8"


def plot(rows_path: Path, out: Path) -> list[Path]:
    """Left: all choices by time. Right: steps to the target in both worlds."""
    rows = read_rows(rows_path)
    scores = _scores(rows)
    figure, [search, confirm] = new_figure(1, 2, width_in=9.4, height_in=3.8)
    places = np.arange(len(scores))
    medians = np.array([score.median for _, score in scores])
    search.barh(
        places,
        medians,
        xerr=[
            medians - [s.low for _, s in scores],
            [s.high for _, s in scores] - medians,
        ],
        color=[PALETTE["blue"] if choice[2] else PALETTE["orange"] for choice, _ in scores],
        capsize=2,
    )
    search.set_yticks(places, [_name(choice) for choice, _ in scores], fontsize=7)
    search.invert_yaxis()
    axis_labels(
        search, "simulated time to the loss (s), lower is better", "factor / every / cap"
    )
    simulated, real = (_groups(rows, world, STEPS) for world in ("simulated", "real"))
    for choice, marker in zip(real, "os", strict=False):
        confirm.plot(simulated[choice], real[choice], marker, label=_name(choice))
    most = max(max(values) for values in simulated.values() if None not in values)
    confirm.plot([0, most], [0, most], color="black", linestyle=":", linewidth=0.8)
    axis_labels(confirm, "steps to the loss, simulated", "steps to the loss, real")
    legend(confirm, "upper left")
    repeats = len({row["repeat"] for row in rows})
    figure.suptitle(
        f"Search in the simulator, confirmed on 4 processes ({spread_note(repeats)})",
        fontsize=10,
    )
    return save(figure, out / "figure")


def table(rows_path: Path) -> list[dict[str, Any]]:
    """A line a choice, the fastest first; real steps where they were measured."""
    rows = read_rows(rows_path)
    simulated, real = (_groups(rows, world, STEPS) for world in ("simulated", "real"))
    return [
        {
            "factor / every / cap": _name(choice),
            "time (s)": score.median,
            "low": score.low,
            "high": score.high,
            "steps, simulated": float(np.median(simulated[choice])),
            "steps, real": float(np.median(real[choice])) if choice in real else None,
        }
        for choice, score in _scores(rows)
    ]


def numbers(rows_path: Path) -> dict[str, float]:
    """What the report quotes."""
    rows = read_rows(rows_path)
    scores = dict(_scores(rows))
    simulated, real = (_groups(rows, world, STEPS) for world in ("simulated", "real"))
    best = next(choice for choice in scores if choice[2])
    fixed = next(choice for choice in real if not choice[2])
    pairs = [
        (a, b) for choice in real for a, b in zip(simulated[choice], real[choice], strict=True)
    ]
    return {
        "choices": len(scores) - 1,
        "best_factor": best[0],
        "best_every": best[1],
        "best_cap": best[2],
        "best_time_s": scores[best].median,
        "fixed_time_s": scores[fixed].median,
        "speedup_ratio": scores[fixed].median / scores[best].median,
        "best_steps_real": float(np.median(real[best])),
        "fixed_steps_real": float(np.median(real[fixed])),
        "runs_confirmed": sum(a == b for a, b in pairs),
        "runs": len(pairs),
        "largest_step_difference": max(abs(a - b) for a, b in pairs),
    }
