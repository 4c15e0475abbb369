"""``kf experiment``: list, run and plot the folders under ``experiments/``."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kfcore.errors import UsageError

if TYPE_CHECKING:
    from experiments._shared.runner import Progress

app = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="List, run and plot the experiments.",
)
DEFAULT_OUT = Path("out/results")
Out = Annotated[Path, typer.Option(help="Folder for all results; <out>/<experiment> is used.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Ids = Annotated[
    list[str], typer.Argument(help="eNN_slug or eNN; several at will.", metavar="ID")
]


def _make_importable() -> None:
    """Let ``experiments`` be imported from the repository around the working folder.

    An installed package is found anyway; a source tree on its own is found from inside it.
    """
    try:
        import experiments._shared.catalog  # noqa: F401, PLC0415 - whether it is there
    except ModuleNotFoundError:
        here = Path.cwd()
        for root in (here, *here.parents):
            if (root / "experiments" / "_shared").is_dir():
                sys.path.insert(0, str(root))
                return
        raise UsageError(
            f"no experiments/ folder in {here} or above, and none installed"
        ) from None


@app.command("list")
def list_experiments(as_json: AsJson = False) -> None:
    """List all experiments with their questions."""
    _make_importable()
    from experiments._shared.catalog import discover  # noqa: PLC0415 - after the path is set

    found = discover()
    if as_json:
        fields = [
            {"name": e.name, "question": e.question, "folder": str(e.folder)} for e in found
        ]
        typer.echo(json.dumps(fields))
        return
    width = max(len(e.name) for e in found)
    for experiment in found:
        typer.echo(f"{experiment.name:<{width}}  {experiment.question}")


@app.command()
def run(
    ids: Ids,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small size: minutes, not hours.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of everything random, >= 0.")] = 1,
    out: Out = DEFAULT_OUT,
    no_plot: Annotated[bool, typer.Option("--no-plot", help="Only measure.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure the rows of experiments, then draw their figures.

    Rows that are there from the same code, files and seed are not measured again.
    """
    if seed < 0:
        raise UsageError(f"seed must be >= 0, got {seed}")
    _make_importable()
    from experiments._shared import catalog, runner  # noqa: PLC0415 - after the path is set

    summaries = []
    for experiment in [catalog.find(name) for name in ids]:
        with _progress(experiment.name) as progress:
            outcome = runner.run_experiment(
                experiment, out, seed=seed, quick=quick, progress=progress
            )
        figures, table = ([], []) if no_plot else runner.plot_experiment(experiment, out)
        summaries.append(_summary(outcome.folder, outcome.manifest, figures, table))
        if not as_json:
            _report(experiment, summaries[-1], was_complete=outcome.was_complete)
    if as_json:
        typer.echo(json.dumps(summaries))


@app.command()
def plot(ids: Ids, out: Out = DEFAULT_OUT, as_json: AsJson = False) -> None:
    """Draw the figures of experiments again from their rows."""
    _make_importable()
    from experiments._shared import catalog, runner  # noqa: PLC0415 - after the path is set

    summaries = []
    for experiment in [catalog.find(name) for name in ids]:
        figures, table = runner.plot_experiment(experiment, out)
        summaries.append(_summary(out / experiment.name, {}, figures, table))
        if not as_json:
            _report(experiment, summaries[-1], was_complete=False)
    if as_json:
        typer.echo(json.dumps(summaries))


def _summary(
    folder: Path, manifest: dict[str, Any], figures: list[Path], table: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "experiment": folder.name,
        "folder": str(folder),
        "rows": manifest.get("rows"),
        "duration_s": manifest.get("duration_s"),
        "figures": [str(path) for path in figures],
        "table": table,
    }


def _report(experiment: Any, summary: dict[str, Any], *, was_complete: bool) -> None:
    from rich.console import Console  # noqa: PLC0415 - not needed for --json
    from rich.table import Table  # noqa: PLC0415 - not needed for --json

    from experiments._shared.runner import text  # noqa: PLC0415 - after the path is set

    # a file or a pipe has no width of its own to fit into
    width = None if sys.stdout.isatty() else 120
    console = Console(soft_wrap=True, highlight=False, width=width)
    console.print(f"\n[bold]{experiment.name}[/bold]  {experiment.question}")
    if summary["table"]:
        grid = Table(box=None, pad_edge=False)
        for column in summary["table"][0]:
            grid.add_column(column, no_wrap=True)
        for row in summary["table"]:
            grid.add_row(*(text(row.get(column)) for column in summary["table"][0]))
        console.print(grid)
    if summary["rows"] is not None:
        state = "kept from before" if was_complete else f"{summary['duration_s']:.1f} s"
        console.print(f"{summary['rows']} rows in {summary['folder']}/rows.csv ({state})")
    for path in summary["figures"]:
        console.print(path)


@contextmanager
def _progress(name: str) -> Iterator["Progress"]:
    """A progress bar on stderr, so that stdout holds results only."""
    from rich.console import Console  # noqa: PLC0415 - only where a bar is shown
    from rich.progress import Progress as Bar  # noqa: PLC0415 - only where a bar is shown

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None)

        def show(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=f"{name}: {what}")

        yield show
