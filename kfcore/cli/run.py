"""``kf run``: one program as n worker processes on this host."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from kfcore.cli.worker_options import (
    AsJson,
    Interface,
    LogDir,
    NoPrefix,
    end,
    workers_stdout,
)
from kfcore.config import DEFAULT_TIMEOUT_S
from kfcore.errors import UsageError
from kfcore.faults import read_faults
from kfcore.launch import LaunchSpec, launch
from kfcore.launch.discovery import discovered_hosts
from kfcore.launch.hosts import Host, parse_hosts, read_hostfile
from kfcore.launch.note import secret_of

app = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={
        "allow_interspersed_args": False,  # options after the program are the program's
        "help_option_names": ["-h", "--help"],
    },
)


@app.command()
def run(  # noqa: PLR0917 - one parameter an option
    command: Annotated[
        list[str],
        typer.Argument(help="A .py file, or a program, with its arguments.", metavar="PROGRAM"),
    ],
    workers: Annotated[
        int | None,
        typer.Option(
            "-n",
            "-np",
            "--workers",
            "--nproc-per-node",
            help="Worker processes; default 1, or all slots of the hosts.",
        ),
    ] = None,
    hosts: Annotated[
        str | None,
        typer.Option("-H", "--hosts", metavar="HOST:SLOTS,...", help="Where workers run."),
    ] = None,
    hostfile: Annotated[
        Path | None,
        typer.Option("--hostfile", help="The same from a file: 'HOST slots=N' a line."),
    ] = None,
    ssh: Annotated[
        str,
        typer.Option(help="Program and arguments that reach another host."),
    ] = "ssh -o BatchMode=yes",
    faults: Annotated[
        Path | None,
        typer.Option(help="Plan of what goes wrong at which step (docs/launch.md)."),
    ] = None,
    elastic: Annotated[
        str | None,
        typer.Option(
            metavar="MIN:MAX", help="Go on when workers die, leave or come, within limits."
        ),
    ] = None,
    cooldown_s: Annotated[
        float,
        typer.Option("--cooldown-s", help="Seconds without a new worker after a failure."),
    ] = 5.0,
    discovery: Annotated[
        Path | None,
        typer.Option(
            "--host-discovery-script", help="Prints HOST:SLOTS a line; asked every second."
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="etcd://HOST:PORT",
            help="Keep the job's store on etcd.",
        ),
    ] = None,
    secret_file: Annotated[
        Path | None,
        typer.Option(help="File with the job's secret, for kf join on other hosts."),
    ] = None,
    export: Annotated[
        list[str] | None,
        typer.Option(
            "-x", metavar="NAME[=VALUE]", help="Variable for all workers; may be given again."
        ),
    ] = None,
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
    log_dir: LogDir = None,
    record: Annotated[
        bool, typer.Option("--record", help="Log what policies see, for 'kf policy replay'.")
    ] = False,
    no_prefix: NoPrefix = False,
    grace_s: Annotated[
        float,
        typer.Option("--grace-s", help="Seconds between SIGTERM and SIGKILL at a stop."),
    ] = 5.0,
    interface: Interface = None,
    as_json: AsJson = False,
) -> None:
    """Run PROGRAM as n worker processes, on this host or several.

    The exit code is that of the worker that failed first (128 + signal number for a signal),
    or 0. Standard input of the workers is empty.
    """
    if record and log_dir is None:
        raise UsageError("--record needs --log-dir, the folder of events.jsonl")
    policies: tuple[str, ...] = ()
    if policy:
        from kfcore.launch.policies import check_policy  # noqa: PLC0415 - loads the native core

        policies = tuple(check_policy(entry) for entry in policy)
    if faults is not None:
        read_faults(faults)  # a wrong plan is one error here, not one a worker
    there = _hosts(hosts, hostfile, discovery)
    limits = None if elastic is None else _limits(elastic)
    if workers is None:
        workers = sum(host.slots for host in there) if there else (limits or (1, 1))[0]
        workers = workers if limits is None else min(workers, limits[1])
    settings = [text.partition("=") for text in export or ()]
    spec = LaunchSpec(
        command=tuple(command),
        world_size=workers,
        hosts=there,
        faults=faults,
        record=record,
        elastic=limits,
        cooldown_s=cooldown_s,
        discovery=discovery,
        store=store,
        secret="" if secret_file is None else secret_of("", secret_file),
        ssh=tuple(shlex.split(ssh)),
        env={name: value for name, equals, value in settings if equals},
        passed=tuple(name for name, equals, _ in settings if not equals),
        policies=policies,
        timeout_s=timeout_s,
        log_dir=log_dir,
        prefix=not no_prefix,
        grace_s=grace_s,
        interface=interface,
    )
    result = launch(spec, stdout=workers_stdout(as_json))
    end(result, as_json)


def _limits(text: str) -> tuple[int, int]:
    least, colon, most = text.partition(":")
    if not colon or not least.isdecimal() or not most.isdecimal():
        raise UsageError(f"--elastic must read MIN:MAX, got {text!r}")
    return int(least), int(most)


def _hosts(listed: str | None, file: Path | None, discovery: Path | None) -> tuple[Host, ...]:
    if listed is not None and file is not None:
        raise UsageError("give -H or --hostfile, not both")
    if file is not None:
        return tuple(read_hostfile(file))
    if listed is None and discovery is not None:
        return tuple(discovered_hosts(discovery))
    return () if listed is None else tuple(parse_hosts(listed))
