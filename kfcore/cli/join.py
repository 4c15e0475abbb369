"""``kf join``: more workers for a running elastic job."""

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
from kfcore.config import Config
from kfcore.launch import LaunchSpec, join
from kfcore.launch.note import secret_of

app = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={
        "allow_interspersed_args": False,  # options after the program are the program's
        "help_option_names": ["-h", "--help"],
    },
)


@app.command("join")
def join_job(
    address: Annotated[
        str, typer.Argument(help="HOST:PORT that kf run --elastic printed.", metavar="ADDRESS")
    ],
    command: Annotated[
        list[str] | None,
        typer.Argument(help="Program; the job's own if none.", metavar="PROGRAM"),
    ] = None,
    workers: Annotated[int, typer.Option("-n", "--workers", help="Worker processes.")] = 1,
    secret_file: Annotated[
        Path | None, typer.Option(help="File with the job's secret; not needed on its host.")
    ] = None,
    log_dir: LogDir = None,
    no_prefix: NoPrefix = False,
    interface: Interface = None,
    as_json: AsJson = False,
) -> None:
    """Start workers here that join a job which kf run --elastic runs.

    They get the job's state when they are ready; the others train on until then.
    """
    spec = LaunchSpec(
        command=tuple(command or ()),
        world_size=workers,
        log_dir=log_dir,
        prefix=not no_prefix,
        interface=interface,
    )
    secret = Config.from_env(rank=0, world_size=1).job_secret if secret_file is None else ""
    secret = secret or secret_of(address, secret_file)
    result = join(spec, address, secret, stdout=workers_stdout(as_json))
    end(result, as_json)
