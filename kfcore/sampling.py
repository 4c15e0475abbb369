"""Which samples each rank trains on: one rule for real jobs and simulated ones. Pure."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kfcore.errors import UsageError

__all__ = ["DataPass", "StepSamples"]


@dataclass(frozen=True)
class StepSamples:
    """The samples of one step, over all ranks.

    Attributes:
        indices: [samples] int64, of all ranks, in order of rank.
        world_size: Ranks they are cut for; sizes differ by at most one.
    """

    indices: NDArray[np.int64]
    world_size: int

    def of(self, rank: int) -> NDArray[np.int64]:
        """A rank's part; never empty.

        Args:
            rank: In [0, world_size).

        Returns:
            [batch] int64.
        """
        total = len(self.indices)
        begin = total * rank // self.world_size
        return self.indices[begin : total * (rank + 1) // self.world_size]

    def weight(self, rank: int) -> float:
        """Factor on a rank's mean gradient that makes the mean over ranks exact.

        Args:
            rank: In [0, world_size).

        Returns:
            ``len(of(rank)) * world_size / len(indices)``; 1 when the cut is even.
        """
        return len(self.of(rank)) * self.world_size / len(self.indices)


class DataPass:
    """One pass over a data set, cut into steps of whatever size is wanted at the time.

    Each sample is used once, except fewer than ``world_size`` that may remain at the end. Where
    fewer than a global batch are left, the ranks share them as evenly as can be.

    Args:
        n_samples: Samples of the data set, >= 0.
        seed: Of the order, >= 0.
        epoch: Number of the pass, >= 0; each has another order.
        shuffle: False: in order of index.

    Raises:
        UsageError: an argument is negative.

    Example:
        >>> data = DataPass(5, seed=0, epoch=0, shuffle=False)
        >>> step = data.take(2, 4)
        >>> step.of(0), step.of(1)
        (array([0, 1]), array([2, 3]))
        >>> data.take(2, 4) is None
        True
    """

    def __init__(self, n_samples: int, *, seed: int, epoch: int, shuffle: bool = True) -> None:
        if min(n_samples, seed, epoch) < 0:
            raise UsageError(
                f"n_samples, seed and epoch must be >= 0, got {n_samples}, {seed}, {epoch}"
            )
        rng = np.random.default_rng([seed, epoch])
        self._order = rng.permutation(n_samples) if shuffle else np.arange(n_samples)
        self._cursor = 0

    def take(self, world_size: int, global_batch: int) -> StepSamples | None:
        """The samples of the next step.

        Args:
            world_size: Ranks, >= 1.
            global_batch: Samples wanted, >= world_size.

        Returns:
            That many, or all that are left; None when not every rank could have one.
        """
        total = min(global_batch, len(self._order) - self._cursor)
        if total < world_size:
            return None
        self._cursor += total
        return StepSamples(self._order[self._cursor - total : self._cursor], world_size)
