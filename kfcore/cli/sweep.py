"""``kf sweep``: a scenario at every combination of some keys."""

import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from kfcore.errors import UsageError

app = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Simulate a scenario at every combination of some keys.",
)


@app.command()
def sweep(
    scenario: Annotated[Path, typer.Argument(help="TOML file.")],
    vary: Annotated[
        list[str],
        typer.Option(metavar="KEY=V1,V2,...", help="Values of a key. Repeatable."),
    ],
    out: Annotated[
        Path, typer.Option(help="Folder; a sweep that was interrupted goes on here.")
    ],
    processes: Annotated[
        int, typer.Option("--processes", "-j", min=1, help="Points at a time.")
    ] = 1,
    replications: Annotated[
        int | None,
        typer.Option(min=1, help="Instead of run.repeats; adds intervals, differences.csv."),
    ] = None,
    on: Annotated[str, typer.Option(help="processes of this machine, or ray.")] = "processes",
    parquet: Annotated[bool, typer.Option(help="Also write rows.parquet.")] = False,
) -> None:
    """Write one row a point to OUT/rows.csv: the same bytes however it was run."""
    from kfsim.scenario import load  # noqa: PLC0415 - as kf sim
    from kfsim.sweep import grid, run_sweep  # noqa: PLC0415

    checked = load(scenario)
    if replications is not None:
        checked = checked.with_values({"run.repeats": replications})
    points = grid(dict(_values(text) for text in vary))
    with Progress(
        "[progress.description]{task.description}",
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task("points", total=len(points))
        path = run_sweep(
            checked,
            points,
            out,
            processes=processes,
            on=on,
            parquet=parquet,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    typer.echo(f"{len(points)} points: {path}")


def _values(text: str) -> tuple[str, list[Any]]:
    key, equals, values = text.partition("=")
    if not equals or not key or not values:
        raise UsageError(f"--vary must read KEY=VALUE,VALUE,..., got {text!r}")
    return key.strip(), [_value(value) for value in values.split(",")]


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
