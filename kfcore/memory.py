"""Buffers in memory that the ranks of one host share.

A collective reads such a buffer where it lies, in the peer's memory, and saves a copy of it on
each side. Everything else about them is as with any other array.
"""

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from kfcore import _native
from kfcore.errors import UsageError

__all__ = ["POOL", "empty", "is_shared"]

POOL = _native.SharedMemory()  # of this process; sessions lend buffers that lie in it


def empty(shape: int | Sequence[int], dtype: DTypeLike = "float32") -> NDArray[Any]:
    """Make an array that peers of this host can read in place.

    The memory is given back when the array and all views of it are gone; it belongs to this
    process, and a child made by ``fork`` sees the same bytes. For torch use
    ``torch.from_numpy(kf.empty(...))``.

    Args:
        shape: Number of elements, or the length of each axis; each >= 0.
        dtype: Any fixed-size NumPy type without Python objects.

    Returns:
        Writable, C-contiguous, aligned to a page; contents undefined.

    Raises:
        UsageError: The shape or type is not usable.
        TransportError: The system gives no more shared memory.

    Example:
        >>> gradients = empty((2, 3))
        >>> gradients.shape, is_shared(gradients[1])
        ((2, 3), True)
    """
    kind = np.dtype(dtype)
    if kind.hasobject or kind.itemsize == 0:
        raise UsageError(f"dtype must have a fixed size and no Python objects, got {kind}")
    axes = (shape,) if isinstance(shape, int) else tuple(shape)
    if any(axis < 0 for axis in axes):
        raise UsageError(f"every axis must be >= 0, got shape {axes}")
    count = math.prod(axes)
    memory = cast("NDArray[Any]", _native.allocate_shared(POOL, count * kind.itemsize))
    return memory.view(kind).reshape(axes)


def is_shared(array: NDArray[Any]) -> bool:
    """Whether all of an array's memory lies in a buffer made by :func:`empty`.

    Args:
        array: Any contiguous NumPy array.

    Returns:
        True when collectives of one host read it in place.
    """
    return POOL.contains(array.ctypes.data, array.nbytes)
