"""Tensors as the core can move and reduce them."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from kfcore.errors import UsageError

__all__ = ["flat", "movable", "op_name", "rows_of"]

_NAMES = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.PRODUCT: "prod",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.AVG: "avg",
    dist.ReduceOp.BAND: "band",
    dist.ReduceOp.BOR: "bor",
    dist.ReduceOp.BXOR: "bxor",
}
_CORE_TYPES = {
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.complex64,
    torch.complex128,
}


def op_name(op: Any) -> str:
    """The core's name of a reduce operator.

    Args:
        op: A ``dist.ReduceOp``, or an options object's.

    Returns:
        ``sum prod min max avg``, or ``band bor bxor`` of which the caller must take care.

    Raises:
        UsageError: The operator has no counterpart, as NCCL's PREMUL_SUM.
    """
    kind = getattr(op, "op", op)
    name = _NAMES.get(kind)
    if name is None:
        raise UsageError(
            f"reduce operator must be one of {', '.join(_NAMES.values())}, got {op}"
        )
    return name


def movable(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of a type that the core can move without looking into it.

    Args:
        tensor: Of any type.

    Returns:
        The tensor, or its bytes where the type is none of the core's (float8, uint16, ...).

    Raises:
        UsageError: Of such a type and not contiguous.
    """
    if tensor.dtype in _CORE_TYPES:
        return tensor
    if not tensor.is_contiguous():
        raise UsageError(f"a tensor of {tensor.dtype} must be contiguous")
    return tensor.reshape(-1).view(torch.uint8)


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in one row: the same memory if they lie so, else a copy."""
    return movable(tensor.detach().contiguous()).reshape(-1)


def rows_of(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """One matrix of equally large tensors, a row each.

    Args:
        tensors: At least one; of one type.

    Returns:
        A copy.

    Raises:
        UsageError: They differ in size.
    """
    sizes = {tensor.numel() for tensor in tensors}
    if len(sizes) != 1:
        raise UsageError(f"tensors must have one size, got {sorted(sizes)} elements")
    return torch.stack([flat(tensor) for tensor in tensors])
