"""Models kept together after updates: local SGD, synchronous averaging, averaging in pairs."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kfcore.gradients import float_view
from kfcore.sync_mode import SyncMode

__all__ = ["ModelAverager", "ModelSession", "partner_of"]


class ModelSession(Protocol):
    """The operations that model averaging needs."""

    @property
    def rank(self) -> int:
        """This worker."""
        ...

    @property
    def world_size(self) -> int:
        """All workers."""
        ...

    def grouped_all_reduce(self, arrays: Sequence[Any], op: str) -> Any:
        """All-reduce several arrays in place."""
        ...

    def send(self, array: Any, peer: int, *, async_op: bool) -> Any:
        """Send an array; a handle when ``async_op``."""
        ...

    def recv(self, array: Any, peer: int) -> Any:
        """Receive an array in place."""
        ...


class ModelAverager:
    """Exchanges one worker's parameters with the others'.

    Args:
        session: Open, with other ranks.
        parameters: Writable float arrays or CPU tensors, the same shapes on every rank.

    Raises:
        UsageError: a parameter is not a float array.
    """

    def __init__(self, session: ModelSession, parameters: Sequence[Any]) -> None:
        self._session = session
        self._views = [float_view(parameter) for parameter in parameters]

    def exchange(self, mode: SyncMode, step: int) -> None:
        """One exchange; every rank calls it after the same step.

        Args:
            mode: One that averages models.
            step: Whose update was the last.
        """
        if mode.kind == "pair_averaging":
            self._in_pairs(step)
        elif mode.alpha == 1:
            self.equalise()
        else:
            self._towards_mean(mode.alpha)

    def equalise(self) -> None:
        """Give every rank the mean of all models, the same bits everywhere."""
        self._session.grouped_all_reduce(self._views, op="avg")

    def _towards_mean(self, alpha: float) -> None:
        means = [view.copy() for view in self._views]
        self._session.grouped_all_reduce(means, op="avg")
        for view, mean in zip(self._views, means, strict=True):
            view += alpha * (mean - view)  # noqa: PLW2901 - in place

    def _in_pairs(self, step: int) -> None:
        peer = partner_of(self._session.rank, self._session.world_size, step)
        if peer is None:
            return
        others: list[NDArray[Any]] = [np.empty_like(view, order="C") for view in self._views]
        sent = [self._session.send(view, peer, async_op=True) for view in self._views]
        for other in others:
            self._session.recv(other, peer)
        for handle in sent:
            handle.wait()
        for view, other in zip(self._views, others, strict=True):
            np.add(view, other, out=view)
            np.multiply(view, 0.5, out=view)


def partner_of(rank: int, world_size: int, step: int) -> int | None:
    """Who averages with whom after a step: a random pairing, the same on every rank.

    Args:
        rank: Who asks.
        world_size: Ranks.
        step: Any integer >= 0; seeds the pairing.

    Returns:
        The partner, uniformly drawn over steps; None for the one left over by an odd number.

    Example:
        >>> [partner_of(rank, 4, step=1) for rank in range(4)]
        [3, 2, 1, 0]
    """
    order = np.random.default_rng((step, world_size)).permutation(world_size).tolist()
    place = order.index(rank) ^ 1
    return order[place] if place < world_size else None
