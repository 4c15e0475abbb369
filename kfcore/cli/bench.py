"""``kf bench``: measure collectives between real processes, or threads of one process."""

import io
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from kfcore import schedule as schedules
from kfcore.bench import Row, all_reduce_rows, parse_bytes
from kfcore.compare.command import PEERS, Choice, run_against
from kfcore.compare.places import parse_rate_mbit
from kfcore.errors import KfError, UsageError
from kfcore.launch import LaunchSpec, launch
from kfcore.world import inproc_world

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Measure collectives between real processes.",
)

DEFAULT_SIZES = "1K,16K,256K,1M,4M,16M"
TRANSPORTS = ("tcp", "inproc")


@app.callback()
def bench() -> None:
    """Measure collectives between real processes."""


@app.command("all-reduce")
def all_reduce(  # noqa: PLR0917 - typer calls it by name
    world_size: Annotated[
        int, typer.Option("-n", "--world-size", min=1, help="Number of ranks.")
    ] = 2,
    sizes: Annotated[
        str, typer.Option(help="Buffer sizes in bytes, with K, M, G, separated by commas.")
    ] = DEFAULT_SIZES,
    transport: Annotated[
        str, typer.Option(help="tcp: one process a rank; inproc: one thread a rank.")
    ] = "tcp",
    schedule: Annotated[str, typer.Option(help="Spec of the schedule.")] = "auto",
    iterations: Annotated[
        int | None, typer.Option(min=1, help="Timed operations a size (default: by size).")
    ] = None,
    timeout_s: Annotated[float, typer.Option(help="Deadline of one operation, seconds.")] = 60,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON on stdout, and only that.")
    ] = False,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help="Measure ours and these, interleaved on this host: " + ", ".join(PEERS) + ".",
        ),
    ] = None,
    rounds: Annotated[
        int, typer.Option(min=1, help="With --against: blocks a system and size.")
    ] = 5,
    resnet50: Annotated[
        bool, typer.Option(help="With --against: ResNet-50's 161 gradients too, as one step.")
    ] = True,
    floor: Annotated[
        bool, typer.Option(help="With --against: the machine's floors for two processes too.")
    ] = True,
    python: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=PATH", help="Interpreter of a system. Repeatable."),
    ] = None,
    hosts: Annotated[
        int,
        typer.Option(
            min=1,
            help="With --against: run on so many hosts made of network namespaces (needs root "
            "and a checkout); the ranks are shared out equally.",
        ),
    ] = 1,
    rate: Annotated[
        str | None, typer.Option(help="With --hosts: rate of each host's link, e.g. 1gbit.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="With --against: draw a figure into this file.")
    ] = None,
) -> None:
    """Time in-place float32 sum all-reduces: verify, warm up, then min, median and 95 %.

    Times are of the slowest rank. algbw is bytes over the median time; busbw is algbw times
    2 (n - 1) / n, what each rank must at least send.
    """
    if transport not in TRANSPORTS:
        raise UsageError(f"transport must be one of {', '.join(TRANSPORTS)}, got {transport!r}")
    schedules.build(schedule, world_size)  # a wrong spec is one error and not one a rank
    wanted = [parse_bytes(size) for size in sizes.split(",")]
    if against is None and (hosts > 1 or rate is not None):
        raise UsageError("--hosts and --rate belong to --against")
    if against is not None:
        choice = Choice(
            world_size,
            rounds,
            resnet50,
            floor and world_size == 2 and hosts == 1,
            plot,
            as_json,
            hosts,
            None if rate is None else parse_rate_mbit(rate),
        )
        run_against(against.split(","), wanted, python or [], choice)
        return
    if transport == "inproc":
        rows = inproc_world(
            world_size,
            lambda session: all_reduce_rows(session, wanted, iterations=iterations),
            schedule=schedule,
            timeout_s=timeout_s,
        )[0]
    else:
        rows = _over_tcp(world_size, wanted, schedule, iterations, timeout_s)
    _show(rows, world_size, transport, schedule, as_json)


def _over_tcp(
    world_size: int,
    sizes: list[int],
    schedule: str,
    iterations: int | None,
    timeout_s: float,
) -> list[Row]:
    worker = (sys.executable, "-m", "kfcore.bench", schedule)
    arguments = ("-" if iterations is None else str(iterations), *map(str, sizes))
    out = io.BytesIO()
    result = launch(
        LaunchSpec((*worker, *arguments), world_size, timeout_s=timeout_s, prefix=False),
        stdout=out,
    )
    if result.exit_code != 0:
        cause = result.first_failure
        raise KfError("the benchmark failed" + (f": {cause.verdict}" if cause else ""))
    return [Row(**row) for row in json.loads(out.getvalue())]


def _show(
    rows: list[Row], world_size: int, transport: str, schedule: str, as_json: bool
) -> None:
    if as_json:
        facts = {
            "collective": "all_reduce",
            "dtype": "float32",
            "world_size": world_size,
            "transport": transport,
            "schedule": schedule,
        }
        typer.echo(json.dumps([{**facts, **asdict(row)} for row in rows]))
        return
    table = Table(
        title=f"all_reduce of float32 sums, {world_size} ranks, {transport}, {schedule}"
    )
    for name in (
        "bytes",
        "iterations",
        "min us",
        "p50 us",
        "p95 us",
        "algbw GB/s",
        "busbw GB/s",
    ):
        table.add_column(name, justify="right")
    for row in rows:
        times = [f"{1e6 * t:.1f}" for t in (row.min_s, row.p50_s, row.p95_s)]
        rates = [f"{rate:.3f}" for rate in (row.algbw_gb_per_s, row.busbw_gb_per_s)]
        table.add_row(str(row.buffer_bytes), str(row.iterations), *times, *rates)
    Console().print(table)
