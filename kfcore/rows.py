"""Collectives over arrays with a row for each rank.

What comes back is of the kind that went in: tensors for tensors, else NumPy arrays.
"""

from typing import Any

from kfcore import _native
from kfcore.collectives import Collectives
from kfcore.errors import UsageError
from kfcore.staging import copy_of, local, new_like, stage

__all__ = ["RowCollectives"]

Array = Any


class RowCollectives(Collectives):
    """Operations that collect, hand out or exchange equally large rows."""

    def all_gather(
        self,
        array: Array,
        *,
        name: str | None = None,
        timeout_s: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Collect every rank's array on every rank.

        Args:
            array: Same type and shape on every rank.
            name: Operations of one name are matched with each other, whatever the order of
                other operations. Unnamed ones are matched in the order of the calls.
            timeout_s: Longest time to wait, in seconds; default: the session's.
            async_op: Return a :class:`~kfcore.handle.Handle` at once.

        Returns:
            New array ``[size, *array.shape]``, row = rank.

        Raises:
            UsageError: The array is not usable.
            MismatchError: Ranks called different operations; raised on every rank.
            PeerLostError: A peer died or closed its session.
            DeadlineError: The time is over; the text names the ranks waited for.
        """
        out = self._with_row(array)
        return self._perform(
            "all_gather", [out], lambda: out, name=name, timeout_s=timeout_s, async_op=async_op
        )

    def gather(
        self,
        array: Array,
        root: int = 0,
        *,
        name: str | None = None,
        timeout_s: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Collect every rank's array on the root.

        Args:
            array: Same type and shape on every rank.
            root: Rank that gets the rows.
            name: Operations of one name are matched with each other, whatever the order of
                other operations. Unnamed ones are matched in the order of the calls.
            timeout_s: Longest time to wait, in seconds; default: the session's.
            async_op: Return a :class:`~kfcore.handle.Handle` at once.

        Returns:
            On the root a new array ``[size, *array.shape]``, row = rank; else None.

        Raises:
            UsageError: The array or root is not usable.
            MismatchError: Ranks called different operations; raised on every rank.
            PeerLostError: A peer died or closed its session.
            DeadlineError: The time is over; the text names the ranks waited for.
        """
        out = self._with_row(array)
        return self._perform(
            "gather",
            [out],
            lambda: out if self._rank == root else None,
            root=root,
            name=name,
            timeout_s=timeout_s,
            async_op=async_op,
        )

    def scatter(
        self,
        rows: Array,
        root: int = 0,
        *,
        name: str | None = None,
        timeout_s: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Give each rank its row of the root's array.

        Args:
            rows: ``[size, ...]``, row = rank; same type and shape on every rank, its contents
                count on the root only.
            root: Rank that has the rows.
            name: Operations of one name are matched with each other, whatever the order of
                other operations. Unnamed ones are matched in the order of the calls.
            timeout_s: Longest time to wait, in seconds; default: the session's.
            async_op: Return a :class:`~kfcore.handle.Handle` at once.

        Returns:
            New array ``rows.shape[1:]``.

        Raises:
            UsageError: ``rows`` has another length than there are ranks, or is not usable.
            MismatchError: Ranks called different operations; raised on every rank.
            PeerLostError: A peer died or closed its session.
            DeadlineError: The time is over; the text names the ranks waited for.
        """
        buffer = copy_of(self._rows(rows))
        return self._perform(
            "scatter",
            [buffer],
            lambda: copy_of(buffer[self._rank : self._rank + 1])[0],
            root=root,
            name=name,
            timeout_s=timeout_s,
            async_op=async_op,
        )

    def reduce_scatter(
        self,
        rows: Array,
        op: str = "sum",
        *,
        name: str | None = None,
        timeout_s: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Reduce an array over all ranks and give each rank its row of the result.

        Args:
            rows: ``[size, ...]``, row = rank; same type and shape on every rank.
            op: See :meth:`all_reduce`.
            name: Operations of one name are matched with each other, whatever the order of
                other operations. Unnamed ones are matched in the order of the calls.
            timeout_s: Longest time to wait, in seconds; default: the session's.
            async_op: Return a :class:`~kfcore.handle.Handle` at once.

        Returns:
            New array ``rows.shape[1:]``.

        Raises:
            UsageError: ``rows`` has another length than there are ranks, or is not usable.
            MismatchError: Ranks called different operations; raised on every rank.
            PeerLostError: A peer died or closed its session.
            DeadlineError: The time is over; the text names the ranks waited for.
        """
        buffer = copy_of(self._rows(rows))
        return self._perform(
            "reduce_scatter",
            [buffer],
            lambda: copy_of(buffer[self._rank : self._rank + 1])[0],
            ops=op,
            name=name,
            timeout_s=timeout_s,
            async_op=async_op,
        )

    def all_to_all(
        self,
        rows: Array,
        *,
        name: str | None = None,
        timeout_s: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Exchange rows: row ``d`` of rank ``s`` becomes row ``s`` of rank ``d``.

        Args:
            rows: ``[size, ...]``; same type and shape on every rank.
            name: Operations of one name are matched with each other, whatever the order of
                other operations. Unnamed ones are matched in the order of the calls.
            timeout_s: Longest time to wait, in seconds; default: the session's.
            async_op: Return a :class:`~kfcore.handle.Handle` at once.

        Returns:
            New array of the same shape.

        Raises:
            UsageError: ``rows`` has another length than there are ranks, or is not usable.
            MismatchError: Ranks called different operations; raised on every rank.
            PeerLostError: A peer died or closed its session.
            DeadlineError: The time is over; the text names the ranks waited for.
        """
        mine = self._rows(rows)
        width = _elements(mine) // self._size
        return self._exchange(
            mine,
            new_like(mine, tuple(mine.shape)),
            [width] * self._size**2,
            name=name,
            timeout_s=timeout_s,
            async_op=async_op,
        )

    def _exchange(
        self,
        rows: Array,
        out: Array,
        counts: list[int],
        *,
        name: str | None,
        timeout_s: float | None,
        async_op: bool,
    ) -> Any:
        source = stage([rows], writes=False)
        target = stage([out])
        dtype = source.pieces[0].dtype
        call = _native.exchange_call(
            source.pieces[0].address,
            target.pieces[0].address,
            dtype,
            counts,
            self._rank,
            self._size,
            self._named(name),
            self._site(),
        )
        target.kept.extend(source.kept)
        return self._start(call, "all_to_all", target, lambda: out, timeout_s, async_op)

    def _with_row(self, array: Array) -> Array:
        mine = local(array)
        out = new_like(mine, (self._size, *mine.shape))
        out[self._rank] = mine
        return out

    def _rows(self, rows: Array) -> Array:
        array = local(rows)
        if array.ndim == 0 or array.shape[0] != self._size:
            raise UsageError(
                f"the array needs one row for each of {self._size} ranks, "
                f"got shape {tuple(array.shape)}"
            )
        return array


def _elements(array: Array) -> int:
    return int(array.size if isinstance(array.size, int) else array.numel())
