"""A real run again, in simulated time: it computes what its log says, the rest is modelled.

The log is that of ``kfcore.Job(log=..., record=True)``. Each step's computing is as long as it
was on the real ranks (each rank's own time where a policy such as ``NameStragglers`` logged
them, else the slowest one's for all), changes of the schedule come at the same steps, and
everything that the network does is the scenario's. What differs is the model's error.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfcore.errors import UsageError
from kfcore.policy.actions import SetSchedule
from kfcore.policy.base import Policy
from kfcore.policy.observation import Observation
from kfcore.policy.replay import observations
from kfsim.scenario import Scenario
from kfsim.simulation import simulate

__all__ = ["RealRun", "Resimulated", "read_run", "resimulate", "write_overlay"]

Times = NDArray[np.float64]


@dataclass(frozen=True)
class RealRun:
    """What a log says of a run, up to the first change of its number of workers.

    Attributes:
        world_size: Workers.
        step_s: [steps] of the slowest rank, seconds; NaN: not measured.
        compute_s: [steps, ranks] seconds; one column stands for all ranks.
        schedules: In force from step 1, and after each change: spec by first step.
        left_out: Steps of the log after the first change of the number of workers.
    """

    world_size: int
    step_s: Times
    compute_s: Times
    schedules: Mapping[int, str]
    left_out: int


@dataclass(frozen=True)
class Resimulated:
    """A real run beside its simulation.

    Attributes:
        rows: One a step that was measured: ``step``, ``compute_s`` (slowest rank), ``real_s``,
            ``simulated_s``, ``error`` (simulated over real, minus 1).
        summary: Steps, both totals in seconds, ``bias`` (of the total), median and 95th
            percentile of the errors' sizes.
    """

    rows: tuple[dict[str, Any], ...]
    summary: dict[str, Any]


def read_run(path: str | Path) -> RealRun:
    """Reads the log of a recorded run.

    Args:
        path: ``events.jsonl``.

    Returns:
        The run.

    Raises:
        UsageError: the file is no such log, or says nothing of times.
    """
    seen = [(hook, one) for hook, one in observations(path)]
    world_size = seen[0][1].world_size
    schedules = {1: seen[0][1].schedule}
    step_s: list[float] = []
    compute_s: list[tuple[float, ...]] = []
    left_out = 0
    for one in (one for hook, one in seen if hook == "after_step"):
        if left_out or one.world_size != world_size:
            left_out += 1
            continue
        if one.schedule != list(schedules.values())[-1]:
            schedules[one.step + 1] = one.schedule
        if one.step >= 2:  # times are those of the step before
            step_s.append(_number(one.metrics.get("step_s")))
            compute_s.append(_computing(one, world_size))
    measured = [row for row in compute_s if not any(map(math.isnan, row))]
    if not measured:
        raise UsageError(f"{path}: no step has a measured compute_s; two steps are needed")
    ranks = max(map(len, measured))
    usual = np.median(np.array([_wide(row, ranks) for row in measured]), axis=0)
    table = [usual if any(map(math.isnan, row)) else _wide(row, ranks) for row in compute_s]
    return RealRun(world_size, np.array(step_s), np.array(table), schedules, left_out)


def resimulate(scenario: Scenario, run: RealRun) -> Resimulated:
    """Simulates a run that was real.

    Args:
        scenario: Its cluster and system; the run gives steps and compute times.
        run: As `read_run` gives it.

    Returns:
        Step by step, and the figures.

    Raises:
        UsageError: the scenario has another number of workers.
    """
    if scenario.world_size != run.world_size:
        raise UsageError(
            f"the run had {run.world_size} workers, {scenario.path} has {scenario.world_size}; "
            "set cluster.hosts and cluster.ranks_per_host"
        )
    values: dict[str, Any] = {
        "run.steps": len(run.step_s),
        "run.warmup_steps": 0,
        "run.repeats": 1,
        "workload.jitter_sigma": 0.0,
    }
    if scenario.raw["system"]["kind"] == "kf":
        values["system.schedule"] = run.schedules[1]
    simulated = simulate(
        scenario.with_values(values), [_AsInstalled(run.schedules)], compute_s=run.compute_s
    )
    rows = [
        {
            "step": place + 1,
            "compute_s": float(run.compute_s[place].max()),
            "real_s": float(real_s),
            "simulated_s": row["step_s"],
            "error": row["step_s"] / real_s - 1,
        }
        for place, (real_s, row) in enumerate(zip(run.step_s, simulated.rows, strict=True))
        if real_s > 0
    ]
    return Resimulated(tuple(rows), _figures(rows, run.left_out))


def write_overlay(rows: Sequence[Mapping[str, Any]], path: str | Path) -> None:
    """Writes a trace for Perfetto: the real run as one process, the simulated as another.

    Args:
        rows: Of `Resimulated`.
        path: File.
    """
    events: list[dict[str, Any]] = []
    for pid, (name, key) in enumerate((("real", "real_s"), ("simulated", "simulated_s")), 1):
        events.append({"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}})
        at_s = 0.0
        for row in rows:
            spans = (("compute", row["compute_s"]), ("wait", row[key] - row["compute_s"]))
            begin_s = at_s
            for what, length_s in spans:
                events.append({
                    "name": what, "ph": "X", "pid": pid, "tid": 0,
                    "ts": round(begin_s * 1e6, 3), "dur": round(max(0.0, length_s) * 1e6, 3),
                    "args": {"step": row["step"]},
                })  # fmt: skip
                begin_s += max(0.0, length_s)
            at_s += row[key]
    text = json.dumps({"displayTimeUnit": "ms", "traceEvents": events})
    Path(path).write_text(text + "\n", encoding="utf-8")


class _AsInstalled(Policy):
    """Asks for the schedules of the real run, each a step before it was in force."""

    def __init__(self, schedules: Mapping[int, str]) -> None:
        self._at = {first - 2: spec for first, spec in schedules.items()}

    def before_train(self, seen: Observation) -> SetSchedule | None:
        return self._due(seen.step)

    def after_step(self, seen: Observation) -> SetSchedule | None:
        return self._due(seen.step)

    def _due(self, step: int) -> SetSchedule | None:
        spec = self._at.get(step)
        return None if spec is None else SetSchedule(spec, reason="as in the real run")


def _computing(one: Observation, world_size: int) -> tuple[float, ...]:
    by_rank = one.signals.get("compute_s_by_rank")
    if by_rank is not None and len(by_rank) == world_size:
        return tuple(float(value) for value in by_rank)
    return (_number(one.metrics.get("compute_s")),)


def _wide(row: tuple[float, ...], ranks: int) -> Times:
    return np.array(row if len(row) == ranks else row * ranks)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _figures(rows: Sequence[Mapping[str, Any]], left_out: int) -> dict[str, Any]:
    errors = np.abs([row["error"] for row in rows])
    real_s = math.fsum(row["real_s"] for row in rows)
    simulated_s = math.fsum(row["simulated_s"] for row in rows)
    return {
        "steps": len(rows),
        "real_s": real_s,
        "simulated_s": simulated_s,
        "bias": simulated_s / real_s - 1,
        "median_error": float(np.median(errors)),
        "p95_error": float(np.percentile(errors, 95)),
        "steps_left_out": left_out,
    }
