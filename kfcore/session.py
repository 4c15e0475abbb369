"""Collectives over exactly one view.

A session is opened for one membership and closed when it changes. All calls block until the
operation is done on this rank, release the interpreter's lock meanwhile and can be interrupted.
A session that failed is dead: every later call raises the same error.
"""

import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np

from kfcore import _native
from kfcore.buffers import as_numpy, as_pieces
from kfcore.checks import text, whole_number
from kfcore.errors import UsageError
from kfcore.schedule import Schedule, spec_of
from kfcore.view import View

__all__ = ["Session", "SessionStats"]

Array = Any  # a NumPy array, a torch tensor or anything with writable CPU DLPack


@dataclass(frozen=True)
class SessionStats:
    """What a session has done so far.

    Attributes:
        operations: Operations completed.
        messages_sent: Data messages sent, over all peers.
        bytes_sent: Payload bytes of those messages, without headers.
        messages_received: Data messages received, over all peers.
        bytes_received: Payload bytes of those messages.
        control_messages: Announcements sent (start of large or rooted operations, stalls).
        bytes_sent_to: Payload bytes sent to each rank; this rank's own entry is 0.
        bytes_received_from: Payload bytes received from each rank.
    """

    operations: int
    messages_sent: int
    bytes_sent: int
    messages_received: int
    bytes_received: int
    control_messages: int
    bytes_sent_to: tuple[int, ...]
    bytes_received_from: tuple[int, ...]


