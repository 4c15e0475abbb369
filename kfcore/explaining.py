"""``kf schedule show auto --explain``: what ``auto`` compares, and for which links."""

import json
import re
import sys

import typer
from rich.console import Console
from rich.table import Table

from kfcore.choosing import Choice, Hosts, choices
from kfcore.errors import UsageError

__all__ = ["show"]

# what auto assumes without numbers; native/src/schedule/choose.cc
DEFAULTS = {
    "buffer_bytes": 4.0 * (1 << 20),
    "latency_s": 50e-6,
    "bytes_per_s": 1.25e9,
    "reduce_bytes_per_s": float("inf"),
    "ranks_per_host": 1.0,
}
KEYS = {*DEFAULTS, "host_latency_s", "host_bytes_per_s"}


def show(spec: str, world_size: int, collective: str, as_json: bool) -> None:
    """Print the candidates with their prices, cheapest first, and what they were priced for.

    Args:
        spec: ``auto``, or ``auto(...)`` as `Session.schedule` says it.
        world_size: Number of ranks.
        collective: What the schedule does.
        as_json: Print JSON instead.

    Raises:
        UsageError: Another schedule, or a number that is not usable.
    """
    given = _arguments(spec)
    numbers = DEFAULTS | given
    inside = Hosts(
        int(numbers["ranks_per_host"]),
        numbers.get("host_latency_s", numbers["latency_s"]),
        numbers.get("host_bytes_per_s", numbers["bytes_per_s"]),
    )
    compared = choices(
        int(numbers["buffer_bytes"]),
        world_size,
        latency_s=numbers["latency_s"],
        bytes_per_s=numbers["bytes_per_s"],
        reduce_bytes_per_s=numbers["reduce_bytes_per_s"],
        collective=collective,
        hosts=inside,
    )
    if as_json:
        finite = {key: value for key, value in numbers.items() if value != float("inf")}
        rows = [{"spec": choice.spec, "time_s": choice.time_s} for choice in compared]
        typer.echo(json.dumps({"chosen": compared[0].spec, "links": finite, "compared": rows}))
        return
    typer.echo(
        f"{collective} of {int(numbers['buffer_bytes']):,} bytes over {world_size} ranks"
    )
    typer.echo(_links(numbers, inside, world_size))
    width = None if sys.stdout.isatty() else 120
    Console(width=width, soft_wrap=True).print(_table(compared))
    typer.echo(f"chosen: {compared[0].spec}, {_why(compared)}")


def _links(numbers: dict[str, float], inside: Hosts, world_size: int) -> str:
    text = f"links: {_link(numbers['latency_s'], numbers['bytes_per_s'])}"
    per_host = inside.ranks_per_host
    if 1 < per_host < world_size and world_size % per_host == 0:
        text += f" between hosts of {per_host} ranks, which share one; "
        text += f"{_link(inside.latency_s, inside.bytes_per_s)} inside"
    return text


def _link(latency_s: float, bytes_per_s: float) -> str:
    return f"{1e6 * latency_s:g} us, {bytes_per_s / 1e9:g} GB/s"


def _table(compared: list[Choice]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("schedule", no_wrap=True)
    table.add_column("time us", justify="right")
    for choice in compared:
        table.add_row(choice.spec, f"{1e6 * choice.time_s:.1f}")
    return table


def _why(compared: list[Choice]) -> str:
    if len(compared) == 1:
        return "the only one for this collective"
    first, second = compared[:2]
    if first.time_s <= 0 or second.time_s == first.time_s:
        return f"no slower than {second.spec}"
    return f"{second.time_s / first.time_s:.2f} times faster than {second.spec} by the model"


def _arguments(spec: str) -> dict[str, float]:
    match = re.fullmatch(r"\s*auto\s*(?:\((.*)\))?\s*", spec)
    if match is None:
        raise UsageError(f"--explain explains auto, got {spec!r}")
    given = {}
    for part in filter(None, (match[1] or "").split(",")):
        key, _, text = (side.strip() for side in part.partition("="))
        if key not in KEYS:
            raise UsageError(f"auto takes {', '.join(sorted(KEYS))}; got {key!r}")
        try:
            given[key] = float(text)
        except ValueError:
            raise UsageError(f"auto's {key} must be a number, got {text!r}") from None
    return given
