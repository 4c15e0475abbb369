"""Turns arrays of any library into typed pieces of memory for the core.

NumPy arrays and torch tensors are read by their own fast accessors, anything else through
DLPack. torch is never imported here: a tensor is recognised by what it offers.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kfcore import _native
from kfcore.errors import UsageError

__all__ = ["as_numpy", "as_pieces", "reduce_op", "require_dense"]

_DTYPES: dict[str, _native.DType] = {
    name: getattr(_native.DType, name)
    for name in (
        "float32",
        "float64",
        "float16",
        "bfloat16",
        "int8",
        "uint8",
        "int16",
        "int32",
        "int64",
        "bool",
        "complex64",
        "complex128",
    )
}
_OPS: dict[str, _native.ReduceOp] = {
    name: getattr(_native.ReduceOp, name) for name in ("sum", "prod", "min", "max", "avg")
}


def reduce_op(name: str) -> _native.ReduceOp:
    """Reduce operator by name.

    Args:
        name: One of ``sum prod min max avg``.

    Returns:
        The core's operator.

    Raises:
        UsageError: Any other name.
    """
    op = _OPS.get(name) if isinstance(name, str) else None
    if op is None:
        raise UsageError(f"op must be one of {', '.join(_OPS)}, got {name!r}")
    return op


def as_pieces(arrays: Sequence[Any], ops: str | Sequence[str]) -> list[_native.Piece]:
    """Memory of several arrays, in order.

    Args:
        arrays: NumPy arrays, torch tensors or DLPack objects in CPU memory; contiguous (row
            by row) and writable.
        ops: Reduce operator of all arrays, or one for each.

    Returns:
        One piece an array. The arrays must outlive its use.

    Raises:
        UsageError: An array is not contiguous, not writable, not in CPU memory, of a type that
            has no counterpart in the core, or ``ops`` has another length than ``arrays``.
    """
    if isinstance(ops, str):
        op = reduce_op(ops)
        return [_piece(array, op) for array in arrays]
    if not isinstance(ops, Sequence):
        raise UsageError(f"op must be one of {', '.join(_OPS)}, or a list of them, got {ops!r}")
    if len(ops) != len(arrays):
        raise UsageError(f"one op for each array: got {len(ops)} ops for {len(arrays)} arrays")
    return [_piece(array, reduce_op(op)) for array, op in zip(arrays, ops, strict=True)]


def as_numpy(array: Any) -> np.ndarray[Any, Any]:
    """An array of any library as a NumPy array, over the same memory where there is one.

    Args:
        array: NumPy array, CPU tensor, DLPack object, number, or nested list of numbers.

    Returns:
        The NumPy array; it may be read-only or strided.

    Raises:
        UsageError: NumPy cannot represent it.
    """
    if isinstance(array, np.ndarray):
        return _unmasked(array)
    if hasattr(array, "detach"):  # torch: what requires a gradient is not given away
        array = array.detach()
    try:
        return np.from_dlpack(array) if hasattr(array, "__dlpack__") else np.asarray(array)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise UsageError(f"array cannot be read by NumPy: {error}") from error


def require_dense(tensor: Any) -> None:
    """Refuse a tensor whose elements do not lie in CPU memory.

    Args:
        tensor: A torch tensor.

    Raises:
        UsageError: It is sparse or nested, or on another device.
    """
    if tensor.device.type != "cpu":
        raise UsageError(f"tensor must be in CPU memory, got device {tensor.device}")
    if str(tensor.layout) != "torch.strided" or tensor.is_nested:
        raise UsageError(f"tensor must be dense, got layout {tensor.layout}")


def _unmasked(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if isinstance(array, np.ma.MaskedArray):
        raise UsageError("array must not be masked: what a mask hides would be reduced too")
    return array


def _piece(array: Any, op: _native.ReduceOp) -> _native.Piece:
    if isinstance(array, np.ndarray):
        return _numpy_piece(array, op)
    if hasattr(array, "data_ptr"):
        return _torch_piece(array, op)
    return _dlpack_piece(array, op)


def _dtype(name: str) -> _native.DType:
    dtype = _DTYPES.get(name)
    if dtype is None:
        raise UsageError(f"dtype must be one of {', '.join(_DTYPES)}, got {name}")
    return dtype


def _numpy_piece(array: np.ndarray[Any, Any], op: _native.ReduceOp) -> _native.Piece:
    flags = _unmasked(array).flags
    if not flags.writeable:
        raise UsageError("array must be writable: collectives work in place")
    if not flags.c_contiguous:  # column-major arrays too: a peer's rows would meet our columns
        raise UsageError(
            f"array must be contiguous, got strides {array.strides} for shape {array.shape}"
        )
    if not array.dtype.isnative:
        raise UsageError(f"dtype must have native byte order, got {array.dtype.str}")
    dtype = _dtype(array.dtype.name)
    return _native.Piece(array.__array_interface__["data"][0], array.size, dtype, op)


def _torch_piece(tensor: Any, op: _native.ReduceOp) -> _native.Piece:
    require_dense(tensor)
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        raise UsageError(
            f"tensor must be contiguous and not lazily conjugated, got strides "
            f"{tuple(tensor.stride())} for shape {tuple(tensor.shape)}"
        )
    dtype = _dtype(str(tensor.dtype).removeprefix("torch."))
    return _native.Piece(tensor.data_ptr(), tensor.numel(), dtype, op)


def _dlpack_piece(array: Any, op: _native.ReduceOp) -> _native.Piece:
    if not hasattr(array, "__dlpack__"):
        raise UsageError(
            "array must be a NumPy array, a torch tensor or offer DLPack, "
            f"got {type(array).__name__}"
        )
    try:
        view = np.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise UsageError(f"array cannot be read through DLPack: {error}") from error
    return _numpy_piece(view, op)
