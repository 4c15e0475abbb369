"""Flat memory for many tensors, shared with the ranks of this host where the type allows."""

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from kfcore.errors import UsageError
from kfcore.memory import empty

__all__ = ["Flat", "flat_memory", "parameters_of"]

_NUMPY = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.float16: np.float16,
}
_ALIGN = 16  # elements: every tensor begins at a multiple of it


def flat_memory(count: int, dtype: torch.dtype) -> torch.Tensor:
    """A row of zeros that peers of this host can read in place.

    Args:
        count: Elements, >= 0.
        dtype: Any; types that NumPy does not know lie in ordinary memory.

    Returns:
        [count], zero.
    """
    kind = _NUMPY.get(dtype)
    if kind is None or count == 0:
        return torch.zeros(count, dtype=dtype)
    return torch.from_numpy(empty(count, kind)).zero_()


class Flat:
    """Room for tensors of one type, one behind the other.

    Args:
        like: Tensors whose sizes and type count, at least one.
    """

    def __init__(self, like: Sequence[torch.Tensor]) -> None:
        begins, end = [], 0
        for tensor in like:
            begins.append(end)
            end += math.ceil(tensor.numel() / _ALIGN) * _ALIGN
        self.memory = flat_memory(end, like[0].dtype)
        self.views = [
            self.memory[begin : begin + tensor.numel()].view(tensor.shape)
            for begin, tensor in zip(begins, like, strict=True)
        ]
        self._like = list(like)

    @classmethod
    def by_type(cls, like: Iterable[torch.Tensor]) -> "list[Flat]":
        """One `Flat` for each type, in order of appearance."""
        kinds: dict[torch.dtype, list[torch.Tensor]] = {}
        for tensor in like:
            kinds.setdefault(tensor.dtype, []).append(tensor)
        return [cls(tensors) for tensors in kinds.values()]

    @torch.no_grad()
    def pack(self) -> torch.Tensor:
        """Copy the tensors in.

        Returns:
            The memory.
        """
        torch._foreach_copy_(self.views, self._like)
        return self.memory

    @torch.no_grad()
    def unpack(self) -> None:
        """Copy the memory back into the tensors."""
        torch._foreach_copy_(self._like, self.views)


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The parameters that an optimizer trains, in order.

    Args:
        optimizer: Any.

    Returns:
        Those that require a gradient.

    Raises:
        UsageError: There is none, or one that does not lie in CPU memory.
    """
    found = [
        parameter
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.requires_grad
    ]
    if not found:
        raise UsageError("the optimizer has no parameter that requires a gradient")
    for parameter in found:
        if parameter.device.type != "cpu":
            raise UsageError(f"parameters must lie in CPU memory, got {parameter.device}")
    return found
