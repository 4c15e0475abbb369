"""``kf fidelity``: hold the simulator against published measurements."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

app = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Hold the simulator against published measurements.",
)


@app.command()
def fidelity(
    case: Annotated[
        list[str] | None, typer.Argument(help="Cases of the ladder; none: all.")
    ] = None,
    write: Annotated[
        Path | None, typer.Option(help="Write the whole report (Markdown) to this file.")
    ] = None,
) -> None:
    """Fit each case's constants on a few of its rows and judge it on the others."""
    from kfsim.fidelity import report, run_ladder  # noqa: PLC0415 - as kf sim

    cases = run_ladder(
        case or (), lambda done, total: typer.echo(f"case {done + 1} of {total}", err=True)
    )
    shown = Table("case", "predicted rows", "median error", "95th percentile", "order")
    for one in cases:
        right, total = one.order()
        shown.add_row(
            one.name,
            str(len(one.fit.errors(fitted=False))),
            f"{one.median():.1%}",
            f"{one.percentile_95():.1%}",
            f"{right} of {total}" if total else "-",
        )
    Console().print(shown)
    if write is not None:
        write.write_text(report(cases), encoding="utf-8")
        typer.echo(f"the report is in {write}")
