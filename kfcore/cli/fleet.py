"""``kf fleet``: several jobs on one simulated cluster."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

app = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Simulate several jobs on one cluster.",
)


@app.command()
def fleet(
    file: Annotated[Path, typer.Argument(help="TOML file; docs/fleet.md lists the keys.")],
    scheduler: Annotated[
        str, typer.Option(help="Instead of the file's: fifo, fair, goodput.")
    ] = "",
    out: Annotated[
        Path | None, typer.Option(help="Write jobs.csv, events.jsonl, summary.json here.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON on stdout, and only that.")
    ] = False,
) -> None:
    """Run jobs on hosts that come, go, fail and cost money; exit 1 if a job could not end."""
    from kfsim.fleet import load_fleet, run_fleet  # noqa: PLC0415 - as kf sim
    from kfsim.fleet.schedulers import find_scheduler  # noqa: PLC0415

    config = load_fleet(file)
    chosen = find_scheduler(scheduler) if scheduler else None
    if out is None:
        result = run_fleet(config, scheduler=chosen)
    else:
        from kfsim.fleet.files import FleetFiles  # noqa: PLC0415

        with FleetFiles(out) as files:
            result = run_fleet(config, scheduler=chosen, on_event=files.event, on_row=files.row)
            files.summary(result.summary)
    if as_json:
        typer.echo(json.dumps(result.summary))
    else:
        _print(result.summary)
    for name, reason in result.starved.items():
        typer.echo(f"kf: job {name} did not end: {reason}", err=True)
    if result.starved:
        raise typer.Exit(1)


def _print(summary: dict[str, Any]) -> None:
    table = Table("what", "value", title=str(summary["fleet"]))
    for name, value in summary.items():
        if name != "fleet" and value is not None:
            table.add_row(name, f"{value:,.6g}" if isinstance(value, float) else str(value))
    Console().print(table)
