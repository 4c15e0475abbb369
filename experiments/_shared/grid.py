"""Rows over a grid of settings, measured one after the other, resumed where they stopped."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from experiments._shared.record import RowWriter, read_rows
from experiments._shared.stats import Interval, median_interval

__all__ = ["fill_rows", "grid", "intervals", "repeat_seeds"]

Point = Mapping[str, Any]


def grid(**axes: Sequence[Any]) -> list[dict[str, Any]]:
    """Every combination of some settings, the last named one changing fastest.

    Args:
        axes: values by the name of their key column.

    Returns:
        One dictionary a combination.

    Example:
        >>> grid(vms=(1, 2), repeat=range(1))
        [{'vms': 1, 'repeat': 0}, {'vms': 2, 'repeat': 0}]
    """
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def repeat_seeds(seed: int, repeats: int) -> list[int]:
    """A seed for each repeat, below 2**31, independent of the number of repeats."""
    return [
        int(s.generate_state(1)[0]) % 2**31 for s in np.random.SeedSequence(seed).spawn(repeats)
    ]


def fill_rows(
    path: Path,
    points: Sequence[Point],
    measure: Callable[..., Mapping[str, Any]],
    values: Sequence[str],
    progress: Callable[[int, int, str], None],
) -> None:
    """Measure every point that has no row yet.

    Args:
        path: ``rows.csv``.
        points: key columns and their values, all with the same names in the same order.
        measure: called with a point's items by name; returns the other columns.
        values: names of those columns, with units.
        progress: told how far it is.

    Raises:
        ValueError: a point or a row with other columns.
    """
    key = list(points[0])
    with RowWriter(path, [*key, *values], key=key) as rows:
        for done, point in enumerate(points):
            progress(done, len(points), ", ".join(f"{k} {v}" for k, v in point.items()))
            if not rows.has(**point):
                rows.add(**point, **measure(**point))
        progress(len(points), len(points), "done")


def intervals(
    rows: Path | Sequence[Point], x: str, y: str, **where: Any
) -> dict[Any, Interval]:
    """Median and interval of a column over the repeats, at each value of another column.

    Args:
        rows: a file of rows, or rows.
        x: column that groups.
        y: column to summarize; empty cells are left out.
        where: values that other columns must have.

    Returns:
        By value of ``x``, sorted.
    """
    table = read_rows(rows) if isinstance(rows, Path) else rows
    groups: dict[Any, list[float]] = {}
    for row in table:
        if row[y] is not None and all(row[name] == value for name, value in where.items()):
            groups.setdefault(row[x], []).append(float(row[y]))
    return {value: median_interval(groups[value]) for value in sorted(groups)}
