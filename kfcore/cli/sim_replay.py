"""``kf sim SCENARIO --replay LOG``: a real run beside its simulation."""

import csv
import json
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

_SHOWN = 20  # rows on the screen; --out has all


def compare_with_run(
    scenario: Any, log: Path, *, out: Path | None, trace: Path | None, as_json: bool
) -> None:
    """Simulates a recorded run again and prints both, step by step.

    Args:
        scenario: Its cluster and system.
        log: ``events.jsonl`` of the run.
        out: Folder for ``replay.csv`` and ``summary.json``, or None.
        trace: File that Perfetto shows both in, or None.
        as_json: Print the summary as JSON, and only that.

    Raises:
        UsageError: the log cannot be used, or the scenario has another number of workers.
    """
    from kfsim.resimulation import read_run, resimulate, write_overlay  # noqa: PLC0415

    found = resimulate(scenario, read_run(log))
    if trace is not None:
        write_overlay(found.rows, trace)
    if out is not None:
        _write(found, out)
    if as_json:
        typer.echo(json.dumps(found.summary))
        return
    table = Table("step", "compute (s)", "real (s)", "simulated (s)", "error", title=str(log))
    every = max(1, len(found.rows) // _SHOWN)
    for row in found.rows[::every]:
        numbers = (f"{row[key]:.6g}" for key in ("compute_s", "real_s", "simulated_s"))
        table.add_row(str(row["step"]), *numbers, f"{row['error']:+.1%}")
    console = Console()
    console.print(table)
    if every > 1:
        console.print(f"every {every}th of {len(found.rows)} steps (--out DIR writes all)")
    figures = found.summary
    console.print(
        f"{figures['steps']} steps: real {figures['real_s']:.6g} s, simulated "
        f"{figures['simulated_s']:.6g} s ({figures['bias']:+.1%}); a step's error: median "
        f"{figures['median_error']:.1%}, 95th percentile {figures['p95_error']:.1%}",
        highlight=False,
    )
    if figures["steps_left_out"]:
        console.print(
            f"left out: {figures['steps_left_out']} steps after the number of workers changed"
        )


def _write(found: Any, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with (out / "replay.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(found.rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(found.rows)
    text = json.dumps(found.summary, indent=2)
    (out / "summary.json").write_text(text + "\n", encoding="utf-8")
