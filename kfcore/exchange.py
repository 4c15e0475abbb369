"""Messages, uneven collectives and Python objects, for sessions and groups."""

import hashlib
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from kfcore import _native
from kfcore.checks import whole_number
from kfcore.errors import UsageError
from kfcore.rows import RowCollectives
from kfcore.staging import local, new_like, stage

__all__ = ["Exchange"]

Array = Any
MAX_OBJECT_BYTES = 1 << 32


class Exchange(RowCollectives):
    """Operations between two ranks, and those where ranks have different amounts of data."""

    def send(
        self,
        array: Array,
        peer: int,
        tag: int = 0,
        *,
        timeout_s: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Send an array to another rank, which calls :meth:`recv`.

        Messages of one sender, receiver and tag are matched in order. A message of up to 64 KiB
        is done before the receiver has asked for it, a larger one is not.

        Args:
            array: May be read-only and of any strides.
            peer: Rank to send to, not this one.
            tag: Any whole number of 64 bits.
            timeout_s: Longest time to wait, in seconds; default: the session's.
            async_op: Return a :class:`~kfcore.handle.Handle` at once.

        Returns:
            None, or the handle.

        Raises:
            UsageError: The array, peer or tag is not usable.
            MismatchError: The receiver expects another type or size.
            PeerLostError: A peer died or closed its session.
            DeadlineError: The time is over.
        """
        staged = stage([array], writes=False)
        call = _native.call("broadcast", staged.pieces, 0, "", [], self._site())
        place = (_native.start_send, *_place(peer, tag))
        return self._start(call, "send", staged, lambda: None, timeout_s, async_op, place)

    def recv(
        self,
        array: Array,
        peer: int,
        tag: int = 0,
        *,
        timeout_s: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Receive an array from another rank, in place.

        Args:
            array: Of the type and size that is sent; any strides.
            peer: Rank that sends, not this one.
            tag: The sender's.
            timeout_s: Longest time to wait, in seconds; default: the session's.
            async_op: Return a :class:`~kfcore.handle.Handle` at once.

        Returns:
            ``array`` itself, or the handle.

        Raises:
            UsageError: The array, peer or tag is not usable.
            MismatchError: The sender sends another type or size.
            PeerLostError: A peer died or closed its session.
            DeadlineError: The time is over.
        """
        staged = stage([array])
        call = _native.call("broadcast", staged.pieces, 0, "", [], self._site())
        place = (_native.start_receive, *_place(peer, tag))
        return self._start(call, "recv", staged, lambda: array, timeout_s, async_op, place)

    def all_gather_uneven(
        self,
        rows: Array,
        counts: Sequence[int] | None = None,
        *,
        name: str | None = None,
        timeout_s: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Concatenate the rows of all ranks, each of which may have another number of them.

        Args:
            rows: ``[counts[rank], ...]``; same type and ``shape[1:]`` on every rank.
            counts: Rows of each rank, the same list on every rank; default: the ranks tell each
                other first, which blocks.
            name: See :meth:`all_reduce`.
            timeout_s: Longest time to wait, in seconds; default: the session's.
            async_op: Return a :class:`~kfcore.handle.Handle` at once.

        Returns:
            New array ``[sum(counts), ...]``, in the order of the ranks.

        Raises:
            UsageError: ``rows`` has no first axis, or ``counts`` does not fit it.
            MismatchError: Ranks called different operations, or gave different ``counts``.
            PeerLostError: A peer died or closed its session.
            DeadlineError: The time is over.
        """
        mine = local(rows)
        if mine.ndim == 0:
            raise UsageError("rows need a first axis, got an array without axes")
        width = int(np.prod(mine.shape[1:], dtype=np.int64))
        have = self._all_counts([mine.shape[0]], name, timeout_s) if counts is None else counts
        have = [whole_number(count, "counts", bits=64) for count in have]
        if len(have) != self._size or min(have) < 0 or have[self._rank] != mine.shape[0]:
            raise UsageError(
                f"counts must have {self._size} entries >= 0 and {mine.shape[0]} for this "
                f"rank, got {have}"
            )
        out = new_like(mine, (sum(have), *mine.shape[1:]))
        begin = sum(have[: self._rank])
        out[begin : begin + mine.shape[0]] = mine
        return self._perform(
            "all_gather",
            [out],
            lambda: out,
            blocks=[count * width for count in have],
            name=name,
            timeout_s=timeout_s,
            async_op=async_op,
        )

    def all_to_all_uneven(
        self,
        rows: Array,
        counts: Sequence[int] | Sequence[Sequence[int]],
        *,
        name: str | None = None,
        timeout_s: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Send some rows to each rank, any number to any.

        Args:
            rows: Rows for rank 0, then for rank 1 and so on; same type and ``shape[1:]`` on
                every rank.
            counts: Rows for each rank, which the ranks tell each other first, and block for it;
                or the whole table ``[source][destination]``, the same on every rank.
            name: See :meth:`all_reduce`.
            timeout_s: Longest time to wait, in seconds; default: the session's.
            async_op: Return a :class:`~kfcore.handle.Handle` at once.

        Returns:
            New array: rows from rank 0, then from rank 1 and so on.

        Raises:
            UsageError: ``counts`` does not fit ``rows``.
            MismatchError: Ranks called different operations, or have rows of different sizes.
            PeerLostError: A peer died or closed its session.
            DeadlineError: The time is over.
        """
        mine = local(rows)
        size = self._size
        given = np.asarray(counts)
        if given.shape not in ((size,), (size, size)) or given.dtype.kind not in "iu":
            raise UsageError(
                f"counts must be {size} or {size} x {size} whole numbers, got {counts}"
            )
        own = given if given.ndim == 1 else given[self._rank]
        if mine.ndim == 0 or own.min() < 0 or own.sum() != mine.shape[0]:
            raise UsageError(
                f"counts must be >= 0 and add up to the rows of this rank, got {own.tolist()} "
                f"for shape {tuple(mine.shape)}"
            )
        if given.ndim == 1:
            given = np.asarray(self._all_counts(own.tolist(), name, timeout_s))
        table = given.reshape(size, size).astype(np.int64)
        width = int(np.prod(mine.shape[1:], dtype=np.int64))
        out = new_like(mine, (int(table[:, self._rank].sum()), *mine.shape[1:]))
        return self._exchange(
            mine,
            out,
            (table * width).ravel().tolist(),
            name=name,
            timeout_s=timeout_s,
            async_op=async_op,
        )

    def consensus(
        self, data: bytes, *, name: str | None = None, timeout_s: float | None = None
    ) -> bool:
        """Whether all ranks hold equal bytes.

        Compares SHA-256 digests: 64 bytes travel, whatever the length of ``data``.

        Args:
            data: Any bytes.
            name: See :meth:`all_reduce`.
            timeout_s: Longest time to wait, in seconds; default: the session's.

        Returns:
            The same answer on every rank.

        Raises:
            UsageError: ``data`` is no bytes object.
            MismatchError: Ranks called different operations.
            PeerLostError: A peer died or closed its session.
            DeadlineError: The time is over.
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise UsageError(f"data must be bytes, got {type(data).__name__}")
        digest = np.frombuffer(hashlib.sha256(data).digest(), np.uint8)
        # equal everywhere exactly when the largest is the smallest
        both = np.concatenate([digest, ~digest])
        self.all_reduce(both, "max", name=name, timeout_s=timeout_s)
        return bool((both[:32] == ~both[32:]).all())

    def broadcast_object(
        self,
        value: Any = None,
        root: int = 0,
        *,
        max_bytes: int = MAX_OBJECT_BYTES,
        name: str | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Copy a Python object to all ranks by pickling it.

        Args:
            value: The object; counts on the root only.
            root: Rank that has it.
            max_bytes: Longest pickle that is sent.
            name: See :meth:`all_reduce`.
            timeout_s: Longest time to wait, in seconds; default: the session's.

        Returns:
            ``value`` itself on the root, a copy elsewhere.

        Raises:
            UsageError: The object cannot be pickled or is too large; raised on every rank, and
                the session goes on.
            MismatchError: Ranks called different operations.
            PeerLostError: A peer died or closed its session.
            DeadlineError: The time is over.
        """
        options: dict[str, Any] = {"name": name, "timeout_s": timeout_s}
        data, problem = _pickled(value) if self._rank == root else (b"", "")
        length = np.array([-1 if problem else len(data)], np.int64)
        self.broadcast(length, root, **options)
        if length[0] < 0:
            raise UsageError(problem or f"rank {root} could not pickle its object")
        if length[0] > max_bytes:
            raise UsageError(
                f"an object to broadcast may have {max_bytes} bytes, rank {root}'s has "
                f"{length[0]}"
            )
        buffer = (
            np.frombuffer(data, np.uint8)
            if self._rank == root
            else np.empty(int(length[0]), np.uint8)
        )
        self.broadcast(buffer, root, **options)
        if self._rank == root:
            return value
        return pickle.loads(buffer.data)  # noqa: S301 - from a rank that holds the job's secret

    def _all_counts(
        self, mine: Sequence[int], name: str | None, timeout_s: float | None
    ) -> list[int]:
        told = self.all_gather(np.array(mine, np.int64), name=name, timeout_s=timeout_s)
        counts: list[int] = told.ravel().tolist()
        return counts


def _place(peer: int, tag: int) -> tuple[int, int]:
    return whole_number(peer, "peer"), whole_number(tag, "tag", bits=64)


def _pickled(value: Any) -> tuple[bytes, str]:
    try:
        return pickle.dumps(value, protocol=5), ""
    except Exception as error:
        return b"", f"the object cannot be pickled: {error}"
