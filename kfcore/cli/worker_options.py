"""Options and the end that all commands share which start workers."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, BinaryIO, NoReturn

import typer

from kfcore.launch import LaunchResult

__all__ = ["AsJson", "Interface", "LogDir", "NoPrefix", "end", "workers_stdout"]

LogDir = Annotated[
    Path | None,
    typer.Option(help="Also write rank.<r>.out and rank.<r>.err to this folder."),
]
NoPrefix = Annotated[
    bool, typer.Option("--no-prefix", help="Do not put [rank] before each line.")
]
Interface = Annotated[str | None, typer.Option(help="Network interface that the workers use.")]
AsJson = Annotated[
    bool,
    typer.Option(
        "--json", help="Print a summary on stdout; the workers' output goes to stderr."
    ),
]


def workers_stdout(as_json: bool) -> BinaryIO | None:
    """Where the workers' standard output goes; None: to this process's."""
    return sys.stderr.buffer if as_json else None


def end(result: LaunchResult, as_json: bool) -> NoReturn:
    """Print the summary if wanted, and end with the job's exit code.

    Args:
        result: Of the job.
        as_json: Whether a summary is wanted.

    Raises:
        Exit: always.
    """
    if as_json:
        fields = asdict(result)
        if result.first_failure is not None:
            fields["first_failure"]["verdict"] = result.first_failure.verdict
        typer.echo(json.dumps(fields))
    raise typer.Exit(result.exit_code)
