"""What a tuning policy tried, as a table: one row a trial or choice, units in the names."""

import csv
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kfcore.errors import UsageError

__all__ = ["COLUMNS", "read_trials", "to_csv", "trials"]

COLUMNS = ("step", "policy", "candidate", "score_samples_per_s", "state", "reason")


def trials(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The trials among a job's events.

    Args:
        events: As the event log has them.

    Returns:
        A row for each note with the fact ``state``: ``trial``, ``final`` or ``still warming
        up``. A score that is not known is None.
    """
    rows = []
    for event in events:
        facts = event.get("new")
        if event.get("kind") != "note" or not isinstance(facts, dict) or "state" not in facts:
            continue
        row = {**event, **facts}
        rows.append({name: row.get(name) for name in COLUMNS})
    return rows


def read_trials(path: str | Path) -> list[dict[str, Any]]:
    """The trials of an event log.

    Args:
        path: File of JSON lines.

    Returns:
        As `trials`.

    Raises:
        UsageError: the file or a line of it cannot be read.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    events = []
    for number, line in enumerate(lines, start=1):
        try:
            events.append(dict(json.loads(line)))
        except (TypeError, ValueError) as error:
            raise UsageError(f"{path}:{number}: not an event: {error}") from error
    return trials(events)


def to_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows as CSV with a header.

    Args:
        rows: Of `trials`.

    Returns:
        The text; lines end with a newline.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
