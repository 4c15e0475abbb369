"""Gradients of any array library, seen as NumPy arrays over the same memory."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfcore import _native
from kfcore.errors import UsageError

__all__ = ["finite_norm", "float_view", "scale"]


def float_view(grad: Any) -> NDArray[Any]:
    """A gradient as a NumPy array, without a copy.

    Args:
        grad: NumPy array, CPU tensor, or anything else with DLPack; float.

    Returns:
        An array over the same memory; it may be read-only.

    Raises:
        UsageError: it cannot be seen so, or its elements are not floats.
    """
    if not isinstance(grad, np.ndarray):
        try:
            grad = np.from_dlpack(grad)
        except (AttributeError, BufferError, RuntimeError, TypeError, ValueError) as error:
            raise UsageError(
                "gradients must be NumPy arrays or CPU tensors with DLPack, got "
                f"{type(grad).__name__}: {error}"
            ) from error
    if grad.dtype.kind != "f":
        raise UsageError(f"gradients must be float arrays, got {grad.dtype}")
    view: NDArray[Any] = grad
    return view


def finite_norm(views: Sequence[NDArray[Any]]) -> float:
    """Squared norm of several arrays together, added in float64.

    Args:
        views: Float arrays of any shape.

    Returns:
        Sum of squares of all elements, >= 0; +inf when it is not finite.
    """
    total = 0.0
    for view in views:
        direct = view.dtype in (np.float32, np.float64) and view.flags.c_contiguous
        total += _native.squared_norm(
            view if direct else np.ascontiguousarray(view, np.float64)
        )
    return total if math.isfinite(total) else math.inf


def scale(grads: Sequence[Any], factor: float) -> None:
    """Multiply gradients in place, in whatever library they live.

    Args:
        grads: Writable arrays or tensors.
        factor: Applied to each element; 0 clears what is not finite too.
    """
    for grad in grads:
        if factor == 0:
            grad[...] = 0
            continue
        grad *= factor  # noqa: PLW2901 - in place for arrays and tensors alike
