"""Data loading ahead of a loop whose batches may turn out otherwise than was foreseen."""

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kfcore.errors import UsageError

__all__ = ["Feed"]

Indices = NDArray[np.int64]
_OURS = ("batch_sampler", "batch_size", "shuffle", "sampler", "drop_last")


class Feed:
    """Loads batches with a `torch.utils.data.DataLoader` that works ahead on a guess.

    Its workers load what the next steps need if the members and the batch size stay. When a
    step needs something else, what was loaded ahead is dropped and the guess is made anew.

    Args:
        dataset: With ``__getitem__``, as the loader takes it.
        **options: Of the loader, such as ``num_workers`` and ``persistent_workers``.

    Raises:
        UsageError: an option would choose the samples.
    """

    def __init__(self, dataset: Any, **options: Any) -> None:
        wrong = [name for name in _OURS if name in options]
        if wrong:
            raise UsageError(
                f"{', '.join(wrong)}: the elastic sampler chooses the samples of a batch; give "
                "it a global_batch or the job a local_batch"
            )
        self._ahead: deque[Indices] = deque()  # foreseen, in order
        self._asked = 0  # of these the loader has asked for so many
        self._plan: Iterator[Indices] = iter(())
        self._loader = torch.utils.data.DataLoader(dataset, batch_sampler=self, **options)
        self._loaded: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[list[int]]:
        """What the loader shall load next, batch by batch; it asks as far ahead as it works."""
        while self._look(self._asked):
            self._asked += 1
            yield self._ahead[self._asked - 1].tolist()

    def take(self, indices: Indices, foresee: Callable[[], Iterator[Indices]]) -> Any:
        """One batch.

        Args:
            indices: Its samples.
            foresee: Gives what the steps after it need if nothing changes.

        Returns:
            The collated samples.
        """
        loaded = self._loaded
        if loaded is None or not self._look(0) or not np.array_equal(self._ahead[0], indices):
            self._loaded = loaded = None  # ends its workers, unless they are persistent
            self._ahead, self._asked = deque([indices]), 0
            self._plan = foresee()
            self._loaded = loaded = iter(self._loader)
        batch = next(loaded)
        self._ahead.popleft()
        self._asked -= 1
        return batch

    def _look(self, place: int) -> bool:
        """Whether so many more batches are foreseen."""
        if place == len(self._ahead):
            self._ahead.extend(itertools.islice(self._plan, 1))
        return place < len(self._ahead)
