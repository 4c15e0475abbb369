"""``kf bench ... --against``: ours beside other systems."""

import contextlib
import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import Progress

from kfcore.compare import report
from kfcore.compare.contenders import CONTENDERS, Contender, find_python, missing_reason
from kfcore.compare.places import Place, ThisHost, cluster
from kfcore.compare.runner import RESNET50_BYTES, Case, compare, floors
from kfcore.errors import UsageError

__all__ = ["PEERS", "Choice", "ending_on_signals", "present", "run_against"]

OURS = ("kf", "kf-registered")
PEERS = tuple(name for name in CONTENDERS if name not in OURS)


@dataclass(frozen=True)
class Choice:
    """What the user asked for beside names and sizes."""

    world_size: int
    rounds: int
    resnet50: bool
    floor: bool
    plot: Path | None
    as_json: bool
    hosts: int = 1
    rate_mbit: float | None = None


def run_against(names: list[str], sizes: list[int], python: list[str], choice: Choice) -> None:
    """Measure our contenders beside others and print what came of it.

    Args:
        names: Of the others; those that are not installed are left out with a line.
        sizes: Buffer sizes, in bytes.
        python: ``NAME=PATH`` of interpreters.
        choice: The rest of the command line.

    Raises:
        UsageError: An unknown name or a malformed interpreter.
        KfError: A contender failed.
    """
    pythons = dict(_pair(text) for text in python)
    contenders = [CONTENDERS[name] for name in OURS] + present(names, pythons)
    cases = [Case("all_reduce", size) for size in sizes]
    if choice.resnet50:
        cases.append(Case("resnet50", RESNET50_BYTES))
    console = Console(stderr=True)
    place: contextlib.AbstractContextManager[Place] = (
        cluster(choice.hosts, choice.rate_mbit)
        if choice.hosts > 1
        else contextlib.nullcontext(ThisHost())
    )
    with (
        ending_on_signals(),
        place as hosts,
        Progress(console=console, transient=True) as progress,
    ):
        task = progress.add_task("", total=len(contenders) * len(cases) * choice.rounds)

        def on_block(text: str) -> None:
            progress.update(task, description=text, advance=1)

        samples = compare(
            contenders,
            cases,
            world_size=choice.world_size,
            rounds=choice.rounds,
            pythons=pythons,
            place=hosts,
            on_block=on_block,
        )
    floor_rows = floors(sizes) if choice.floor else []
    if choice.plot is not None:
        report.draw(samples, choice.plot, floor_rows)
        console.print(f"figure: {choice.plot}")
    if choice.as_json:
        typer.echo(json.dumps({"rows": report.rows(samples), "floors": floor_rows}))
    else:
        Console().print(report.table(samples, floor_rows))


@contextlib.contextmanager
def ending_on_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into SystemExit, so that no contender is left behind."""

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    old = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def present(names: list[str], pythons: dict[str, str]) -> list[Contender]:
    """The contenders that are installed here; says of the others how to get them.

    Args:
        names: Of contenders other than ours.
        pythons: Interpreters by name of contender.

    Returns:
        In the order of the names.

    Raises:
        UsageError: An unknown name.
    """
    found = []
    for name in names:
        if name not in PEERS:
            raise UsageError(f"--against takes {', '.join(PEERS)}; got {name!r}")
        reason = missing_reason(CONTENDERS[name], find_python(CONTENDERS[name], pythons))
        if reason is None:
            found.append(CONTENDERS[name])
        else:
            typer.echo(f"kf: left out: {reason}", err=True)
    return found


def _pair(text: str) -> tuple[str, str]:
    name, _, path = text.partition("=")
    if name not in CONTENDERS or not path:
        raise UsageError(f"--python takes NAME=PATH with a system's name, got {text!r}")
    return name, path
