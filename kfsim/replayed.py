"""Measured times by step and rank, to be replayed as compute times."""

import csv
import functools
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kfcore.errors import UsageError

__all__ = ["read_times"]

Times = NDArray[np.float64]


def read_times(file: str, scenario_path: str, meaning: str) -> Times:
    """Reads a table of times.

    The file is CSV with a header: first a column that numbers the steps, then one a rank; a row
    a step. Cells are times of one unit, e.g. those of mini-batches that a cluster logged.

    Args:
        file: Looked for as it is named, then beside the scenario.
        scenario_path: Of the scenario.
        meaning: ``relative``: factors, the median of all cells is 1; ``seconds``: as they are.

    Returns:
        [steps, ranks] float64.

    Raises:
        UsageError: the file cannot be read, or a line breaks a rule; the text names the line.
    """
    beside = Path(scenario_path).parent / file
    path = beside if not Path(file).exists() and beside.exists() else Path(file)
    table = _read(str(path))
    return table / np.median(table) if meaning == "relative" else table


@functools.lru_cache(maxsize=8)
def _read(path: str) -> Times:
    try:
        lines = list(csv.reader(Path(path).read_text(encoding="utf-8").splitlines()))
    except (OSError, ValueError) as error:
        raise UsageError(f"times: {path!r} cannot be read: {error}") from error
    if len(lines) < 2 or len(lines[0]) < 2:
        raise UsageError(f"times: {path} must have a header, a column a rank and a row a step")
    rows = []
    for number, line in enumerate(lines[1:], 2):
        try:
            row = [float(cell) for cell in line[1:]]
        except ValueError:
            row = []
        if len(row) != len(lines[0]) - 1 or not all(0 < cell < math.inf for cell in row):
            raise UsageError(
                f"times: {path}, line {number}: must hold {len(lines[0]) - 1} times > 0"
            )
        rows.append(row)
    return np.array(rows)
