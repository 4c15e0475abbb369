"""What ``kf experiment`` shows: tables on stdout, a progress bar on stderr."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments._shared.compare import Difference, Run
    from experiments._shared.runner import Progress

__all__ = [
    "difference_row",
    "progress_bar",
    "report",
    "show_differences",
    "show_published",
    "summary",
]

Row = dict[str, Any]


def summary(folder: Path, manifest: Row, figures: list[Path], table: list[Row]) -> Row:
    """What a run or a plot left, as one JSON object."""
    return {
        "experiment": folder.name,
        "folder": str(folder),
        "rows": manifest.get("rows"),
        "duration_s": manifest.get("duration_s"),
        "figures": [str(path) for path in figures],
        "table": table,
        "left_out": manifest.get("parameters", {}).get("left_out", []),
    }


def report(experiment: Any, found: Row, *, was_complete: bool) -> None:
    """Print an experiment's table, and where its files are.

    Args:
        experiment: whose.
        found: its `summary`.
        was_complete: whether nothing had to be measured.
    """
    console = _console()
    console.print(f"\n[bold]{experiment.name}[/bold]  {experiment.question}")
    if found["table"]:
        console.print(_grid(found["table"]))
    if found["rows"] is not None:
        state = "kept from before" if was_complete else f"{found['duration_s']:.1f} s"
        console.print(f"{found['rows']} rows in {found['folder']}/rows.csv ({state})")
    for reason in found["left_out"]:
        console.print(f"left out: {reason}")
    for path in found["figures"]:
        console.print(path)


def _console(piped_width: int = 120) -> Any:
    from rich.console import Console  # noqa: PLC0415 - not needed for --json

    # a file or a pipe has no width of its own to fit into
    width = None if sys.stdout.isatty() else piped_width
    return Console(soft_wrap=True, highlight=False, width=width)


def _grid(rows: Sequence[Row]) -> Any:
    from rich.table import Table  # noqa: PLC0415 - not needed for --json

    from experiments._shared.runner import text  # noqa: PLC0415 - after the path is set

    grid = Table(box=None, pad_edge=False)
    for column in rows[0]:
        grid.add_column(column, no_wrap=True)
    for row in rows:
        grid.add_row(*(text(row.get(column)) for column in rows[0]))
    return grid


def difference_row(found: "Difference") -> Row:
    """One compared number as a flat row."""
    a, b = found.a, found.b
    return {
        "where": found.where,
        "column": found.column,
        "A": None if a is None else a.median,
        "A low": None if a is None else a.low,
        "A high": None if a is None else a.high,
        "B": None if b is None else b.median,
        "B low": None if b is None else b.low,
        "B high": None if b is None else b.high,
        "change (%)": found.change_percent,
        "verdict": found.verdict,
    }


def show_differences(a: "Run", b: "Run", found: Sequence["Difference"], *, every: bool) -> None:
    """Print what differs between two runs, and how many numbers do not.

    Args:
        a: the base.
        b: the other.
        found: all numbers compared.
        every: whether to print those that are the same too.
    """
    console = _console()
    console.print(f"\n[bold]{a.experiment}[/bold]  A: {a.folder}  B: {b.folder}")
    shown = [difference_row(d) for d in found if every or d.verdict != "same"]
    if shown:
        console.print(_grid(shown))
    same = sum(d.verdict == "same" for d in found)
    console.print(
        f"{same} of {len(found)} numbers are the same within their spread, "
        f"{len(found) - same} are not"
    )


def show_published(rows: Sequence[Row]) -> None:
    """Print numbers that others published beside ours; nothing when there are none.

    Args:
        rows: from `experiments._shared.published.collect`.
    """
    if rows:
        shown = [{k: v for k, v in row.items() if k != "why"} for row in rows]
        _console(240).print(_grid(shown))


@contextmanager
def progress_bar(name: str) -> Iterator["Progress"]:
    """A progress bar on stderr, so that stdout holds results only."""
    from rich.console import Console  # noqa: PLC0415 - only where a bar is shown
    from rich.progress import Progress as Bar  # noqa: PLC0415 - only where a bar is shown

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None)

        def show(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=f"{name}: {what}")

        yield show
