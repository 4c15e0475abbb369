"""``kf sim``: simulate a cluster from a scenario file."""

import dataclasses
import json
import math
import tomllib
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
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

_MOST_EVENTS = 500  # kept for the screen: a long run has more than anybody reads
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
    *,
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
    replications: Annotated[
        int | None,
        typer.Option(min=1, help="Instead of run.repeats: runs with draws of their own."),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="OTHER.toml",
            help="Also run this scenario on the same random numbers: paired differences.",
        ),
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(
            metavar="LOG",
            help="Simulate a recorded real run (events.jsonl) again, and compare step by step.",
        ),
    ] = None,
    parquet: Annotated[
        bool, typer.Option("--parquet", help="Also write rows.parquet to --out.")
    ] = False,
    trace: Annotated[
        Path | None, typer.Option(help="Write the steps to this file, for ui.perfetto.dev.")
    ] = None,
    record: Annotated[
        bool,
        typer.Option("--record", help="Also log what policies saw, for `kf policy replay`."),
    ] = False,
    explain_tier: Annotated[
        bool,
        typer.Option(
            "--explain-tier", help="Also print how link sharing was computed, and why."
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON on stdout, and only that.")
    ] = False,
) -> None:
    """Run a scenario on a simulated cluster and print what came of it."""
    from kfsim import load  # noqa: PLC0415 - the command line is the door to kfsim

    if (record or parquet) and out is None:
        raise UsageError("--record and --parquet need --out, the folder for their files")
    values = dict(_assignment(text) for text in set_ or ())
    if replications is not None:
        values["run.repeats"] = replications
    checked = load(scenario).with_values(values)
    if faults is not None:
        checked = dataclasses.replace(checked, faults=read_faults(faults))
    if replay is not None:
        from kfcore.cli.sim_replay import compare_with_run  # noqa: PLC0415 - seldom asked for

        compare_with_run(checked, replay, out=out, trace=trace, as_json=as_json)
        return
    other = None
    if against is not None:  # the same number of repeats and the same seed: the same draws
        same = {"run.repeats": checked.run.repeats, "run.seed": checked.run.seed}
        other = load(against).with_values(same)
    said: deque[dict[str, Any]] = deque(maxlen=_MOST_EVENTS)
    with ExitStack() as files:
        sinks = _sinks(files, out, parquet=parquet)
        result = _simulate(
            checked,
            [said.append, *(sink.event for sink in sinks)],
            [sink.row for sink in sinks],
            policies=policy or (),
            record=record,
            trace=trace,
        )
        for sink in sinks:
            sink.summary(result.summary)
    compared = None if other is None else _compare(result, other, policy or ())
    if as_json:
        told = {"tier_explanation": result.explanation} if explain_tier else {}
        more = ({"against": compared} if compared else {}) | told
        typer.echo(json.dumps(to_plain(result.summary | more), allow_nan=False))
        return
    _print(result.summary, tuple(said))
    if explain_tier:
        _print_tiers(result.explanation)
    if compared is not None:
        _print_differences(str(other.run.name or against) if other else "", compared)
    if out is not None:
        typer.echo(f"rows.csv, events.jsonl and summary.json are in {out}")


def _sinks(files: ExitStack, out: Path | None, *, parquet: bool) -> list[Any]:
    """Where rows and events go as they come."""
    from kfsim.files import RunFiles  # noqa: PLC0415 - as above

    return [] if out is None else [files.enter_context(RunFiles(out, parquet=parquet))]


def _simulate(
    scenario: Any,
    on_event: list[Callable[[dict[str, Any]], Any]],
    on_row: list[Callable[[dict[str, Any]], Any]],
    **options: Any,
) -> Any:
    """A run with a progress bar; nothing of its history is kept but what is asked for."""
    from kfsim import simulate  # noqa: PLC0415 - as above

    def spread(takers: list[Callable[[dict[str, Any]], Any]]) -> Callable[[Any], None]:
        def hand_on(item: dict[str, Any]) -> None:
            for take in takers:
                take(item)

        return hand_on

    with Progress(
        "[progress.description]{task.description}",
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        steps = bar.add_task("steps", total=scenario.run.steps * scenario.run.repeats)
        return simulate(
            scenario,
            progress=lambda done, total: bar.update(steps, completed=done, total=total),
            on_event=spread(on_event),
            on_row=spread(on_row),
            **options,
        )


def _compare(result: Any, other: Any, policies: Any) -> dict[str, Any]:
    """Paired differences of the figures: this run's minus the other's."""
    from kfsim.result import differences  # noqa: PLC0415 - as above

    theirs = _simulate(other, [], [], policies=policies)
    found = differences(result.replications, theirs.replications)
    return {name: dataclasses.asdict(item) for name, item in found.items()}


def _assignment(text: str) -> tuple[str, Any]:
    """``key=value`` with the value as TOML, or as a plain text if it is not."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"--set must read KEY=VALUE, got {text!r}")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value


def _print_tiers(explanation: tuple[dict[str, Any], ...]) -> None:
    console = Console()
    for repeat in explanation:
        title = (
            f"repeat {repeat['repeat']}: {repeat['recalled']} of {repeat['steps']} steps took "
            "the answer of an earlier one; the others asked for"
        )
        table = Table(title=title)
        for name in ("collective", "ranks", "bytes", "tier and reason"):
            table.add_column(name)
        table.add_column("error against exact sharing")
        table.add_column("closed form / replayed / known starts")
        for one in repeat["collectives"]:
            bound = one["error_bound"]
            table.add_row(
                one["collective"] + (", disturbed" if one["disturbed"] else ""),
                str(one["ranks"]),
                f"{one['buffer_bytes']:,}",
                f"{one['tier']}: {one['reason']}",
                "not known" if bound is None else "none" if bound == 0 else f"mean {bound:.1%}",
                f"{one['closed_form']} / {one['replayed']} / {one['recalled']}",
            )
        console.print(table)


def _print(summary: dict[str, Any], events: tuple[dict[str, Any], ...]) -> None:
    console = Console()
    table = Table(title=str(summary["scenario"]))
    table.add_column("what", no_wrap=True)  # names are for copying: never cut one
    table.add_column("value")
    table.add_column("unit")
    for name, value in summary.items():
        plain = to_plain(value)
        if name in ("scenario", "intervals") or plain in (None, {}):
            continue
        if isinstance(plain, dict):
            plain = "\n".join(f"{key}: {item}" for key, item in plain.items())
        text = f"{plain:,.6g}" if isinstance(plain, float) else str(plain)
        if name in summary["intervals"]:
            text += f" ± {summary['intervals'][name]['half_width']:,.2g}"
        table.add_row(name, text, _UNITS.get(name, ""))
    console.print(table)
    if len(events) == _MOST_EVENTS:
        console.print(f"the last {_MOST_EVENTS} events (--out DIR writes all):")
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


def _print_differences(other: str, compared: dict[str, Any]) -> None:
    table = Table(title=f"minus {other}: paired differences, 95 % intervals")
    table.add_column("what", no_wrap=True)
    table.add_column("difference")
    table.add_column("unit")
    for name, found in compared.items():
        if math.isnan(found["mean"]):
            continue
        width = f" ± {found['half_width']:,.2g}" if found["count"] > 1 else ""
        table.add_row(name, f"{found['mean']:+,.6g}{width}", _UNITS.get(name, ""))
    Console().print(table)
