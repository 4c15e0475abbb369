"""Gradients of several micro-batches, added up for one step with the norms of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfcore.errors import UsageError
from kfcore.gradients import finite_norm, float_view

__all__ = ["Accumulator", "MicroNorms"]


@dataclass(frozen=True)
class MicroNorms:
    """What a step's micro-batches looked like one by one.

    Attributes:
        count: Micro-batches, >= 1; the same on every rank.
        mean_sq_norm: Mean over them of |g|^2, of gradients of their mean losses.
    """

    count: int
    mean_sq_norm: float


class Accumulator:
    """Adds up one rank's micro-batch gradients for one `kfcore.Job.step`.

    Args:
        count: Micro-batches of a step, >= 1.
        divided: True when each loss was divided by ``count`` already; False when each is the
            mean loss of its micro-batch. Both give the same mean and the same monitors.

    Raises:
        UsageError: ``count`` is below 1.

    Example:
        >>> import numpy as np
        >>> halves = Accumulator(2)
        >>> halves.add([np.array([3.0, 0.0])])
        >>> halves.add([np.array([1.0, 0.0])])
        >>> halves.finish()
        ([array([2., 0.])], MicroNorms(count=2, mean_sq_norm=5.0))
    """

    def __init__(self, count: int, *, divided: bool = False) -> None:
        if count < 1:
            raise UsageError(f"count must be >= 1, got {count}")
        self._count, self._divided = count, divided
        self._sums: list[NDArray[Any]] = []
        self._sq_norms: list[float] = []

    def add(self, grads: Sequence[Any]) -> None:
        """Take in one micro-batch; the arrays are copied and may be used again.

        Args:
            grads: As `kfcore.Job.step` takes them.

        Raises:
            UsageError: they are not float arrays, their shapes changed, or there are more than
                ``count`` micro-batches.
        """
        views = [float_view(grad) for grad in grads]
        if len(self._sq_norms) == self._count:
            raise UsageError(f"a step has {self._count} micro-batches, got another one")
        if self._sums and [view.shape for view in views] != [one.shape for one in self._sums]:
            raise UsageError("the shapes of gradients changed between two micro-batches")
        self._sq_norms.append(finite_norm(views))
        if not self._sums:
            self._sums = [np.array(view) for view in views]
            return
        for whole, view in zip(self._sums, views, strict=True):
            np.add(whole, view, out=whole)

    def finish(self) -> tuple[list[NDArray[Any]], MicroNorms]:
        """The mean gradient and the norms of its parts; then it starts anew.

        Returns:
            What to give to ``job.step(grads, micro=norms)``.

        Raises:
            UsageError: not all micro-batches were added.
        """
        if len(self._sq_norms) != self._count:
            raise UsageError(
                f"a step has {self._count} micro-batches, got {len(self._sq_norms)}"
            )
        sums, norms = self._sums, self._sq_norms
        self._sums, self._sq_norms = [], []
        if not self._divided:
            for whole in sums:
                np.divide(whole, self._count, out=whole)
        scale = float(self._count) ** 2 if self._divided else 1.0
        return sums, MicroNorms(self._count, scale * sum(norms) / self._count)
