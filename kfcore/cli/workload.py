"""``kf workload``: a model of one's own as a simulator's workload."""

import importlib.util
from pathlib import Path
from typing import Annotated, Any

import typer

from kfcore.errors import UsageError

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Make workloads for the simulator.",
)


@app.callback()
def workload() -> None:
    """Make workloads for the simulator."""


@app.command()
def export(
    model: Annotated[
        str, typer.Argument(metavar="FILE.py:BUILD", help="What returns a torch module.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="CSV file to write.")],
    shape: Annotated[
        str, typer.Option("--input", metavar="AxBxC", help="Shape of one sample.")
    ] = "3x224x224",
    tokens: Annotated[
        bool, typer.Option(help="The input holds whole numbers (words), all 0.")
    ] = False,
) -> None:
    """Write the model's gradient tensors; give the file as `workload.model`."""
    # torch costs seconds that --help should not
    from kfcore.torch.workload import one_sample, tensor_table, write_table  # noqa: PLC0415

    rows = tensor_table(_build(model), [one_sample(_shape(shape), words=tokens)])
    write_table(out, rows, f"Exported by kf workload export from {Path(model).name}.")
    total = sum(elements for _, elements, _ in rows)
    typer.echo(f"{out}: {len(rows)} tensors, {total} elements")


@app.command("import")
def import_(
    trace: Annotated[
        Path, typer.Argument(help="torch.profiler's JSON, or a Chakra trace (.et).")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="CSV file to write.")],
    bytes_per_element: Annotated[
        int, typer.Option(min=1, max=8, help="Of a gradient in a Chakra trace.")
    ] = 4,
) -> None:
    """Make a workload of what a profiler recorded; give the file as `workload.model`."""
    from kfsim.imports import read_chakra, read_profile, write_workload  # noqa: PLC0415

    is_chakra = trace.suffix == ".et"
    step = read_chakra(trace, bytes_per_element) if is_chakra else read_profile(trace)
    write_workload(out, step, f"Imported by kf workload import from {trace.name}.")
    total = sum(elements for _, elements, _ in step.rows)
    typer.echo(f"{out}: {len(step.rows)} tensors, {total} elements")
    if step.forward_us > 0:
        typer.echo(
            f"one step: forward {step.forward_us:.6g} us, backward {step.backward_us:.6g} us; "
            f"workload.forward_fraction = {step.forward_fraction:.3f}"
        )


def _shape(text: str) -> tuple[int, ...]:
    parts = text.lower().split("x")
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UsageError(f"--input must read like 3x224x224, got {text!r}")
    return tuple(int(part) for part in parts)


def _build(text: str) -> Any:
    where, colon, name = text.rpartition(":")
    path = Path(where)
    if not colon or not path.is_file():
        raise UsageError(f"the model must be given as FILE.py:BUILD, got {text!r}")
    spec = importlib.util.spec_from_file_location(f"kf_model_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    build = getattr(module, name, None)
    if not callable(build):
        raise UsageError(f"{path} has no function {name!r}")
    return build()
