"""A run's files, written as it runs: rows and events leave memory at once."""

import csv
import json
import math
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from kfcore.errors import UsageError
from kfcore.events import to_plain

__all__ = ["RunFiles"]

Row = dict[str, Any]
_GROUP = 10_000  # rows that a Parquet file takes at once


class RunFiles:
    """``rows.csv``, ``events.jsonl``, ``summary.json``, and ``rows.parquet`` on request.

    What was written before a run was killed stays: whole lines, in order.

    Args:
        folder: Made if missing; files of these names are replaced.
        parquet: Also write ``rows.parquet``.

    Raises:
        UsageError: pyarrow is asked for and missing.
    """

    def __init__(self, folder: str | Path, *, parquet: bool = False) -> None:
        self._folder = Path(folder)
        self._pyarrow = _pyarrow() if parquet else None
        self._folder.mkdir(parents=True, exist_ok=True)
        self._events: TextIO = (self._folder / "events.jsonl").open("w", encoding="utf-8")
        self._rows: TextIO = (self._folder / "rows.csv").open("w", newline="", encoding="utf-8")
        self._writer: Any = None
        self._group: list[Row] = []
        self._parquet: Any = None

    def __enter__(self) -> "RunFiles":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._write_group()
        if self._parquet is not None:
            self._parquet.close()
        self._events.close()
        self._rows.close()

    def event(self, event: Row) -> None:
        """Writes an event."""
        self._events.write(json.dumps(to_plain(event), allow_nan=False) + "\n")

    def row(self, row: Row) -> None:
        """Writes a step's row."""
        if self._writer is None:
            self._writer = csv.DictWriter(self._rows, fieldnames=list(row))
            self._writer.writeheader()
        self._writer.writerow({name: _cell(value) for name, value in row.items()})
        if self._pyarrow is not None:
            self._group.append(row)
            if len(self._group) >= _GROUP:
                self._write_group()

    def summary(self, summary: Row) -> None:
        """Writes the figures."""
        text = json.dumps(to_plain(summary), indent=2, allow_nan=False)
        (self._folder / "summary.json").write_text(text + "\n", "utf-8")

    def _write_group(self) -> None:
        if self._pyarrow is None or not self._group:
            return
        table = self._pyarrow.Table.from_pylist(self._group)
        if self._parquet is None:
            self._parquet = self._pyarrow.parquet.ParquetWriter(
                self._folder / "rows.parquet", table.schema
            )
        self._parquet.write_table(table)
        self._group = []


def _pyarrow() -> Any:
    try:
        import pyarrow as pa  # noqa: PLC0415 - optional
        import pyarrow.parquet  # noqa: PLC0415
    except ImportError as error:
        raise UsageError("Parquet needs the package pyarrow: pip install pyarrow") from error
    return pa


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return "" if math.isnan(value) else repr(value)
    return value
