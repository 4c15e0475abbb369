"""Which samples each rank trains on: one rule for real jobs and simulated ones. Pure."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kfcore.errors import UsageError

__all__ = ["DataPass", "StepSamples", "part_of"]


def part_of(total: int, world_size: int, rank: int) -> tuple[int, int]:
    """A rank's part of ``total`` things in order; parts differ by at most one, larger first.

    Args:
        total: Things to cut, >= 0.
        world_size: Ranks, >= 1.
        rank: In [0, world_size).

    Returns:
        First place and the place after the last.

    Example:
        >>> [part_of(24, 5, rank) for rank in range(5)]
        [(0, 5), (5, 10), (10, 15), (15, 20), (20, 24)]
    """
    each, more = divmod(total, world_size)
    begin = rank * each + min(rank, more)
    return begin, begin + each + (rank < more)


@dataclass(frozen=True)
class StepSamples:
    """The samples of one step, over all ranks.

    Attributes:
        indices: [samples] int64, of all ranks, in order of rank; at least one.
        world_size: Ranks they are cut for; sizes differ by at most one, larger parts first.
    """

    indices: NDArray[np.int64]
    world_size: int

    def of(self, rank: int) -> NDArray[np.int64]:
        """A rank's part; empty for the last ranks where there are fewer samples than ranks.

        Args:
            rank: In [0, world_size).

        Returns:
            [batch] int64.
        """
        begin, end = part_of(len(self.indices), self.world_size, rank)
        return self.indices[begin:end]

    def batch(self, rank: int) -> NDArray[np.int64]:
        """What a rank computes on: its part, or where that is empty one stand-in sample.

        A stand-in gives the gradient its shape; its weight is 0, so it is not trained on.

        Args:
            rank: In [0, world_size).

        Returns:
            [batch] int64, never empty.
        """
        part = self.of(rank)
        return part if len(part) else self.indices[:1]

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

    Each sample is used exactly once, however world size and batch change on the way. Where
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
        >>> last = data.take(2, 4)
        >>> last.of(0), last.of(1), last.weight(1)
        (array([4]), array([], dtype=int64), 0.0)
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
        self._position = 0

    @property
    def position(self) -> int:
        """Samples handed out."""
        return self._position

    @property
    def remaining(self) -> int:
        """Samples not yet handed out."""
        return len(self._order) - self._position

    def seek(self, position: int) -> None:
        """Go on from another place of the same order.

        Args:
            position: Samples that count as handed out, in [0, n_samples].

        Raises:
            UsageError: there is no such place.
        """
        if not 0 <= position <= len(self._order):
            raise UsageError(f"position must be in [0, {len(self._order)}], got {position}")
        self._position = position

    def take(self, world_size: int, global_batch: int) -> StepSamples | None:
        """The samples of the next step.

        Args:
            world_size: Ranks, >= 1.
            global_batch: Samples wanted, >= 1.

        Returns:
            That many, or all that are left; None when none are.

        Raises:
            UsageError: an argument is below 1.
        """
        if min(world_size, global_batch) < 1:
            raise UsageError(
                f"world_size and global_batch must be >= 1, got {world_size}, {global_batch}"
            )
        total = min(global_batch, self.remaining)
        if total == 0:
            return None
        self._position += total
        return StepSamples(self._order[self._position - total : self._position], world_size)

    def give_back(self, samples: NDArray[np.int64]) -> None:
        """Take samples back that were handed out and not trained on; they come next.

        Args:
            samples: [n] int64, some of those handed out.

        Raises:
            UsageError: one of them was not handed out.
        """
        head = self._order[: self._position]
        back = np.isin(head, samples)
        if int(back.sum()) != len(samples):
            raise UsageError(f"of {len(samples)} samples {int(back.sum())} were handed out")
        # a new array: batches that were handed out look at the old one
        self._order = np.concatenate([head[~back], samples, self._order[self._position :]])
        self._position -= len(samples)
