"""``kf run``: one program as n worker processes on this host."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from kfcore.config import DEFAULT_TIMEOUT_S
from kfcore.launch import LaunchResult, LaunchSpec, launch

app = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={
        "allow_interspersed_args": False,  # options after the program are the program's
        "help_option_names": ["-h", "--help"],
    },
)


@app.command()
def run(
    command: Annotated[
        list[str],
        typer.Argument(help="A .py file, or a program, with its arguments.", metavar="PROGRAM"),
    ],
    workers: Annotated[
        int,
        typer.Option("-n", "-np", "--workers", "--nproc-per-node", help="Worker processes."),
    ] = 1,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POLICY", help="FILE:CLASS or a built-in's name; may be given again."
        ),
    ] = None,
    timeout_s: Annotated[
        float,
        typer.Option("--timeout-s", help="Seconds a blocking operation may take."),
    ] = DEFAULT_TIMEOUT_S,
    log_dir: Annotated[
        Path | None,
        typer.Option(help="Also write rank.<r>.out and rank.<r>.err to this folder."),
    ] = None,
    no_prefix: Annotated[
        bool, typer.Option("--no-prefix", help="Do not put [rank] before each line.")
    ] = False,
    grace_s: Annotated[
        float,
        typer.Option("--grace-s", help="Seconds between SIGTERM and SIGKILL at a stop."),
    ] = 5.0,
    interface: Annotated[
        str | None, typer.Option(help="Network interface that the workers use.")
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print a summary on stdout; the workers' output goes to stderr."
        ),
    ] = False,
) -> None:
    """Run PROGRAM as n worker processes on this host.

    The exit code is that of the worker that failed first (128 + signal number for a signal),
    or 0. Standard input of the workers is empty.
    """
    policies: tuple[str, ...] = ()
    if policy:
        from kfcore.launch.policies import check_policy  # noqa: PLC0415 - loads the native core

        policies = tuple(check_policy(entry) for entry in policy)
    spec = LaunchSpec(
        command=tuple(command),
        world_size=workers,
        policies=policies,
        timeout_s=timeout_s,
        log_dir=log_dir,
        prefix=not no_prefix,
        grace_s=grace_s,
        interface=interface,
    )
    result = launch(spec, stdout=sys.stderr.buffer if as_json else None)
    if as_json:
        typer.echo(json.dumps(summary(result)))
    raise typer.Exit(result.exit_code)


def summary(result: LaunchResult) -> dict[str, object]:
    """The fields of a result as ``--json`` prints them."""
    fields = asdict(result)
    if result.first_failure is not None:
        fields["first_failure"]["verdict"] = result.first_failure.verdict
    return fields
