"""Collectives over exactly one view.

A session is opened for one membership and closed when it changes. Calls block until the
operation is done on this rank unless told otherwise, release the interpreter's lock meanwhile
and can be interrupted.
A session that failed is dead: every later call raises the same error.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from kfcore import _native, model_store
from kfcore.checks import text, whole_number
from kfcore.errors import UsageError
from kfcore.exchange import Exchange
from kfcore.model_store import SavedModel
from kfcore.operations import Shared
from kfcore.schedule import Schedule, spec_of
from kfcore.trace import Trace
from kfcore.view import View

__all__ = ["Group", "Session", "SessionStats"]


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


class Group(Exchange):
    """Some ranks of a session with operations of their own, over the same connections.

    Made by `Session.group`. It has the session's collectives; ranks and roots count within the
    group, an average divides by its size, and its operations are matched with each other only.
    A failure in one group is a failure of the whole session.

    Args:
        shared: The session's state.
        native: The core's group.
    """

    def __init__(self, shared: Shared, native: _native.Group) -> None:
        self._members = tuple(native.members)
        super().__init__(shared, native, native.rank, len(self._members))

    @property
    def rank(self) -> int:
        """This worker's place in the group."""
        return self._rank

    @property
    def world_size(self) -> int:
        """Number of members of the group, >= 1."""
        return self._size

    @property
    def members(self) -> tuple[int, ...]:
        """Ranks of the session, by rank of the group."""
        return self._members

    def __repr__(self) -> str:
        return f"<Group {list(self._members)}, rank {self._rank}>"


class Session(Exchange):
    """Collectives of one rank of one view; also a context manager.

    Made by `kfcore.init`, `kfcore.world.open_session` or `kfcore.inproc_world`.

    Args:
        native: The core's session.
        view: The membership it is bound to.
        timeout_s: Longest time an operation may take unless its call says otherwise, seconds.
        on_close: Called once, after the session was closed.
    """

    measures_norms = True  # see `kfcore.norms`

    def __init__(
        self,
        native: _native.Session,
        view: View,
        *,
        timeout_s: float,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        shared = Shared(native, timeout_s)
        super().__init__(shared, None, native.rank, view.world_size)
        self._view = view
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
        return self._shared.timeout_s

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

    def group(
        self, ranks: Sequence[int], *, name: str | None = None, timeout_s: float | None = None
    ) -> Group:
        """Make a group of some ranks; only they call it, disjoint groups at the same time.

        Waits until all members have called it.

        Args:
            ranks: Different ranks of this session, this one among them, in the same order on
                every member; their places are the ranks of the group.
            name: Groups of one name are matched; unnamed groups of the same ranks are matched
                in the order in which they are made.
            timeout_s: Longest time to wait, in seconds; default: the session's.

        Returns:
            The group.

        Raises:
            UsageError: ``ranks`` is not usable.
            PeerLostError: A peer died or closed its session.
            DeadlineError: The time is over; the text names the members that did not call.
        """
        members = [whole_number(rank, "ranks") for rank in ranks]
        group = Group(self._shared, _native.make_group(self._native, members))
        group.barrier(name=name, timeout_s=timeout_s)
        return group

    def save(self, name: str, arrays: Sequence[Any], version: int, *, keep: int = 2) -> None:
        """Keep a copy of some arrays for peers, which get it with :meth:`request`.

        Peers are answered while this worker computes. A reader of an older version is not
        disturbed by a newer one.

        Args:
            name: Text of 1 to 1024 bytes.
            arrays: Of any shapes and strides, of types that NumPy knows.
            version: Larger than that of the last call with this name, >= 0.
            keep: How many of the newest versions of this name are kept, >= 1.

        Raises:
            UsageError: An argument is not usable.
            TransportError: The session is dead.
        """
        model_store.save(self._native, name, arrays, version, keep)

    def request(
        self,
        peer: int,
        name: str,
        version: int | None = None,
        *,
        timeout_s: float | None = None,
    ) -> SavedModel | None:
        """Get a copy of arrays that a peer has saved; all of one version, never a mixture.

        Waits until the peer has saved something under ``name``, or this ``version`` of it. Of
        this worker's own arrays nothing is waited for.

        Args:
            peer: Rank to ask.
            name: What it has given to :meth:`save`.
            version: The version wanted; default: its newest.
            timeout_s: Longest time to wait, in seconds; default: the session's.

        Returns:
            The arrays and their version; None when the peer has dropped the version or left it
            out.

        Raises:
            UsageError: An argument is not usable.
            PeerLostError: A peer died or closed its session.
            DeadlineError: The time is over.
        """
        limit_s = self._limit(timeout_s)
        return model_store.request(self._native, peer, name, version, limit_s)

    def compare_call_sites(self, on: bool = True) -> None:
        """Compare from now on where in the program ranks call; the same on every rank.

        A debugging aid: operations without names that ranks call in different orders are a
        mismatch then, also when their arrays look alike, if their lines differ.

        Args:
            on: False ends it.
        """
        self._shared.check_call_sites = on

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Record every operation from now on in a file for Chrome's or Perfetto's viewer.

        The file is valid JSON at any time, also after the process was killed.

        Args:
            path: File to write; use another one for each rank.

        Raises:
            UsageError: The file cannot be written, or this session is traced already.
        """
        if self._shared.trace is not None:
            raise UsageError("this session is traced already")
        about = {"world_size": self.world_size, "view_version": self._view.version}
        self._shared.trace = Trace(path, self._rank, about)

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
        self._shared.drop_all()
        if self._shared.trace is not None:
            self._shared.trace.close()
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