class Session:
    """Collectives of one rank of one view; also a context manager.

    Made by `kfcore.init`, `kfcore.world.open_session` or `kfcore.inproc_world`.

    Args:
        native: The core's session.
        view: The membership it is bound to.
        timeout_s: Longest time an operation may take unless its call says otherwise, seconds.
        on_close: Called once, after the session was closed.
    """

    def __init__(
        self,
        native: _native.Session,
        view: View,
        *,
        timeout_s: float,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        _check_timeout(timeout_s)
        self._native = native
        self._view = view
        self._rank: int = native.rank
        self._timeout_s = timeout_s
        self._on_close = on_close

    @property
    def rank(self) -> int:
        """Index of this worker in the view, in ``[0, world_size)``."""
        return self._rank

    @property
    def world_size(self) -> int:
        """Number of members of the view, >= 1."""
        return self._view.world_size

    @property
    def view(self) -> View:
        """The membership this session is bound to."""
        return self._view

    @property
    def schedule(self) -> str:
        """Spec of the schedule that operations started now use, e.g. ``ring``."""
        spec: str = self._native.schedule
        return spec

    @property
    def transport(self) -> str:
        """How the ranks are connected: ``shm``, ``tcp``, ``shm+tcp`` or ``inproc``."""
        name: str = self._native.transport
        return name

    @property
    def timeout_s(self) -> float:
        """Longest time an operation may take unless its call says otherwise, in seconds."""
        return self._timeout_s

    def set_schedule(self, spec: str | Schedule) -> None:
        """Choose the schedule of the operations that follow.

        Call it at the same point on every rank: operations with different schedules mismatch.

        Args:
            spec: A schedule spec such as ``ring`` or ``tree(fanout=4)``, or ``auto``; or a
                schedule of your own, used for the collective it is made for.

        Raises:
            UsageError: The spec denotes no schedule for this world size, or the schedule is
                not valid.
        """
        self._native.set_schedule(
            spec_of(spec) if isinstance(spec, Schedule) else text(spec, "schedule")
        )

    def all_reduce(
        self,
        array: Array,
        op: str = "sum",
        *,
        name: str | None = None,
        timeout_s: float | None = None,
    ) -> Array:
        """Reduce an array over all ranks, in place; every rank gets the same bits.

        16-bit floats are summed and multiplied in 32 bits. Integers wrap; their average
        truncates towards zero. For booleans sum and max mean "or", prod and min "and".

        Args:
            array: Contiguous, writable, in CPU memory; same type and size on every rank.
            op: ``sum``, ``prod``, ``min``, ``max`` or ``avg`` (the sum over ``world_size``).
            name: Operations of one name are matched with each other, whatever the order of
                other operations. Unnamed ones are matched in the order of the calls.
            timeout_s: Longest time to wait, in seconds; default: the session's.

        Returns:
            ``array`` itself.

        Raises:
            UsageError: The array or the operator is not usable.
            MismatchError: Ranks called different operations; raised on every rank.
            PeerLostError: A peer died or closed its session.
            DeadlineError: The time is over; the text names the ranks waited for.
        """
        self._run("all_reduce", [array], op, name=name, timeout_s=timeout_s)
        return array

    def grouped_all_reduce(
        self,
        arrays: Sequence[Array],
        op: str | Sequence[str] = "sum",
        *,
        name: str | None = None,
        timeout_s: float | None = None,
    ) -> Sequence[Array]:
        """Reduce several arrays as one operation, in place, without copying them together.

        Args:
            arrays: Of any types; the list has the same types and sizes on every rank.
            op: One operator for all arrays, or one for each.
            name: See :meth:`all_reduce`.
            timeout_s: Longest time to wait, in seconds; default: the session's.

        Returns:
            ``arrays`` itself.

        Raises:
            UsageError: An array or operator is not usable.
            MismatchError: Ranks called different operations.
            PeerLostError: A peer died or closed its session.
            DeadlineError: The time is over.
        """
        self._run("all_reduce", arrays, op, name=name, timeout_s=timeout_s)
        return arrays

    def broadcast(
        self,
        array: Array,
        root: int = 0,
        *,
        name: str | None = None,
        timeout_s: float | None = None,
    ) -> Array:
        """Copy the root's array to all ranks, in place.

        Args:
            array: Contiguous and writable; same type and size on every rank.
            root: Rank that has the data, in ``[0, world_size)``.
            name: See :meth:`all_reduce`.
            timeout_s: Longest time to wait, in seconds; default: the session's.

        Returns:
            ``array`` itself.

        Raises:
            UsageError: The array or root is not usable.
            MismatchError: Ranks called different operations.
            PeerLostError: A peer died or closed its session.
            DeadlineError: The time is over.
        """
        self._run("broadcast", [array], "sum", root=root, name=name, timeout_s=timeout_s)
        return array

    def reduce(
        self,
        array: Array,
        op: str = "sum",
        root: int = 0,
        *,
        name: str | None = None,
        timeout_s: float | None = None,
    ) -> Array:
        """Reduce an array over all ranks into the root's array; the others keep theirs.

        Args:
            array: Contiguous; writable on the root; same type and size on every rank.
            op: See :meth:`all_reduce`.
            root: Rank that gets the result, in ``[0, world_size)``.
            name: See :meth:`all_reduce`.
            timeout_s: Longest time to wait, in seconds; default: the session's.

        Returns:
            ``array`` itself.

        Raises:
            UsageError: The array, operator or root is not usable.
            MismatchError: Ranks called different operations.
            PeerLostError: A peer died or closed its session.
            DeadlineError: The time is over.
        """
        # ranks inside a tree add up in their buffer, so all but the root lend a copy
        buffer = array if self._rank == root else _copy(array)
        self._run("reduce", [buffer], op, root=root, name=name, timeout_s=timeout_s)
        return array

    def barrier(self, *, name: str | None = None, timeout_s: float | None = None) -> None:
        """Wait until every rank has called it.

        Args:
            name: See :meth:`all_reduce`.
            timeout_s: Longest time to wait, in seconds; default: the session's.

        Raises:
            MismatchError: Ranks called different operations.
            PeerLostError: A peer died or closed its session.
            DeadlineError: The time is over; the text names the ranks waited for.
        """
        self._run("barrier", [], "sum", name=name, timeout_s=timeout_s)

    def all_gather(
        self, array: Array, *, name: str | None = None, timeout_s: float | None = None
    ) -> np.ndarray[Any, Any]:
        """Collect every rank's array on every rank.

        Args:
            array: Same type and shape on every rank.
            name: See :meth:`all_reduce`.
            timeout_s: Longest time to wait, in seconds; default: the session's.

        Returns:
            New array ``[world_size, *array.shape]``, row = rank.

        Raises:
            UsageError: The array is not usable.
            MismatchError: Ranks called different operations.
            PeerLostError: A peer died or closed its session.
            DeadlineError: The time is over.
        """
        mine = as_numpy(array)
        out = np.zeros((self.world_size, *mine.shape), mine.dtype)
        out[self._rank] = mine
        self._run("all_gather", [out], "sum", name=name, timeout_s=timeout_s)
        return out

    def gather(
        self,
        array: Array,
        root: int = 0,
        *,
        name: str | None = None,
        timeout_s: float | None = None,
    ) -> np.ndarray[Any, Any] | None:
        """Collect every rank's array on the root.

        Args:
            array: Same type and shape on every rank.
            root: Rank that gets the rows, in ``[0, world_size)``.
            name: See :meth:`all_reduce`.
            timeout_s: Longest time to wait, in seconds; default: the session's.

        Returns:
            On the root a new array ``[world_size, *array.shape]``, row = rank; else None.

        Raises:
            UsageError: The array or root is not usable.
            MismatchError: Ranks called different operations.
            PeerLostError: A peer died or closed its session.
            DeadlineError: The time is over.
        """
        mine = as_numpy(array)
        out = np.zeros((self.world_size, *mine.shape), mine.dtype)
        out[self._rank] = mine
        self._run("gather", [out], "sum", root=root, name=name, timeout_s=timeout_s)
        return out if self._rank == root else None

    def scatter(
        self,
        rows: Array,
        root: int = 0,
        *,
        name: str | None = None,
        timeout_s: float | None = None,
    ) -> np.ndarray[Any, Any]:
        """Give each rank its row of the root's array.

        Args:
            rows: ``[world_size, ...]``, row = rank; same type and shape on every rank, its
                contents count on the root only.
            root: Rank that has the rows, in ``[0, world_size)``.
            name: See :meth:`all_reduce`.
            timeout_s: Longest time to wait, in seconds; default: the session's.

        Returns:
            New array ``rows.shape[1:]``.

        Raises:
            UsageError: ``rows`` has another length than ``world_size``, or is not usable.
            MismatchError: Ranks called different operations.
            PeerLostError: A peer died or closed its session.
            DeadlineError: The time is over.
        """
        buffer = self._rows(rows)
        self._run("scatter", [buffer], "sum", root=root, name=name, timeout_s=timeout_s)
        return np.array(buffer[self._rank])

    def reduce_scatter(
        self,
        rows: Array,
        op: str = "sum",
        *,
        name: str | None = None,
        timeout_s: float | None = None,
    ) -> np.ndarray[Any, Any]:
        """Reduce an array over all ranks and give each rank its row of the result.

        Args:
            rows: ``[world_size, ...]``, row = rank; same type and shape on every rank.
            op: See :meth:`all_reduce`.
            name: See :meth:`all_reduce`.
            timeout_s: Longest time to wait, in seconds; default: the session's.

        Returns:
            New array ``rows.shape[1:]``.

        Raises:
            UsageError: ``rows`` has another length than ``world_size``, or is not usable.
            MismatchError: Ranks called different operations.
            PeerLostError: A peer died or closed its session.
            DeadlineError: The time is over.
        """
        buffer = self._rows(rows)
        self._run("reduce_scatter", [buffer], op, name=name, timeout_s=timeout_s)
        return np.array(buffer[self._rank])

    def all_to_all(
        self, rows: Array, *, name: str | None = None, timeout_s: float | None = None
    ) -> np.ndarray[Any, Any]:
        """Exchange rows: row ``d`` of rank ``s`` becomes row ``s`` of rank ``d``.

        Needs working memory of ``world_size`` times the array on each rank.

        Args:
            rows: ``[world_size, ...]``; same type and shape on every rank.
            name: See :meth:`all_reduce`.
            timeout_s: Longest time to wait, in seconds; default: the session's.

        Returns:
            New array of the same shape.

        Raises:
            UsageError: ``rows`` has another length than ``world_size``, or is not usable.
            MismatchError: Ranks called different operations.
            PeerLostError: A peer died or closed its session.
            DeadlineError: The time is over.
        """
        mine = self._rows(rows)
        # the schedule's buffer has a row for each (source, destination)
        buffer = np.zeros((self.world_size, *mine.shape), mine.dtype)
        buffer[self._rank] = mine
        self._run("all_to_all", [buffer], "sum", name=name, timeout_s=timeout_s)
        return buffer[:, self._rank].copy()

    def stats(self) -> SessionStats:
        """Counts of what this session has sent and received since it was opened."""
        native = self._native.stats()
        peers = native.peers
        return SessionStats(
            operations=native.operations,
            messages_sent=sum(peer.messages_sent for peer in peers),
            bytes_sent=sum(peer.bytes_sent for peer in peers),
            messages_received=sum(peer.messages_received for peer in peers),
            bytes_received=sum(peer.bytes_received for peer in peers),
            control_messages=native.control_messages,
            bytes_sent_to=tuple(peer.bytes_sent for peer in peers),
            bytes_received_from=tuple(peer.bytes_received for peer in peers),
        )

    def close(self) -> None:
        """Say goodbye to the peers and free the connections; harmless when called again."""
        self._native.close()
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"<Session rank {self._rank} of {self.world_size}, view {self._view.version}, "
            f"schedule {self.schedule}>"
        )

    def _rows(self, rows: Array) -> np.ndarray[Any, Any]:
        array = as_numpy(rows)
        if array.ndim == 0 or array.shape[0] != self.world_size:
            raise UsageError(
                f"the array needs one row for each of {self.world_size} ranks, "
                f"got shape {array.shape}"
            )
        return np.array(array, order="C", copy=True)

    def _run(
        self,
        collective: str,
        arrays: Sequence[Array],
        ops: str | Sequence[str],
        *,
        root: int = 0,
        name: str | None,
        timeout_s: float | None,
    ) -> None:
        if timeout_s is None:
            timeout_s = self._timeout_s
        else:
            _check_timeout(timeout_s)
        if name is None:
            name = ""
        elif not text(name, "name"):
            raise UsageError("name must not be empty; leave it out for an unnamed operation")
        root = whole_number(root, "root")
        self._native.run(collective, as_pieces(arrays, ops), root, name, timeout_s)


def _check_timeout(timeout_s: Any) -> None:
    if not (isinstance(timeout_s, numbers.Real) and float(timeout_s) >= 0):  # NaN is not
        raise UsageError(f"timeout_s must be >= 0, got {timeout_s!r}")


def _copy(array: Array) -> Array:
    if hasattr(array, "clone"):  # torch: NumPy knows no bfloat16
        return array.detach().clone()
    return as_numpy(array).copy()
