"""Models as lists of gradient tensors, in the order in which backward finishes them."""

import csv
import functools
import math
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kfcore.errors import UsageError

__all__ = ["Model", "load_model", "model_names"]


@dataclass(frozen=True)
class Model:
    """A published model's gradients.

    Attributes:
        name: Of the table in ``kfsim/data``.
        tensors: Names, in backward order.
        elements: [tensors] int64, elements of each.
        backward_end: [tensors] float64 in (0, 1]: share of backward time after which the tensor
            is ready. Law: a layer's backward time is proportional to its multiply-adds; the
            last tensor is ready at 1.
    """

    name: str
    tensors: tuple[str, ...]
    elements: NDArray[np.int64]
    backward_end: NDArray[np.float64]

    @property
    def parameters(self) -> int:
        """Elements of all tensors."""
        return int(self.elements.sum())


@functools.cache
def model_names() -> tuple[str, ...]:
    """Names of the stored models, sorted."""
    folder = resources.files("kfsim") / "data"
    return tuple(
        sorted(item.name[:-4] for item in folder.iterdir() if item.name.endswith(".csv"))
    )


@functools.cache
def load_model(name: str) -> Model:
    """Reads a model.

    Args:
        name: One of `model_names`, or the path of a table like theirs (``kf workload export``
            writes them), which ends in ``.csv``.

    Returns:
        The model.

    Raises:
        UsageError: there is no such model, the text lists those that exist; or its table breaks
            a rule, the text names the line.
    """
    if name.endswith(".csv"):
        try:
            text = Path(name).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise UsageError(f"model: {name!r} cannot be read: {error}") from error
    elif name in model_names():
        text = (resources.files("kfsim") / "data" / f"{name}.csv").read_text(encoding="utf-8")
    else:
        raise UsageError(
            f"model: must be one of {', '.join(model_names())} or a .csv file, got {name!r}"
        )
    return _parse(name, text)


def _parse(name: str, text: str) -> Model:
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1)]
    lines = [(number, line) for number, line in lines if line and not line.startswith("#")]
    reader = csv.DictReader(line for _, line in lines)
    if list(reader.fieldnames or ()) != ["tensor", "elements", "layer_macs"]:
        raise UsageError(f"{name}: must have the columns tensor,elements,layer_macs")
    tensors, elements, macs = [], [], []
    for row, (number, line) in zip(reader, lines[1:], strict=False):
        try:
            count, work = int(row["elements"]), float(row["layer_macs"])
        except (TypeError, ValueError):
            count, work = 0, -1.0
        if count < 1 or not 0 <= work < math.inf:
            raise UsageError(
                f"{name}, line {number}: elements must be >= 1, layer_macs >= 0, got {line!r}"
            )
        tensors.append(row["tensor"])
        elements.append(count)
        macs.append(work)
    if not tensors:
        raise UsageError(f"{name}: lists no tensor")
    if sum(macs) == 0:
        raise UsageError(f"{name}: layer_macs must not all be 0")
    return Model(
        name=name,
        tensors=tuple(tensors),
        elements=np.array(elements, dtype=np.int64),
        backward_end=np.cumsum(macs) / np.sum(macs),
    )
