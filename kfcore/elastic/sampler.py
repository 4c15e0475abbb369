"""Passes over a data set that survive any change of the number of workers."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfcore.errors import UsageError
from kfcore.sampling import DataPass, StepSamples

__all__ = ["ElasticSampler", "pass_over"]

_FIXED = ("n_samples", "seed", "shuffle")


class ElasticSampler:
    """Hands out each sample exactly once a pass, whatever the workers do meanwhile.

    Every worker holds an equal copy. The order depends on seed and pass alone, so it is the
    same at every world size. The position is one number for all ranks: a state saved in the
    middle of a pass resumes there at any other world size.

    Args:
        n_samples: Samples of the data set, >= 1.
        seed: Of the order, >= 0.
        shuffle: False: in order of index.
        global_batch: Samples of all ranks a step, whatever their number; None: as many as
            `take` is asked for.

    Raises:
        UsageError: an argument is out of range.

    Example:
        >>> sampler = ElasticSampler(10, shuffle=False, global_batch=4)
        >>> [list(sampler.take(3).of(rank)) for rank in range(3)]
        [[0, 1], [2], [3]]
        >>> [list(sampler.take(2).of(rank)) for rank in range(2)]
        [[4, 5], [6, 7]]
        >>> sampler.state_dict()["position"], sampler.samples
        (8, 8)
    """

    def __init__(
        self,
        n_samples: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        global_batch: int | None = None,
    ) -> None:
        if n_samples < 1:
            raise UsageError(f"n_samples must be >= 1, got {n_samples}")
        if global_batch is not None and global_batch < 1:
            raise UsageError(f"global_batch must be >= 1, got {global_batch}")
        self.n_samples, self.seed, self.shuffle = n_samples, seed, shuffle
        self.global_batch = global_batch
        self.epoch = 0
        self._returned: list[list[Any]] = []  # position before, and samples, in order
        self._pass = self._open()

    @property
    def position(self) -> int:
        """Samples of this pass that were handed out."""
        return self._pass.position

    @property
    def samples(self) -> int:
        """Samples handed out in all passes together: what learning rates are keyed to."""
        return self.epoch * self.n_samples + self.position

    @property
    def exhausted(self) -> bool:
        """Whether this pass is over; `next_epoch` begins another."""
        return self._pass.remaining == 0

    def take(self, world_size: int, global_batch: int | None = None) -> StepSamples | None:
        """The samples of the next step, for all ranks.

        Args:
            world_size: Ranks now, >= 1.
            global_batch: Samples wanted, >= 1; only where the sampler has no constant one.

        Returns:
            The step's samples, fewer at the end of the pass; None when the pass is over.

        Raises:
            UsageError: an argument is out of range, or no global batch is known.
        """
        wanted = self.global_batch if self.global_batch is not None else global_batch
        if wanted is None:
            raise UsageError("give take() a global_batch, or the sampler a constant one")
        return self._pass.take(world_size, wanted)

    def foresee(
        self, rank: int, world_size: int, global_batch: int | None = None
    ) -> Iterator[NDArray[np.int64]]:
        """What later calls of `take` in this pass give a rank if nothing changes till then.

        Args:
            rank: In [0, world_size).
            world_size: Ranks, >= 1.
            global_batch: As for `take`.

        Yields:
            [batch] int64, as `StepSamples.batch`.

        Raises:
            UsageError: as `take`.
        """
        later = copy.copy(self)
        later._pass = copy.copy(self._pass)  # of a pass only the position changes in place
        while (taken := later.take(world_size, global_batch)) is not None:
            yield taken.batch(rank)

    def give_back(self, samples: NDArray[np.int64]) -> None:
        """Take samples back that a lost worker did not train on; they come next.

        Args:
            samples: [n] int64, some of those handed out in this pass; the same on every worker.

        Raises:
            UsageError: one of them was not handed out.
        """
        position = self.position
        self._pass.give_back(samples)
        self._returned.append([position, [int(sample) for sample in samples]])

    def next_epoch(self) -> None:
        """Begin the next pass."""
        self.epoch += 1
        self._returned = []
        self._pass = self._open()

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to go on from here, at any world size."""
        return {
            "n_samples": self.n_samples,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "epoch": self.epoch,
            "position": self.position,
            "returned": [[position, list(samples)] for position, samples in self._returned],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another sampler of the same data was.

        Args:
            state: What `state_dict` gave.

        Raises:
            UsageError: it belongs to other data or another order, or is malformed.
        """
        names = (*_FIXED, "epoch", "position", "returned")
        state = {"returned": [], **state}  # older states have none
        if sorted(state) != sorted(names):
            raise UsageError(f"a sampler's state has {sorted(names)}, got {sorted(state)}")
        for name in _FIXED:
            if state[name] != getattr(self, name):
                raise UsageError(
                    f"the state is of a sampler with {name} {state[name]}, "
                    f"this one has {getattr(self, name)}"
                )
        epoch, returned = state["epoch"], state["returned"]
        data = self._pass
        if epoch != self.epoch or returned != self._returned:
            # ordering a large data set anew takes a while
            data = DataPass(self.n_samples, seed=self.seed, epoch=epoch, shuffle=self.shuffle)
            for position, samples in returned:
                data.seek(position)
                data.give_back(np.asarray(samples, np.int64))
        data.seek(state["position"])
        self.epoch, self._pass, self._returned = epoch, data, [list(r) for r in returned]

    def _open(self) -> DataPass:
        return DataPass(self.n_samples, seed=self.seed, epoch=self.epoch, shuffle=self.shuffle)


def pass_over(
    n_samples: int, seed: int, shuffle: bool, epoch: int, old: ElasticSampler | None
) -> ElasticSampler:
    """A sampler at the beginning of a pass.

    Args:
        n_samples: Samples of the data set, >= 1.
        seed: Of the order, >= 0.
        shuffle: False: in order of index.
        epoch: Number of the pass, >= 0.
        old: One that stands there already is taken as it is.

    Returns:
        The sampler.

    Raises:
        UsageError: an argument is out of range.
    """
    wanted = (n_samples, seed, shuffle)
    if old is None or (old.n_samples, old.seed, old.shuffle) != wanted:
        old = ElasticSampler(n_samples, seed=seed, shuffle=shuffle)
    if old.epoch != epoch:
        old.load_state_dict({**old.state_dict(), "epoch": epoch, "position": 0, "returned": []})
    return old
