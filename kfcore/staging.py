"""Memory for collectives: in the caller's array where it is contiguous, else in a copy.

A strided array is copied into contiguous memory before a collective and, where the collective
writes, back through its strides afterwards, so what lies between its elements stays untouched.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kfcore import _native
from kfcore.buffers import as_numpy, as_pieces, require_dense
from kfcore.errors import UsageError

__all__ = ["Staged", "copy_of", "local", "new_like", "stage"]


@dataclass
class Staged:
    """Pieces of memory for one operation.

    Attributes:
        pieces: What the core works on.
        kept: Objects that own that memory.
        copies: ``(array, copy)`` of those that have to be copied back.
    """

    pieces: list[_native.Piece]
    kept: list[Any]
    copies: list[tuple[Any, Any]] = field(default_factory=list)

    def write_back(self) -> None:
        """Put what the operation left in the copies into the arrays they stand for."""
        for array, copy in self.copies:
            if isinstance(array, np.ndarray):
                array[...] = copy
            else:
                array.copy_(copy)
        self.copies.clear()


def stage(
    arrays: Sequence[Any], ops: str | Sequence[str] = "sum", *, writes: bool = True
) -> Staged:
    """Find or make contiguous memory for arrays.

    Args:
        arrays: NumPy arrays, torch tensors or DLPack objects in CPU memory, with any strides.
        ops: Reduce operator of all arrays, or one for each.
        writes: Whether the collective writes to them; if not, they may be read-only.

    Returns:
        One piece an array. The value must outlive the operation.

    Raises:
        UsageError: An array is of no usable type, not in CPU memory, or is to be written and
            is read-only or has elements that share memory.
    """
    staged = Staged([], [])
    for given in arrays:
        if writes and not hasattr(given, "__dlpack__"):
            raise UsageError(
                "array must be a NumPy array, a torch tensor or offer DLPack, "
                f"got {type(given).__name__}"
            )
        array = local(given)
        if _is_plain(array, writes):
            staged.kept.append(array)
            continue
        if writes:
            _require_in_place(array)
        copy = copy_of(array)
        staged.kept.append(copy)
        if writes:
            staged.copies.append((array, copy))
    staged.pieces = as_pieces(staged.kept, ops)
    return staged


def local(array: Any) -> Any:
    """An array that can be indexed and assigned here: a NumPy array or a tensor.

    Args:
        array: NumPy array, torch tensor, anything with DLPack, a number or a list of them.

    Returns:
        The same memory where there is one; a tensor without its history of gradients.

    Raises:
        UsageError: NumPy cannot read it, or the tensor has no dense CPU memory.
    """
    if not hasattr(array, "data_ptr"):
        return as_numpy(array)
    require_dense(array)
    return array.detach()


def copy_of(array: Any) -> Any:
    """A contiguous copy, of the same kind as what :func:`local` returns.

    Args:
        array: What :func:`local` returned.

    Returns:
        New memory that is the caller's to write.
    """
    if isinstance(array, np.ndarray):
        return np.array(array, order="C", copy=True, subok=False)
    copy = new_like(array, tuple(array.shape))
    copy.copy_(array)
    return copy


def new_like(array: Any, shape: tuple[int, ...]) -> Any:
    """Memory for another array of the same kind and type.

    Args:
        array: What :func:`local` returned.
        shape: Length of each axis.

    Returns:
        A contiguous array; contents undefined.
    """
    if isinstance(array, np.ndarray):
        return np.empty(shape, array.dtype)
    return array.new_empty(shape)


def _is_plain(array: Any, writes: bool) -> bool:
    if isinstance(array, np.ndarray):
        flags = array.flags
        return bool(flags.c_contiguous and (flags.writeable or writes))
    return bool(array.is_contiguous() and not array.is_conj() and not array.is_neg())


def _require_in_place(array: Any) -> None:
    numpy = isinstance(array, np.ndarray)
    if numpy and not array.flags.writeable:
        raise UsageError("array must be writable: collectives work in place")
    strides = tuple(array.strides) if numpy else tuple(array.stride())
    shape = tuple(array.shape)
    # every axis, from the smallest step on, must step over all that the ones before it cover
    covered = array.itemsize if numpy else 1
    for step, length in sorted(
        (abs(step), length) for step, length in zip(strides, shape, strict=True)
    ):
        if length <= 1:
            continue
        if step < covered:
            raise UsageError(
                f"elements of an array must not share memory when a collective writes to it, "
                f"got strides {strides} for shape {shape}"
            )
        covered = step * (length - 1) + covered
