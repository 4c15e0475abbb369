"""What a simulation brought: rows, events and a summary, as values and as files."""

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kfcore.events import to_plain
from kfsim.scenario import Scenario

__all__ = ["Result", "summarize"]

Row = dict[str, Any]


@dataclass(frozen=True)
class Result:
    """One simulated scenario.

    Attributes:
        rows: One a step and repeat; names carry units. NaN: not measured.
        events: What the engine and the policies did, each with ``time_s``.
        summary: Means over the steps after the warm-up; see `summarize`.
    """

    rows: tuple[Row, ...]
    events: tuple[Row, ...]
    summary: Row

    def write(self, folder: str | Path) -> None:
        """Writes ``rows.csv``, ``events.jsonl`` and ``summary.json``.

        Args:
            folder: Made if missing; files of these names are replaced.
        """
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        with (place / "rows.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=list(self.rows[0]) if self.rows else [])
            writer.writeheader()
            for row in self.rows:
                writer.writerow({name: _cell(value) for name, value in row.items()})
        lines = [json.dumps(to_plain(event), allow_nan=False) for event in self.events]
        (place / "events.jsonl").write_text("".join(f"{line}\n" for line in lines), "utf-8")
        text = json.dumps(to_plain(self.summary), indent=2, allow_nan=False)
        (place / "summary.json").write_text(text + "\n", "utf-8")


def summarize(
    scenario: Scenario, rows: Sequence[Row], tiers: dict[str, str], evaluation: dict[str, float]
) -> Row:
    """The figures of a run.

    Args:
        scenario: What was run.
        rows: Of all steps and repeats.
        tiers: How each schedule's sharing was computed, and why.
        evaluation: Of the real model, if there was one.

    Returns:
        ``throughput_samples_per_s`` (all ranks; samples over time after the warm-up, mean of
        repeats, higher is better), its sample standard deviation over repeats (NaN: one
        repeat), ``per_worker_samples_per_s``, mean step, compute and exposed communication
        seconds, bytes each rank sent in a step (mean), cost, and final settings.
    """
    counted = [row for row in rows if row["step"] > scenario.run.warmup_steps]
    rates = []
    for repeat in range(scenario.run.repeats):
        mine = [row for row in counted if row["repeat"] == repeat]
        if mine:
            rates.append(sum(r["samples"] for r in mine) / sum(r["step_s"] for r in mine))
    last = rows[-1] if rows else {}

    def mean(name: str) -> float:
        return float(np.mean([row[name] for row in counted])) if counted else math.nan

    workers = mean("world_size")
    throughput = float(np.mean(rates)) if rates else math.nan
    return {
        "scenario": scenario.run.name or scenario.path,
        "steps": len({row["step"] for row in rows}),
        "repeats": scenario.run.repeats,
        "seed": scenario.run.seed,
        "throughput_samples_per_s": throughput,
        "throughput_std_samples_per_s": float(np.std(rates, ddof=1))
        if len(rates) > 1
        else math.nan,
        "per_worker_samples_per_s": throughput / workers,
        "step_s": mean("step_s"),
        "compute_s": mean("compute_s"),
        "exposed_s": mean("exposed_s"),
        "bytes_sent_per_rank_step": mean("bytes_sent_mean"),
        "cost": last.get("cost", math.nan),
        "time_s": last.get("time_s", 0.0),
        "world_size": last.get("world_size", scenario.world_size),
        "local_batch": last.get("local_batch", scenario.workload.local_batch),
        "schedule": last.get("schedule", ""),
        "tiers": dict(sorted(tiers.items())),
        "evaluation": evaluation,
    }


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return "" if math.isnan(value) else repr(value)
    return value
