"""``kf experiment``: list, run, plot and compare the folders under ``experiments/``."""

import json
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer

from kfcore.cli import experiment_output as output
from kfcore.errors import KfError, UsageError

app = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="List, run, plot and compare the experiments.",
)
DEFAULT_OUT = Path("out/results")
Out = Annotated[Path, typer.Option(help="Folder for all results; <out>/<experiment> is used.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Ids = Annotated[
    list[str], typer.Argument(help="eNN_slug, eNN or all; several at will.", metavar="ID")
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
            {
                "name": e.name,
                "question": e.question,
                "worlds": e.worlds,
                "folder": str(e.folder),
            }
            for e in found
        ]
        typer.echo(json.dumps(fields))
        return
    width = max(len(e.name) for e in found)
    for experiment in found:
        worlds = f" [{experiment.worlds}]" if experiment.worlds else ""
        typer.echo(f"{experiment.name:<{width}}  {experiment.question}{worlds}")


@app.command()
def run(
    ids: Ids,
    quick: Annotated[
        bool, typer.Option("--quick/--full", help="Small size (minutes) or full size (hours).")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of everything random, >= 0.")] = 1,
    out: Out = DEFAULT_OUT,
    no_plot: Annotated[bool, typer.Option("--no-plot", help="Only measure.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure the rows of experiments, then draw their figures.

    Rows that are there from the same code, files and seed are not measured again. With several
    experiments, one that fails, or that this machine cannot run, does not keep the others from
    running; the latter is said and is no failure.
    """
    if seed < 0:
        raise UsageError(f"seed must be >= 0, got {seed}")
    _make_importable()
    from experiments._shared import catalog, runner  # noqa: PLC0415 - after the path is set

    chosen = catalog.select(ids)
    summaries: list[dict[str, Any]] = []
    failures: list[str] = []
    left_out: list[str] = []
    for experiment in chosen:
        try:
            with output.progress_bar(experiment.name) as progress:
                outcome = runner.run_experiment(
                    experiment, out, seed=seed, quick=quick, progress=progress
                )
            figures, table = ([], []) if no_plot else runner.plot_experiment(experiment, out)
        except Exception as error:
            if len(chosen) == 1:
                raise
            if isinstance(error, runner.NotHere):
                left_out.append(f"{experiment.name}: {error}")
                continue
            if not isinstance(error, KfError):  # a bug: say where
                traceback.print_exc()
            failures.append(f"{experiment.name}: {error}")
            continue
        summaries.append(output.summary(outcome.folder, outcome.manifest, figures, table))
        if not as_json:
            output.report(experiment, summaries[-1], was_complete=outcome.was_complete)
    if as_json:
        typer.echo(json.dumps(summaries))
    for reason in left_out:
        typer.echo(f"left out: {reason}", err=True)
    for failure in failures:
        typer.echo(f"failed: {failure}", err=True)
    if failures:
        raise typer.Exit(1)


@app.command()
def plot(ids: Ids, out: Out = DEFAULT_OUT, as_json: AsJson = False) -> None:
    """Draw the figures of experiments again from their rows."""
    _make_importable()
    from experiments._shared import catalog, runner  # noqa: PLC0415 - after the path is set

    summaries = []
    for experiment in catalog.select(ids):
        if "all" in ids and not (out / experiment.name / "rows.csv").is_file():
            continue
        figures, table = runner.plot_experiment(experiment, out)
        summaries.append(output.summary(out / experiment.name, {}, figures, table))
        if not as_json:
            output.report(experiment, summaries[-1], was_complete=False)
    if as_json:
        typer.echo(json.dumps(summaries))


@app.command()
def compare(
    a: Annotated[Path, typer.Argument(help="Folder of one run or of several: the base.")],
    b: Annotated[Path, typer.Argument(help="The other.")],
    every: Annotated[bool, typer.Option("--every", help="Show equal numbers too.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 when a number differs.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say which numbers of two runs differ beyond their spread.

    A number differs when the bootstrap intervals of its median over the repeats have no point
    in common. Of many numbers, a few differ by chance.
    """
    _make_importable()
    from experiments._shared.compare import (  # noqa: PLC0415 - after the path is set
        compare_runs,
        find_runs,
    )

    left, right = find_runs(a), find_runs(b)
    both = [name for name in left if name in right]
    if not both:
        raise UsageError(f"{a} and {b} have no experiment in common")
    found = {name: compare_runs(left[name], right[name]) for name in both}
    if as_json:
        rows = {name: [output.difference_row(d) for d in ds] for name, ds in found.items()}
        typer.echo(json.dumps(rows))
    else:
        for name in both:
            output.show_differences(left[name], right[name], found[name], every=every)
    if check and any(d.verdict != "same" for ds in found.values() for d in ds):
        raise typer.Exit(1)


@app.command()
def report(out: Out = DEFAULT_OUT) -> None:
    """Write one page over all results: question, origin, table and figure of each.

    Also shows every number that others published beside ours, with the difference.
    """
    _make_importable()
    from experiments._shared.published import collect  # noqa: PLC0415 - after the path is set
    from experiments._shared.report import write_report  # noqa: PLC0415 - after the path is set

    path = write_report(out)
    output.show_published(collect(out))
    typer.echo(path)
