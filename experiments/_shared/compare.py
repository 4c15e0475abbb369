"""Comparing two runs of one experiment: which numbers differ beyond their spread."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments._shared.record import read_rows
from experiments._shared.stats import Interval, median_interval
from kfcore.errors import UsageError

__all__ = ["Difference", "Run", "compare_runs", "find_runs", "read_run"]

REPEAT = "repeat"
EQUAL = 1e-9  # relative; below it two numbers are the same but for the last digits


@dataclass(frozen=True)
class Run:
    """One folder of results.

    Attributes:
        folder: where.
        experiment: its name.
        manifest: where the rows come from.
        rows: what was measured.
    """

    folder: Path
    experiment: str
    manifest: dict[str, Any]
    rows: list[dict[str, Any]]


@dataclass(frozen=True)
class Difference:
    """One number in both runs.

    Attributes:
        where: the key columns but the repeat, as text.
        column: which number.
        a: median and interval in the first run; None: it has no such row.
        b: the same of the second.
        verdict: ``same``, ``differs``, ``only in A``, or ``only in B``.
    """

    where: str
    column: str
    a: Interval | None
    b: Interval | None
    verdict: str

    @property
    def change_percent(self) -> float | None:
        """Of B against A; None where there is no base."""
        if self.a is None or self.b is None or self.a.median == 0:
            return None
        return 100 * (self.b.median / self.a.median - 1)


def read_run(folder: Path) -> Run:
    """Read one folder of results.

    Args:
        folder: holds ``manifest.json`` and ``rows.csv``.

    Returns:
        The run.

    Raises:
        UsageError: a file is missing or malformed.
    """
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        rows = read_rows(folder / "rows.csv")
        return Run(folder, str(manifest["experiment"]), manifest, rows)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{folder} is no folder of results (manifest.json and rows.csv): {error}"
        ) from error


def find_runs(folder: Path) -> dict[str, Run]:
    """The runs in a folder: itself, or those directly in it.

    Args:
        folder: one run's, or one that holds several.

    Returns:
        By name of the experiment.

    Raises:
        UsageError: there is none.
    """
    if (folder / "manifest.json").is_file():
        run = read_run(folder)
        return {run.experiment: run}
    runs = [read_run(path.parent) for path in sorted(folder.glob("*/manifest.json"))]
    if not runs:
        raise UsageError(f"no results in {folder}: expected <experiment>/manifest.json")
    return {run.experiment: run for run in runs}


def compare_runs(a: Run, b: Run) -> list[Difference]:
    """Compare all numbers of two runs of one experiment.

    Two numbers differ when their bootstrap intervals over the repeats have no point in common;
    one that was measured once has an interval of its own width, zero.

    Args:
        a: the base.
        b: the other.

    Returns:
        One entry a group of repeats and column, in the order of A's rows.

    Raises:
        UsageError: the runs are of two experiments, or name no key columns.
    """
    if a.experiment != b.experiment:
        raise UsageError(f"A is {a.experiment}, B is {b.experiment}: not the same experiment")
    key = [name for name in a.manifest.get("key", []) if name != REPEAT]
    if not a.manifest.get("key"):
        raise UsageError(f"{a.folder}/manifest.json names no key columns")
    left, right = _numbers(a.rows, key), _numbers(b.rows, key)
    found = []
    for name in [*left, *(name for name in right if name not in left)]:
        one, two = left.get(name), right.get(name)
        found.append(Difference(name[0], name[1], one, two, _verdict(one, two)))
    return found


def _numbers(
    rows: Sequence[Mapping[str, Any]], key: Sequence[str]
) -> dict[tuple[str, str], Interval]:
    groups: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        where = ", ".join(f"{name}={row.get(name)}" for name in key)
        for column, value in row.items():
            if column not in key and column != REPEAT and isinstance(value, int | float):
                groups.setdefault((where, column), []).append(float(value))
    return {name: median_interval(values) for name, values in groups.items()}


def _verdict(a: Interval | None, b: Interval | None) -> str:
    if a is None or b is None:
        return "only in B" if a is None else "only in A"
    slack = EQUAL * max(abs(a.median), abs(b.median))
    return "same" if a.low <= b.high + slack and b.low <= a.high + slack else "differs"
