"""``kf calibrate``: fit a scenario's constants to measured rows, predict the others."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from kfcore.errors import UsageError

app = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Fit a scenario's constants to measured rows; predict the others.",
)


@app.command()
def calibrate(
    scenario: Annotated[Path, typer.Argument(help="TOML file that all rows share.")],
    table: Annotated[
        Path,
        typer.Argument(
            help="CSV: samples_per_s or step_s, use (fit, predict), group, scenario keys."
        ),
    ],
    fit: Annotated[
        list[str],
        typer.Option(metavar="KEY=LOW:HIGH", help="A key to fit and its range. Repeatable."),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print constants and errors as JSON, and only that.")
    ] = False,
) -> None:
    """Fit on the rows that say use = fit; report the others separately."""
    from kfsim.calibrate import calibrate as run  # noqa: PLC0415 - as kf sim
    from kfsim.calibrate import read_table  # noqa: PLC0415
    from kfsim.scenario import load  # noqa: PLC0415

    result = run(load(scenario), read_table(table), dict(_range(text) for text in fit))
    rows = [
        {
            "line": one.point.line,
            "group": one.point.group,
            "use": "fit" if one.point.fitted else "predict",
            "measured": one.point.measured,
            "simulated": one.predicted,
            "error": one.error,
        }
        for one in result.outcomes
    ]
    if as_json:
        typer.echo(json.dumps({"constants": result.constants, "rows": rows}))
        return
    console = Console()
    for group, constants in result.constants.items():
        for key, value in constants.items():
            console.print(f"{group or 'all'}: {key} = {value:.6g}", highlight=False)
    shown = Table("line", "group", "use", "measured", "simulated", "error")
    for row in rows:
        shown.add_row(
            str(row["line"]),
            str(row["group"]),
            str(row["use"]),
            f"{row['measured']:.6g}",
            f"{row['simulated']:.6g}",
            f"{row['error']:+.2%}",
        )
    console.print(shown)
    for fitted, name in ((True, "fitted"), (False, "predicted")):
        errors = sorted(result.errors(fitted=fitted))
        if errors:
            median = errors[len(errors) // 2]
            console.print(
                f"{name}: {len(errors)} rows, "
                f"median error {median:.2%}, largest {errors[-1]:.2%}"
            )


def _range(text: str) -> tuple[str, tuple[float, float]]:
    key, _, span = text.partition("=")
    low, colon, high = span.partition(":")
    try:
        return key.strip(), (float(low), float(high if colon else "nan"))
    except ValueError:
        raise UsageError(f"--fit must read KEY=LOW:HIGH, got {text!r}") from None
