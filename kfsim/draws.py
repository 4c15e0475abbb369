"""Random draws that do not disturb each other: one stream a purpose and rank."""

import zlib

import numpy as np
from numpy.typing import NDArray

__all__ = ["RankNormals", "stream"]

_BLOCK_STEPS = 64


def stream(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """A generator of its own for one purpose.

    Args:
        seed: Of the run.
        purpose: E.g. ``jitter``. Its name is hashed by CRC-32, never by Python's hash, which
            changes from process to process.
        *numbers: E.g. repeat and rank, each >= 0.

    Returns:
        The generator: the same for the same arguments, whatever else is drawn.
    """
    key = (zlib.crc32(purpose.encode()), *numbers)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


class RankNormals:
    """Standard normal draws by step and rank; a new rank leaves the others' draws alone.

    Args:
        seed: Of the run.
        purpose: Of the draws.
        repeat: Number of the repetition.
    """

    def __init__(self, seed: int, purpose: str, repeat: int) -> None:
        self._seed, self._purpose, self._repeat = seed, purpose, repeat
        self._streams: list[np.random.Generator] = []
        self._table = np.empty((0, _BLOCK_STEPS))
        self._block = 0

    def at(self, step: int, world_size: int) -> NDArray[np.float64]:
        """Draws of one step.

        Args:
            step: From 0, never decreasing.
            world_size: Ranks, >= 1.

        Returns:
            [world_size] float64.
        """
        block, place = divmod(step, _BLOCK_STEPS)
        while self._block < block:
            self._table = np.array([g.standard_normal(_BLOCK_STEPS) for g in self._streams])
            self._block += 1
        if len(self._streams) < world_size:
            fresh = [self._join(rank) for rank in range(len(self._streams), world_size)]
            self._table = np.vstack([self._table.reshape(-1, _BLOCK_STEPS), *fresh])
        draws: NDArray[np.float64] = self._table[:world_size, place]
        return draws

    def _join(self, rank: int) -> NDArray[np.float64]:
        """Opens a rank's stream and brings it to the current block."""
        generator = stream(self._seed, self._purpose, self._repeat, rank)
        self._streams.append(generator)
        for _ in range(self._block):
            generator.standard_normal(_BLOCK_STEPS)
        return generator.standard_normal(_BLOCK_STEPS)
