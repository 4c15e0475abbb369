"""What a worker sees of the job that it is a member of, and what it may ask for."""

from collections.abc import Callable
from typing import Any

from kfcore import _native
from kfcore.errors import AbortedError, UsageError
from kfcore.membership.watch import RosterWatch, SilenceWatch
from kfcore.session import Session
from kfcore.view import View

__all__ = ["Seat"]

DEFAULT_SCHEDULE = "ring"


class Seat:
    """A member between two views: the readable side of `kfcore.Member`.

    Args:
        member_id: Of this worker, for its life.
        watch: The roster.
        silence: Guards operations.
        schedule: Spec of the schedule that operations use at first.

    Attributes:
        id: As given.
        session: Of the view under way; None before the first.
        version: Of that view; 0 before the first.
    """

    def __init__(
        self, member_id: str, watch: RosterWatch, silence: SilenceWatch, schedule: str
    ) -> None:
        self.id = member_id
        self.session: Session | None = None
        self.version = 0
        self._watch, self._silence = watch, silence
        self._schedule = schedule
        # What `auto` stands for in the view under way, the same on all its members.
        self._automatic: str | None = None

    # ---- what a job asks of a session ---------------------------------------------------

    @property
    def rank(self) -> int:
        """This worker's rank in the view under way; 0 before it has one."""
        return 0 if self.session is None else self.session.rank

    @property
    def world_size(self) -> int:
        """Workers of the view under way; 1 before there is one."""
        return 1 if self.session is None else self.session.world_size

    @property
    def view(self) -> View:
        """The view under way; before the first, version 0 of this worker alone."""
        return View(0, (self.id,)) if self.session is None else self.session.view

    @property
    def schedule(self) -> str:
        """Spec of the all-reduce schedule in force; ``auto`` as such, not what was measured."""
        if self.session is None or self.session.schedule == self._automatic:
            return self._schedule
        return self.session.schedule

    @property
    def waiting(self) -> bool:
        """Whether this worker has yet to be taken in."""
        return self.session is None

    @property
    def roster(self) -> _native.Roster:
        """What this worker has seen last of the roster."""
        return self._watch.roster

    @property
    def change_wanted(self) -> bool:
        """Whether this worker knows that the members should change."""
        seen = self._watch.roster
        return seen.version == self.version and bool(seen.change_wanted)

    def set_schedule(self, spec: str) -> None:
        """Use another schedule; called at the same point on every rank.

        Args:
            spec: Of the schedule; where it does not exist for this number of workers, ``ring``.
        """
        self._schedule = spec
        if self.session is not None:
            try:
                chosen = self._automatic if spec == "auto" else None
                self.session.set_schedule(chosen or spec)
            except UsageError:
                self.session.set_schedule(DEFAULT_SCHEDULE)

    def grouped_all_reduce(self, arrays: Any, op: Any, **more: Any) -> Any:
        """As `Session.grouped_all_reduce`, of the view under way."""
        return self.running(lambda session: session.grouped_all_reduce(arrays, op=op, **more))

    def all_gather(self, array: Any) -> Any:
        """As `Session.all_gather`, of the view under way."""
        return self.running(lambda session: session.all_gather(array))

    def all_to_all(self, rows: Any) -> Any:
        """As `Session.all_to_all`, of the view under way."""
        return self.running(lambda session: session.all_to_all(rows))

    def send(self, array: Any, peer: int, *, async_op: bool = False) -> Any:
        """As `Session.send`, in the view under way."""
        return self.running(lambda session: session.send(array, peer, async_op=async_op))

    def recv(self, array: Any, peer: int) -> Any:
        """As `Session.recv`, in the view under way."""
        return self.running(lambda session: session.recv(array, peer))

    def running(self, operation: Callable[[Session], Any]) -> Any:
        """Run an operation while the others are asked whether they live, should it take long.

        Args:
            operation: Called with the session of the view under way.

        Returns:
            What it returned.

        Raises:
            TransportError: the view failed; `advance` leads to the next.
            AbortedError: likewise.
        """
        if self.session is None:
            raise AbortedError("this worker is in no view yet")
        with self._silence:
            return operation(self.session)

    # ---- requests -----------------------------------------------------------------------

    def leave(self) -> None:
        """Ask to leave at the next boundary; there `LeftError` ends this worker.

        Raises:
            UsageError: fewer workers would be left than the job needs.
        """
        self._watch.change(lambda roster: roster.leave(self.id))

    def resize(self, world_size: int, reason: str = "") -> None:
        """Ask for another number of workers.

        Fewer: the last ranks leave at the next boundary. More: whoever is ready is taken in;
        ``kf run --elastic`` starts what is missing.

        Args:
            world_size: Within the job's limits.
            reason: For the log.

        Raises:
            UsageError: outside the limits.
        """
        self._watch.change(lambda roster: roster.resize(world_size, reason))

    def exclude(self, member_id: str, reason: str = "") -> None:
        """Ask for a member to be left out from the next boundary on.

        Args:
            member_id: Whose.
            reason: For the log, and for the one excluded.

        Raises:
            UsageError: no such member, or fewer would be left than the job needs.
        """
        self._watch.change(lambda roster: roster.exclude(member_id, reason))
