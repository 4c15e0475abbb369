"""A fleet's files, written as it runs."""

import csv
import json
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

__all__ = ["FleetFiles"]

Row = dict[str, Any]


class FleetFiles:
    """``jobs.csv``, ``events.jsonl``, ``summary.json``; rows leave memory at once.

    Args:
        folder: Made if missing; files of these names are replaced.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._events: TextIO = (self._folder / "events.jsonl").open("w", encoding="utf-8")
        self._jobs: TextIO = (self._folder / "jobs.csv").open("w", newline="", encoding="utf-8")
        self._rows: Any = None

    def __enter__(self) -> "FleetFiles":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._events.close()
        self._jobs.close()

    def event(self, event: Row) -> None:
        """Writes an event."""
        self._events.write(json.dumps(event) + "\n")

    def row(self, row: Row) -> None:
        """Writes a job's row."""
        if self._rows is None:
            self._rows = csv.DictWriter(self._jobs, list(row), lineterminator="\n")
            self._rows.writeheader()
        self._rows.writerow(row)

    def summary(self, summary: Row) -> None:
        """Writes the figures."""
        text = json.dumps(summary, indent=2)
        (self._folder / "summary.json").write_text(text + "\n", encoding="utf-8")
