"""Fits constants of a scenario to measured rows, and predicts the rows it was not fitted on.

A table is a CSV file. Its columns: ``samples_per_s`` or ``step_s`` (measured), ``use``
(``fit`` or ``predict``), ``group`` (rows that share their constants; each group is fitted by
itself), ``step`` (the row was measured in that step of the scenario's own run, from 1; empty:
it is a mean of steps), and keys of the scenario such as ``cluster.hosts``; an empty cell
leaves the key alone. Lines that begin with ``#`` are notes.
"""

import csv
import functools
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kfcore.errors import UsageError
from kfsim.scenario import Scenario
from kfsim.simulation import simulate

__all__ = ["Fit", "Outcome", "Point", "calibrate", "read_table"]

# What was measured, and what it is called in a run's rows and summary.
_COLUMN = {"samples_per_s": "throughput_samples_per_s", "step_s": "step_s"}
_MEASURED = tuple(_COLUMN)
_OTHER = ("group", "use", "step", *_MEASURED)
_STEPS = {"run.steps": 8, "run.warmup_steps": 1}
_SWEEPS = 3  # over the keys, when there are several
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Point:
    """One measured row.

    Attributes:
        group: Rows of a group share their constants.
        fitted: Used for fitting; else only predicted.
        unit: ``samples_per_s`` (all workers) or ``step_s``.
        measured: In that unit, > 0.
        values: Scenario keys of the row.
        line: In the file.
        step: Of the scenario's run that was measured, >= 1; None: the mean of a few.
    """

    group: str
    fitted: bool
    unit: str
    measured: float
    values: Mapping[str, Any]
    line: int
    step: int | None = None


@dataclass(frozen=True)
class Outcome:
    """A row and what the model says of it."""

    point: Point
    predicted: float

    @property
    def error(self) -> float:
        """Predicted over measured, minus one."""
        return self.predicted / self.point.measured - 1.0


@dataclass(frozen=True)
class Fit:
    """What came of a calibration.

    Attributes:
        constants: By group, then key.
        outcomes: Of all rows, in their order.
    """

    constants: Mapping[str, Mapping[str, float]]
    outcomes: tuple[Outcome, ...]

    def errors(self, *, fitted: bool) -> list[float]:
        """Absolute errors of the rows that were, or were not, fitted.

        Args:
            fitted: Which.

        Returns:
            Fractions, in the rows' order.
        """
        return [abs(one.error) for one in self.outcomes if one.point.fitted == fitted]


