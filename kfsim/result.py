"""What a simulation brought: rows, events and a summary, as values and as files."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kfsim.files import RunFiles
from kfsim.scenario import Scenario
from kfsim.statistics import Interval, interval, paired

__all__ = ["FIGURES", "Result", "Summary", "differences", "intervals"]

Row = dict[str, Any]

_MEANS = ("world_size", "step_s", "compute_s", "exposed_s", "bytes_sent_mean")

# What a replication has a figure of, and intervals are given for.
FIGURES = (
    "throughput_samples_per_s",
    "per_worker_samples_per_s",
    "step_s",
    "compute_s",
    "exposed_s",
    "cost",
    "time_s",
)


@dataclass(frozen=True)
class Result:
    """One simulated scenario.

    Attributes:
        rows: One a step and repeat; names carry units. NaN: not measured. Empty if they were
            only handed on.
        events: What the engine and the policies did, each with ``time_s``; likewise.
        summary: Means over the steps after the warm-up; see `Summary.finish`.
        replications: `FIGURES` of each repeat.
        explanation: How link sharing was computed: for each repeat its ``steps``, how many
            were ``recalled`` whole, and its ``collectives`` (`kfsim.network.Links.explain`).
    """

    rows: tuple[Row, ...]
    events: tuple[Row, ...]
    summary: Row
    replications: tuple[dict[str, float], ...] = ()
    explanation: tuple[Row, ...] = ()

    def write(self, folder: str | Path) -> None:
        """Writes ``rows.csv``, ``events.jsonl`` and ``summary.json``.

        Args:
            folder: Made if missing; files of these names are replaced.
        """
        with RunFiles(folder) as files:
            for row in self.rows:
                files.row(row)
            for event in self.events:
                files.event(event)
            files.summary(self.summary)


class _Means:
    """Sums of some steps' rows."""

    def __init__(self) -> None:
        self.count = 0
        self._sums = dict.fromkeys((*_MEANS, "samples"), 0.0)

    def add(self, row: Row) -> None:
        self.count += 1
        for name in self._sums:
            self._sums[name] += row[name]

    def __getitem__(self, name: str) -> float:
        return self._sums[name] / self.count if self.count else math.nan

    @property
    def rate(self) -> float:
        """Samples per second over all of them."""
        return self._sums["samples"] / self._sums["step_s"] if self.count else math.nan


class Summary:
    """Makes the figures of a run out of its rows, one at a time: it keeps none.

    Args:
        scenario: What is run.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._all = _Means()
        self._mine = _Means()
        self._last: Row = {}
        self._steps = 0
        self.replications: list[dict[str, float]] = []

    def add(self, row: Row) -> None:
        """Takes in a step."""
        self._last = row
        self._steps = max(self._steps, int(row["step"]))
        if row["step"] > self._scenario.run.warmup_steps:
            self._all.add(row)
            self._mine.add(row)

    def end_repeat(self) -> None:
        """Closes one repetition."""
        if self._mine.count:
            rate = self._mine.rate
            self.replications.append(
                {
                    "throughput_samples_per_s": rate,
                    "per_worker_samples_per_s": rate / self._mine["world_size"],
                    "step_s": self._mine["step_s"],
                    "compute_s": self._mine["compute_s"],
                    "exposed_s": self._mine["exposed_s"],
                    "cost": float(self._last["cost"]),
                    "time_s": float(self._last["time_s"]),
                }
            )
        self._mine = _Means()

    @property
    def is_precise(self) -> bool:
        """Whether no further repetition is needed: `Run.precision` is reached."""
        share = self._scenario.run.precision
        if share == 0 or len(self.replications) < 3:
            return False
        found = interval([one["throughput_samples_per_s"] for one in self.replications])
        return found.half_width <= share * found.mean

    def finish(self, tiers: dict[str, str], evaluation: dict[str, float]) -> Row:
        """The figures.

        Args:
            tiers: How each schedule's sharing was computed, and why.
            evaluation: Of the real model, if there was one.

        Returns:
            ``throughput_samples_per_s`` (all ranks; samples over time after the warm-up, mean
            of repeats, higher is better), its sample standard deviation over repeats (NaN: one
            repeat), ``per_worker_samples_per_s``, mean step, compute and exposed communication
            seconds, bytes each rank sent in a step (mean), cost, final settings, and with
            repeats the 95 % ``intervals`` of `FIGURES`.
        """
        scenario, last = self._scenario, self._last
        rates = [one["throughput_samples_per_s"] for one in self.replications]
        throughput = float(np.mean(rates)) if rates else math.nan
        return {
            "scenario": scenario.run.name or scenario.path,
            "steps": self._steps,
            "repeats": len(self.replications) or scenario.run.repeats,
            "seed": scenario.run.seed,
            "throughput_samples_per_s": throughput,
            "throughput_std_samples_per_s": float(np.std(rates, ddof=1))
            if len(rates) > 1
            else math.nan,
            "per_worker_samples_per_s": throughput / self._all["world_size"],
            "step_s": self._all["step_s"],
            "compute_s": self._all["compute_s"],
            "exposed_s": self._all["exposed_s"],
            "bytes_sent_per_rank_step": self._all["bytes_sent_mean"],
            "cost": last.get("cost", math.nan),
            "time_s": last.get("time_s", 0.0),
            "world_size": last.get("world_size", scenario.world_size),
            "local_batch": last.get("local_batch", scenario.workload.local_batch),
            "schedule": last.get("schedule", ""),
            "intervals": {
                name: asdict(found) for name, found in intervals(self.replications).items()
            },
            "tiers": dict(sorted(tiers.items())),
            "evaluation": evaluation,
        }


def intervals(replications: Sequence[dict[str, float]]) -> dict[str, Interval]:
    """95 % intervals of each figure.

    Args:
        replications: `FIGURES` of each repeat.

    Returns:
        By figure; nothing of fewer than two repeats.
    """
    if len(replications) < 2:
        return {}
    return {name: interval([one[name] for one in replications]) for name in FIGURES}


def differences(
    ours: Sequence[dict[str, float]], theirs: Sequence[dict[str, float]]
) -> dict[str, Interval]:
    """95 % intervals of paired differences: repeat by repeat, on the same random numbers.

    Args:
        ours: `FIGURES` of each repeat.
        theirs: Likewise, of the scenario to compare with.

    Returns:
        Ours minus theirs, by figure.
    """
    return {
        name: paired([one[name] for one in ours], [one[name] for one in theirs])
        for name in FIGURES
    }
