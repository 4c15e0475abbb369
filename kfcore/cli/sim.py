"""``kf sim``: simulate a cluster from a scenario file."""

import dataclasses
import json
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.table import Table

from kfcore.errors import UsageError
from kfcore.events import to_plain
from kfcore.faults import read_faults

app = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Simulate a cluster from a scenario file.",
)

_UNITS = {
    "throughput_samples_per_s": "samples/s, all workers",
    "throughput_std_samples_per_s": "samples/s, standard deviation of repeats",
    "per_worker_samples_per_s": "samples/s, one worker",
    "step_s": "s, a step",
    "compute_s": "s, of that computing",
    "exposed_s": "s, of that waiting for the network",
    "bytes_sent_per_rank_step": "bytes a rank sends in a step",
    "time_s": "s, simulated in all",
}


@app.command()
def sim(
    scenario: Annotated[
        Path, typer.Argument(help="TOML file; docs/simulator.md lists the keys.")
    ],
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy", "-p", metavar="FILE.py:CLASS", help="Add a policy. Repeatable."
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Replace a key, e.g. cluster.hosts=64. Repeatable.",
        ),
    ] = None,
    faults: Annotated[
        Path | None, typer.Option(help="Fault plan (docs/faults.md), instead of [[fault]].")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write rows.csv, events.jsonl, summary.json here.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write the steps to this file, for ui.perfetto.dev.")
    ] = None,
    record: Annotated[
        bool,
        typer.Option("--record", help="Also log what policies saw, for `kf policy replay`."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON on stdout, and only that.")
    ] = False,
) -> None:
    """Run a scenario on a simulated cluster and print what came of it."""
    from kfsim import load, simulate  # noqa: PLC0415 - the command line is the door to kfsim

    if record and out is None:
        raise UsageError("--record needs --out, the folder for events.jsonl")
    checked = load(scenario)
    if set_:
        checked = checked.with_values(dict(_assignment(text) for text in set_))
    if faults is not None:
        checked = dataclasses.replace(checked, faults=read_faults(faults))
    with Progress(
        "[progress.description]{task.description}",
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        steps = bar.add_task("steps", total=checked.run.steps * checked.run.repeats)
        result = simulate(
            checked,
            policies=policy or (),
            record=record,
            trace=trace,
            progress=lambda done, total: bar.update(steps, completed=done, total=total),
        )
    if out is not None:
        result.write(out)
    if as_json:
        typer.echo(json.dumps(to_plain(result.summary), allow_nan=False))
        return
    _print(result.summary, result.events)
    if out is not None:
        typer.echo(f"rows.csv, events.jsonl and summary.json are in {out}")


def _assignment(text: str) -> tuple[str, Any]:
    """``key=value`` with the value as TOML, or as a plain text if it is not."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"--set must read KEY=VALUE, got {text!r}")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value


def _print(summary: dict[str, Any], events: tuple[dict[str, Any], ...]) -> None:
    console = Console()
    table = Table(title=str(summary["scenario"]))
    table.add_column("what", no_wrap=True)  # names are for copying: never cut one
    table.add_column("value")
    table.add_column("unit")
    for name, value in summary.items():
        plain = to_plain(value)
        if name == "scenario" or plain in (None, {}):
            continue
        if isinstance(plain, dict):
            plain = "\n".join(f"{key}: {item}" for key, item in plain.items())
        text = f"{plain:,.6g}" if isinstance(plain, float) else str(plain)
        table.add_row(name, text, _UNITS.get(name, ""))
    console.print(table)
    for event in events:
        if event["kind"] == "note":
            console.print(
                f"step {event['step']}, {event['time_s']:.3f} s: {event['policy']}: "
                f"{event['reason']}",
                highlight=False,
            )
        elif event["kind"] == "view":
            console.print(
                f"step {event['step']}, {event['time_s']:.3f} s: view {event['view_version']}: "
                f"{len(event['new'])} workers ({event['reason']})",
                highlight=False,
            )
        elif event["kind"] == "installed":
            console.print(
                f"step {event['step']}, {event['time_s']:.3f} s: {event['what']} "
                f"{event['old']} -> {event['new']} ({event['policy'] or 'cluster'}: "
                f"{event['reason']})",
                highlight=False,
            )
