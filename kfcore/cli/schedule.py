"""``kf schedule``: list, show, prove and price communication schedules."""

import json
import math
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from kfcore import explaining
from kfcore import schedule as schedules
from kfcore.errors import UsageError
from kfcore.schedule import Cost, Schedule, Transfer

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="List, show, validate and price communication schedules.",
)

Source = Annotated[
    str,
    typer.Argument(
        metavar="SPEC|FILE.json",
        help='A spec such as ring or "tree(fanout=4)", or a file that `show --json` wrote.',
    ),
]
# None: what a file says, else 4 ranks, all_reduce, root 0
WorldSize = Annotated[
    int | None, typer.Option("-n", "--world-size", help="Number of ranks [default: 4].")
]
Collective = Annotated[
    str | None,
    typer.Option("-c", "--collective", help="What the schedule does [default: all_reduce]."),
]
Root = Annotated[
    int | None, typer.Option(help="Root rank of a rooted collective [default: 0].")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and only that.")]

DEFAULT_RANKS = 4
ARROWS = {"reduce": "=>", "replace": "->"}
NEED_ARGUMENTS = {
    "auto",
    "custom",
    "forest",
    "from_parents",
    "hierarchical",
}  # no price of their own
EXIT_INVALID = 1


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the generators and the collectives that each one offers."""
    offers = {name: schedules.collectives(name) for name in schedules.names()}
    if as_json:
        typer.echo(json.dumps(offers))
        return
    table = _table("schedule", "collectives")
    for name, collectives in offers.items():
        table.add_row(name, " ".join(collectives))
    Console().print(table)


@app.command()
def show(
    source: Source,
    world_size: WorldSize = None,
    collective: Collective = None,
    root: Root = None,
    max_rounds: Annotated[
        int, typer.Option(help="Rounds to print; the rest is counted.", min=0)
    ] = 64,
    explain: Annotated[
        bool, typer.Option("--explain", help="Of auto: what it compares, and for which links.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show who sends which chunk to whom, round by round.

    0=>1:3 means that rank 0 sends chunk 3 to rank 1, which adds it; with -> it replaces.
    """
    if explain:
        explaining.show(
            source, world_size or DEFAULT_RANKS, collective or "all_reduce", as_json
        )
        return
    schedule = load(source, world_size, collective, root)
    if as_json:
        typer.echo(schedules.to_json(schedule), nl=False)
        return
    console = Console()
    typer.echo(summary(schedule))
    table = _table("channel", "round", "transfers")
    rows = [
        (str(c), str(r), " ".join(map(transfer_text, moves)))
        for c, rounds in enumerate(schedule.channels)
        for r, moves in enumerate(rounds)
    ]
    for row in rows[:max_rounds]:
        table.add_row(*row)
    console.print(table)
    if len(rows) > max_rounds:
        console.print(f"{len(rows) - max_rounds} more rounds; see --max-rounds, --json")


@app.command()
def spec(
    source: Source,
    world_size: WorldSize = None,
    collective: Collective = None,
    root: Root = None,
) -> None:
    """Print the text that stands for a schedule wherever one is named.

    For a file of your own this is the schedule written out; policies, scenarios, `kf bench` and
    Session.set_schedule take it like any other spec.
    """
    typer.echo(schedules.spec_of(load(source, world_size, collective, root)))


@app.command()
def validate(
    source: Source,
    world_size: WorldSize = None,
    collective: Collective = None,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Prove that every rank ends with each contribution exactly once.

    The exit code is 0 when the proof succeeds, 1 when the schedule is wrong, 2 when it cannot
    be read or built.
    """
    schedule = load(source, world_size, collective, root)
    try:
        schedules.validate(schedule)
        fault = None
    except UsageError as error:
        fault = str(error)
    if as_json:
        typer.echo(json.dumps({"name": schedule.name, "valid": fault is None, "fault": fault}))
    elif fault is None:
        typer.echo(f"valid: {summary(schedule)}")
    else:
        typer.echo(f"kf: {fault}", err=True)
    raise typer.Exit(0 if fault is None else EXIT_INVALID)


@app.command()
def cost(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SPEC|FILE.json]...",
            help="Schedules to compare; all that need no arguments when none is given.",
        ),
    ] = None,
    world_size: WorldSize = None,
    collective: Collective = None,
    root: Root = None,
    buffer_bytes: Annotated[
        int, typer.Option("--bytes", help="Size of the whole buffer.", min=0)
    ] = 100_000_000,
    latency_s: Annotated[float, typer.Option(help="Latency of a round, in s.")] = 50e-6,
    bytes_per_s: Annotated[
        float, typer.Option(help="Bandwidth of a rank's port, each way.")
    ] = 1.25e9,
    reduce_bytes_per_s: Annotated[
        float, typer.Option(help="Speed of adding; free when not given.")
    ] = math.inf,
    as_json: AsJson = False,
) -> None:
    """Price schedules on a uniform network, un-segmented (model: docs/algorithms.md)."""
    rows = []
    for source in sources or _all_specs(collective or "all_reduce"):
        schedule = load(source, world_size, collective, root)
        price = schedules.cost(
            schedule,
            buffer_bytes,
            latency_s=latency_s,
            bytes_per_s=bytes_per_s,
            reduce_bytes_per_s=reduce_bytes_per_s,
        )
        rows.append((schedule.name, price))
    if as_json:
        typer.echo(json.dumps([_cost_row(name, price) for name, price in rows]))
        return
    table = _table("schedule", "rounds", "most bytes sent", "time ms", "algbw GB/s")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, price in sorted(rows, key=lambda row: row[1].time_s):
        table.add_row(
            name,
            str(price.rounds),
            f"{max(price.bytes_sent):,}",
            f"{price.time_s * 1e3:.3f}",
            f"{buffer_bytes / price.time_s / 1e9:.3f}" if price.time_s else "-",
        )
    Console().print(table)


def load(
    source: str, world_size: int | None, collective: str | None, root: int | None
) -> Schedule:
    """Builds a spec, or reads a schedule from a ``.json`` file.

    Args:
        source: A spec, or a path that ends in ``.json``.
        world_size: Number of ranks; None: 4, or the file's.
        collective: Collective; None: all_reduce, or the file's.
        root: Root rank; None: 0, or the file's.

    Returns:
        The schedule, not yet proved.

    Raises:
        UsageError: The spec cannot be built, the file cannot be read, or it is made for
            something else than was asked for.
    """
    if not source.endswith(".json"):
        return schedules.build(
            source,
            DEFAULT_RANKS if world_size is None else world_size,
            collective or "all_reduce",
            root or 0,
        )
    try:
        schedule = schedules.from_json(Path(source).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {source}: {error}") from error
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from error
    for what, has, wanted in (
        ("world_size", schedule.world_size, world_size),
        ("collective", schedule.collective, collective),
        ("root", schedule.root, root),
    ):
        if wanted is not None and wanted != has:
            raise UsageError(f"{source} is a schedule for {what} {has}, got {wanted}")
    return schedule


def summary(schedule: Schedule) -> str:
    """One line: what the schedule is and how large."""
    channels = schedule.channels
    rounds = max((len(channel) for channel in channels), default=0)
    transfers = sum(len(moves) for channel in channels for moves in channel)
    return (
        f"{schedule.name}: {schedule.collective} over {schedule.world_size} ranks, "
        f"{schedule.chunk_count} chunks, {len(channels)} channels, {rounds} rounds, "
        f"{transfers} transfers"
    )


def transfer_text(move: Transfer) -> str:
    """``0=>1:3``, or ``0=>1:3-5`` for a run of chunks; ``->`` replaces, ``=>`` adds."""
    last = move.chunk_begin + move.chunk_count - 1
    chunks = str(last) if move.chunk_count == 1 else f"{move.chunk_begin}-{last}"
    return f"{move.src}{ARROWS[move.combine]}{move.dst}:{chunks}"


def _all_specs(collective: str) -> list[str]:
    found = [
        name
        for name in schedules.names()
        if name not in NEED_ARGUMENTS and collective in schedules.collectives(name)
    ]
    if not found:
        schedules.build("auto", 1, collective)  # says which collectives exist
    return found


def _cost_row(name: str, price: Cost) -> dict[str, object]:
    return {
        "schedule": name,
        "rounds": price.rounds,
        "bytes_sent": price.bytes_sent,
        "time_s": price.time_s,
    }


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
