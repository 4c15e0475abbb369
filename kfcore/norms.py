"""Squared norms of one step's gradient: inside the all-reduce, or beside it where need be."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfcore import _native
from kfcore.accumulation import MicroNorms
from kfcore.control import Vector
from kfcore.gradients import finite_norm

__all__ = ["StepNorms"]


class StepNorms:
    """|g_i|^2 of this rank's gradient and |G|^2 of the mean, of one step.

    Inside: the all-reduce sums both while the elements are in the cache, and writes the local
    one into the control block that travels with them. Beside: one pass before it and one after.

    Args:
        views: The gradients.
        inside: Whether the session can; float32 and float64 are summed so.
        local: Whether |g_i|^2 is wanted.
        divisor: Of both norms, > 0: the square of the loss scale.
        share: Weight that this rank's gradient has, > 0 where ``local``.
        micro: Norms of the micro-batches, which then stand for |g_i|^2.

    Attributes:
        local: |g_i|^2; NaN: not wanted, or not known yet; +inf: not finite.
    """

    __slots__ = ("_divisor", "_factor", "_inside", "_sums", "_views", "local")

    def __init__(
        self,
        views: Sequence[NDArray[Any]],
        *,
        inside: bool,
        local: bool,
        divisor: float = 1.0,
        share: float = 1.0,
        micro: MicroNorms | None = None,
    ) -> None:
        self._views, self._divisor = views, divisor
        self._inside = inside and all(view.dtype in _SUMMED for view in views)
        self._factor = 0.0  # of the local norm; 0: it is not asked of the all-reduce
        self._sums: _native.NormSums | None = None
        self.local = math.nan
        if not local:
            return
        if self._inside and micro is None:
            self._factor = 1 / (share**2 * divisor)
            return
        norm = 0.0 if self._inside else finite_norm(views) / share**2
        if micro is not None and math.isfinite(norm):
            norm = micro.mean_sq_norm
        self.local = norm / divisor

    def inside(self, sums: Vector) -> _native.NormSums | None:
        """What the all-reduce needs.

        Args:
            sums: This rank's control vector, reduced together with the gradients.

        Returns:
            For `Session.grouped_all_reduce`; None: nothing is summed inside.
        """
        if not self._inside:
            return None
        self._sums = (
            _native.NormSums(sums, self._factor) if self._factor else _native.NormSums()
        )
        return self._sums

    def mean(self) -> float:
        """|G|^2, once the gradients are averaged: the same bits on all ranks.

        Returns:
            The squared norm; +inf: not finite.
        """
        norm = finite_norm(self._views) if self._sums is None else self._sums.result()
        return norm / self._divisor if math.isfinite(norm) else math.inf


_SUMMED = (np.dtype(np.float32), np.dtype(np.float64))
