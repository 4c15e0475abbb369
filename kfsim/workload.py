"""Models as lists of gradient tensors, in the order in which backward finishes them."""

import csv
import functools
from dataclasses import dataclass
from importlib import resources

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
    """Reads a stored model.

    Args:
        name: One of `model_names`.

    Returns:
        The model.

    Raises:
        UsageError: there is no such model; the text lists those that exist.
    """
    if name not in model_names():
        raise UsageError(f"model must be one of {', '.join(model_names())}, got {name!r}")
    text = (resources.files("kfsim") / "data" / f"{name}.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))
    macs = np.array([float(row["layer_macs"]) for row in rows])
    return Model(
        name=name,
        tensors=tuple(row["tensor"] for row in rows),
        elements=np.array([int(row["elements"]) for row in rows], dtype=np.int64),
        backward_end=np.cumsum(macs) / macs.sum(),
    )
