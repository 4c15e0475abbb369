"""The mean of gradients over all ranks in fewer bytes, with error feedback.

What coding loses is kept and added to the next step's gradient, so that it is late, not lost.
``f16``, ``bf16`` and ``int8``: each rank sends each peer the coded chunk which that peer
averages (all-to-all), and gets the averages, coded again, from all (all-gather). ``top_k``: the
largest elements of each rank go to all. Every rank decodes the same bytes: all hold equal bits.
Source: Seide et al., "1-bit SGD", Interspeech 2014 (error feedback); Tang et al., "1-bit Adam",
ICML 2021, section 4.3 (feedback on both ways); Aji and Heafield, "Sparse communication for
distributed gradient descent", EMNLP 2017 (top-k).
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kfcore.compression.codecs import CODECS, RowCodec, largest, scatter_sum
from kfcore.compression.spec import Compression

__all__ = ["CompressedMean", "RowSession"]

Floats = NDArray[np.float32]


class RowSession(Protocol):
    """The collectives that compression needs."""

    @property
    def rank(self) -> int:
        """This worker."""
        ...

    @property
    def world_size(self) -> int:
        """All workers."""
        ...

    def all_to_all(self, rows: Any) -> Any:
        """Row i goes to rank i; row i of the result came from rank i."""
        ...

    def all_gather(self, array: Any) -> Any:
        """[world_size, ...], row = rank."""
        ...


class CompressedMean:
    """Averages gradients under one compression, and remembers what coding lost.

    The memory is this rank's own. A change of compression or of the ranks starts another one:
    what was not sent yet is dropped then.

    Args:
        session: Open.
        compression: Not ``none``.
    """

    def __init__(self, session: RowSession, compression: Compression) -> None:
        self._session = session
        self._compression = compression
        self._residual = np.zeros(0, np.float32)  # of what this rank sent
        self._mean_residual = np.zeros(0, np.float32)  # of the chunk this rank averaged
        self._next: tuple[Floats, Floats] | None = None

    def average(self, views: Sequence[NDArray[Any]]) -> None:
        """Replace gradients by their mean over all ranks, up to what coding loses.

        Args:
            views: Writable float arrays, the same shapes and types on every rank. They are
                added and coded in float32.
        """
        count = sum(view.size for view in views)
        ranks = self._session.world_size
        codec = CODECS.get(self._compression.kind)
        chunk = -(-count // ranks)
        if codec is not None:
            chunk = -(-chunk // codec.multiple) * codec.multiple
        padded = chunk * ranks if codec is not None else count
        if len(self._residual) != padded:
            self._residual = np.zeros(padded, np.float32)
            self._mean_residual = np.zeros(chunk if codec is not None else 0, np.float32)
        flat = self._residual.copy()
        at = 0
        for view in views:
            with np.errstate(over="ignore"):
                flat[at : at + view.size] += view.ravel()
            at += view.size
        if count == 0:
            return
        mean = self._scattered(flat, codec) if codec is not None else self._sparse(flat)
        at = 0
        for view in views:
            view[...] = mean[at : at + view.size].reshape(view.shape)
            at += view.size

    def keep(self, *, skipped: bool) -> None:
        """End the step: what was lost counts, unless nobody applies the step.

        Args:
            skipped: The gradient was not finite; the memory stays as it was before it.
        """
        if self._next is not None and not skipped:
            self._residual, self._mean_residual = self._next
        self._next = None

    def _scattered(self, flat: Floats, codec: RowCodec) -> Floats:
        ranks = self._session.world_size
        rows = flat.reshape(ranks, -1)
        coded = codec.encode(rows)
        with np.errstate(invalid="ignore", over="ignore"):
            rows -= codec.decode(coded)
            received = codec.decode(self._session.all_to_all(coded))
            chunk: Floats = received.sum(axis=0, dtype=np.float32)
            chunk /= np.float32(ranks)
            chunk += self._mean_residual
            mine = codec.encode(chunk[None, :])
            chunk -= codec.decode(mine)[0]
        gathered = self._session.all_gather(mine[0])
        self._next = (flat, chunk)
        return codec.decode(np.ascontiguousarray(gathered)).ravel()

    def _sparse(self, flat: Floats) -> Floats:
        coded = largest(flat, self._compression.fraction)
        places = coded[: len(coded) // 2].view(np.uint32)
        flat[places] = 0
        out = np.zeros(len(flat), np.float32)
        with np.errstate(invalid="ignore", over="ignore"):
            scatter_sum(self._session.all_gather(coded), out)
        out /= np.float32(self._session.world_size)
        self._next = (flat, self._mean_residual)
        return out
