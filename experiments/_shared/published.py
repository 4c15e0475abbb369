"""Numbers that others published, each beside ours: `published.csv` of a folder of results."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments._shared.record import read_rows

__all__ = ["BAND_PERCENT", "COLUMNS", "collect", "compared", "write_published"]

# Farther from a published number than this, and the row must say why.
BAND_PERCENT = 10.0
COLUMNS = (
    "source",
    "what",
    "unit",
    "published",
    "ours",
    "difference_percent",
    "use",
    "why",
)
USES = ("compared", "fitted", "other set-up", "input")

Row = dict[str, Any]


def compared(
    source: str,
    what: str,
    unit: str,
    published: float,
    ours: float,
    *,
    use: str = "compared",
    why: str = "",
) -> Row:
    """One published number and ours.

    Args:
        source: where it is published, in a few words.
        what: it measures.
        unit: of both numbers; ``%`` when both are per cent: then the difference is in points.
        published: theirs.
        ours: median over our repeats.
        use: ``compared``; ``fitted``: ours was made equal; ``other set-up``; ``input``: ours
            takes it as given.
        why: ours is off, in a sentence; needed beyond `BAND_PERCENT` where it is compared.

    Returns:
        A row with `COLUMNS`.

    Raises:
        ValueError: another use, or no reason for a difference beyond the band.

    Example:
        >>> compared("Figure 9", "KungFu", "images/s", 40.0, 42.0)["difference_percent"]
        5.0
    """
    difference = ours - published if unit == "%" else 100 * (ours / published - 1)
    if use not in USES:
        raise ValueError(f"use must be one of {', '.join(USES)}, got {use!r}")
    if use == "compared" and abs(difference) > BAND_PERCENT and not why:
        beyond = f"{difference:+.1f} is beyond {BAND_PERCENT:g} and no reason is given"
        raise ValueError(f"{source}, {what}: {beyond}")
    values = (source, what, unit, published, ours, round(difference, 6), use, why)
    return dict(zip(COLUMNS, values, strict=True))


def write_published(path: Path, rows: Sequence[Row]) -> None:
    """Write rows as CSV.

    Args:
        path: ``published.csv`` in a folder of results.
        rows: from `compared`.

    Raises:
        OSError: the file cannot be written.
    """
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def collect(out: Path) -> list[Row]:
    """All published numbers of a folder of results, with a column ``experiment`` in front.

    Args:
        out: folder of all results.

    Returns:
        Rows in the order of the experiments; empty where none has any.
    """
    return [
        {"experiment": path.parent.name.partition("_")[0], **row}
        for path in sorted(out.glob("*/published.csv"))
        for row in read_rows(path)
    ]
