"""The root of ``kf``: finds sub-commands by name and turns errors into exit codes."""

import importlib
import os
import sys
import traceback
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command

from kfcore.errors import KfError, UsageError

__all__ = ["COMMANDS", "main"]

# name -> its line in `kf --help`, so that the help imports none of them
COMMANDS = {
    "bench": "Measure collectives between real processes.",
    "calibrate": "Fit a scenario's constants to measured rows; predict the others.",
    "experiment": "List, run and plot the experiments.",
    "fidelity": "Hold the simulator against published measurements.",
    "fleet": "Simulate several jobs on one cluster.",
    "join": "Add workers to a running elastic job.",
    "policy": "List, show and replay policies.",
    "run": "Run a program as n worker processes, on one host or several.",
    "schedule": "List, show, validate and price communication schedules.",
    "sim": "Simulate a cluster from a scenario file.",
    "sweep": "Simulate a scenario at every combination of some keys.",
    "workload": "Make workloads for the simulator.",
}
EXIT_FAILED, EXIT_USAGE = 1, 2


class LazyGroup(TyperGroup):
    """A group that imports ``kfcore.cli.<name>`` when <name> is called."""

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        # only the names are looked at, for "Did you mean"
        self.commands = cast("Any", dict.fromkeys(COMMANDS))

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - inherited
        """Names of all sub-commands."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - inherited
        """Load one sub-command, or None when there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"kfcore.cli.{cmd_name}")
        module.app._add_completion = False  # belongs to a program of its own, not to a part
        command = get_command(module.app)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - inherited
        """List the sub-commands from COMMANDS, importing nothing."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


app = typer.Typer(
    cls=LazyGroup,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,  # rich costs more than the whole rest of the help
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - rare

        try:
            typer.echo(f"kf {version('kungfu-lab')}")
        except PackageNotFoundError:
            typer.echo("kf, run from a source tree that is not installed")
        raise typer.Exit


@app.callback()
def root(
    _debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error.")
    ] = False,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version."
        ),
    ] = False,
) -> None:
    """KungFu Lab: adaptive distributed training. One policy, two worlds."""


def _write_out() -> OSError | None:
    """Write what was printed; returns why that failed. What is left then is dropped."""
    try:
        sys.stdout.flush()
    except OSError as error:
        # the interpreter would try again at its end, and exit with 120
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error
    return None


def _run(arguments: list[str]) -> None:
    try:
        get_command(app).main(args=arguments, prog_name="kf")
    except SystemExit as end:
        lost = _write_out()
        if lost is not None and not end.code:
            raise lost from None
        raise


def main(args: list[str] | None = None) -> None:
    """Run ``kf`` and exit.

    Args:
        args: arguments after the program's name; those of the process when None.

    Raises:
        SystemExit: always, with the exit code.
    """
    arguments = sys.argv[1:] if args is None else args
    try:
        _run(arguments)
    except KfError as error:
        if arguments[:1] == ["--debug"]:
            traceback.print_exc()
        typer.echo(f"kf: error: {error}", err=True)
        sys.exit(EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED)
    except OSError as error:  # a full disk, a terminal that went away
        if arguments[:1] == ["--debug"]:
            traceback.print_exc()
        typer.echo(f"kf: error: {error}", err=True)
        _write_out()
        sys.exit(EXIT_FAILED)
    except MemoryError:
        typer.echo("kf: error: not enough memory for this", err=True)
        sys.exit(EXIT_FAILED)
