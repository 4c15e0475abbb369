"""``kf bench ... --against``: ours beside other systems."""

import json
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import Progress

from kfcore.compare import report
from kfcore.compare.contenders import CONTENDERS, Contender, find_python, missing_reason
from kfcore.compare.runner import RESNET50_BYTES, Case, compare, floors
from kfcore.errors import UsageError

__all__ = ["PEERS", "Choice", "run_against"]

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
    contenders = [CONTENDERS[name] for name in OURS] + _present(names, pythons)
    cases = [Case("all_reduce", size) for size in sizes]
    if choice.resnet50:
        cases.append(Case("resnet50", RESNET50_BYTES))
    console = Console(stderr=True)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=len(contenders) * len(cases) * choice.rounds)

        def on_block(text: str) -> None:
            progress.update(task, description=text, advance=1)

        samples = compare(
            contenders,
            cases,
            world_size=choice.world_size,
            rounds=choice.rounds,
            pythons=pythons,
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


def _present(names: list[str], pythons: dict[str, str]) -> list[Contender]:
    present = []
    for name in names:
        if name not in PEERS:
            raise UsageError(f"--against takes {', '.join(PEERS)}; got {name!r}")
        reason = missing_reason(CONTENDERS[name], find_python(CONTENDERS[name], pythons))
        if reason is None:
            present.append(CONTENDERS[name])
        else:
            typer.echo(f"kf: left out: {reason}", err=True)
    return present


def _pair(text: str) -> tuple[str, str]:
    name, _, path = text.partition("=")
    if name not in CONTENDERS or not path:
        raise UsageError(f"--python takes NAME=PATH with a system's name, got {text!r}")
    return name, path