def read_table(path: str | Path) -> list[Point]:
    """Reads a table of measured rows.

    Args:
        path: CSV file.

    Returns:
        Its rows.

    Raises:
        UsageError: the file cannot be read or a cell is against its rule; it names the line.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error
    lines = [(n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    lines = [(n, line) for n, line in lines if not line.startswith("#")]
    reader = csv.DictReader(line for _, line in lines)
    points = [
        _point(row, f"{path}, line {number}", number)
        for row, (number, _) in zip(reader, lines[1:], strict=False)
    ]
    if not any(point.fitted for point in points):
        raise UsageError(f"{path}: no row says use = fit")
    return points


def _point(row: Mapping[str | None, Any], where: str, line: int) -> Point:
    if None in row or any(value is None for value in row.values()):
        raise UsageError(f"{where}: must have as many cells as the header")
    units = [unit for unit in _MEASURED if row.get(unit)]
    if len(units) != 1:
        raise UsageError(f"{where}: give one of {' or '.join(_MEASURED)}")
    measured = _cell(row[units[0]])
    if not isinstance(measured, int | float) or not 0 < measured < math.inf:
        raise UsageError(f"{where}: {units[0]} must be > 0, got {row[units[0]]!r}")
    use = row.get("use", "predict")
    if use not in ("fit", "predict"):
        raise UsageError(f"{where}: use must be fit or predict, got {use!r}")
    values = {str(key): _cell(text) for key, text in row.items() if key not in _OTHER and text}
    step = _cell(row["step"]) if row.get("step") else None
    if step is not None and (not isinstance(step, int) or step < 1):
        raise UsageError(f"{where}: step must be a whole number >= 1, got {row['step']!r}")
    group = row.get("group", "")
    return Point(group, use == "fit", units[0], float(measured), values, line, step)


def _cell(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def calibrate(
    scenario: Scenario,
    points: Sequence[Point],
    keys: Mapping[str, tuple[float, float]],
) -> Fit:
    """Fits constants group by group: least squares of log(predicted / measured).

    Args:
        scenario: What all rows share.
        points: Measured rows.
        keys: Scenario keys to fit, each with its range (both > 0; searched in logarithms).

    Returns:
        Constants and the outcome of every row.

    Raises:
        UsageError: a range is not a range, or a group has fewer fitted rows than keys.
    """
    for key, (low, high) in keys.items():
        if not 0 < low < high < math.inf:
            raise UsageError(
                f"{key}: range must be LOW:HIGH with 0 < LOW < HIGH, got {low}:{high}"
            )
    constants: dict[str, dict[str, float]] = {}
    for group in dict.fromkeys(point.group for point in points):
        mine = [point for point in points if point.group == group and point.fitted]
        if len(mine) < len(keys):
            raise UsageError(
                f"group {group!r} has {len(mine)} rows to fit {len(keys)} keys on; "
                "each key needs one"
            )
        constants[group] = _fit(scenario, mine, keys)
    outcomes = []
    for group, found in constants.items():
        places = [place for place, point in enumerate(points) if point.group == group]
        mine = [points[place] for place in places]
        for place, predicted in zip(places, _predict(scenario, mine, found), strict=True):
            outcomes.append((place, Outcome(points[place], predicted)))
    return Fit(constants, tuple(one for _, one in sorted(outcomes, key=lambda each: each[0])))


def _predict(
    scenario: Scenario, points: Sequence[Point], constants: Mapping[str, float]
) -> list[float]:
    """What the model says of rows; rows of one run's steps share the run."""
    runs: dict[str, Sequence[Mapping[str, Any]]] = {}
    out = []
    for point in points:
        if point.step is None:
            values = {**_STEPS, **point.values, **constants}
            means = simulate(scenario.with_values(values)).summary
            out.append(float(means[_COLUMN[point.unit]]))
            continue
        key = repr(sorted(point.values.items()))
        if key not in runs:  # all of it, because what came before counts
            runs[key] = simulate(scenario.with_values({**point.values, **constants})).rows
        if point.step > len(runs[key]):
            raise UsageError(
                f"step must be <= {len(runs[key])} (run.steps), got {point.step} in line "
                f"{point.line}"
            )
        out.append(float(runs[key][point.step - 1][_COLUMN[point.unit]]))
    return out


def _fit(
    scenario: Scenario, points: Sequence[Point], keys: Mapping[str, tuple[float, float]]
) -> dict[str, float]:
    at = {key: math.sqrt(low * high) for key, (low, high) in keys.items()}

    def loss(key: str, log_value: float) -> float:
        trial = {**at, key: math.exp(log_value)}
        measured = np.array([point.measured for point in points])
        ratios = np.array(_predict(scenario, points, trial)) / measured
        return float(np.sum(np.log(ratios) ** 2))

    for _ in range(_SWEEPS if len(keys) > 1 else 1):
        for key, (low, high) in keys.items():
            of_key = functools.partial(loss, key)
            at[key] = math.exp(_golden(of_key, math.log(low), math.log(high)))
    return at


def _golden(loss: Callable[[float], float], low: float, high: float) -> float:
    """Where a function of one valley is least; a grid finds the valley first."""
    grid = np.linspace(low, high, 13)
    losses = [loss(float(x)) for x in grid]
    best = int(np.argmin(losses))
    low, high = float(grid[max(0, best - 1)]), float(grid[min(12, best + 1)])
    a, b = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    loss_a, loss_b = loss(a), loss(b)
    for _ in range(14):
        if loss_a <= loss_b:
            high, b, loss_b = b, a, loss_a
            a = high - _GOLDEN * (high - low)
            loss_a = loss(a)
        else:
            low, a, loss_a = a, b, loss_b
            b = low + _GOLDEN * (high - low)
            loss_b = loss(b)
    return a if loss_a <= loss_b else b
