"""A worker's part in a job whose workers may change while it runs."""

import contextlib
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn

import numpy as np

from kfcore import _native
from kfcore.address import advertised_host
from kfcore.config import Config
from kfcore.errors import (
    AbortedError,
    DeadlineError,
    ExpelledError,
    KfError,
    LeftError,
    NoQuorumError,
    StaleViewError,
    TransportError,
)
from kfcore.membership.door import Door
from kfcore.membership.opening import Opened, open_view
from kfcore.membership.rollcall import RollCall
from kfcore.membership.roster import RosterStore, found_job
from kfcore.membership.seat import Seat
from kfcore.membership.watch import RosterWatch, SilenceWatch
from kfcore.probe import measured_spec
from kfcore.store import StoreClient
from kfcore.timeouts import TimeOuts

__all__ = ["FAILURES", "Member"]

FAILURES = (TransportError, AbortedError, StaleViewError)
"""Errors of a session after which the survivors go on in the next view."""

_LOOK_S = 0.05
_MOST_FUTILE = 5  # views in a row in which no step was completed, though nobody died


class Member(Seat):
    """One worker of a job whose workers may change; made by `kfcore.join`. A context manager.

    `kfcore.Job` takes it for a session. Threads: one thread uses it; others of its own follow
    the roster, answer the door, and ask silent workers whether they live.

    Args:
        config: This worker's place in the job.
        store: Client of the job's store; closed with the member.
        schedule: See `kfcore.join`.
        transport: ``auto`` or ``tcp``.
        heartbeat_s: See `kfcore.join`.
        on_close: Called once, after it was closed.

    Raises:
        UsageError: heartbeats and time-outs in an impossible order.
        TransportError: the store or the others could not be reached.
    """

    def __init__(
        self,
        config: Config,
        store: StoreClient,
        *,
        schedule: str = "ring",
        transport: str = "auto",
        heartbeat_s: float | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self.config, self._store = config, store
        self.heartbeat_s = TimeOuts.of(config.timeout_s, heartbeat_s).heartbeat_s
        self._transport = transport
        self._on_close = on_close
        self._measures = schedule == "auto"
        self._members: tuple[str, ...] = ()
        self._futile = 0
        self._closed = False
        self._cancel = _native.Cancel()
        host = advertised_host(config)
        self._rosters = RosterStore(store)
        super().__init__(
            config.member_id or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}",
            RosterWatch(self._rosters, self._heard),
            SilenceWatch(self.heartbeat_s, config.job_secret, self._others, self._suspect),
            schedule,
        )
        self._listener = _native.TcpListener(host, 0)
        self._door = Door(host, self.id, config.job_secret)
        self._me = _native.Member(
            self.id,
            self._listener.address,
            self._door.address,
            socket.gethostname(),
            os.getpid(),
        )
        try:
            self._arrive()
        except BaseException:
            self.close()
            raise

    # ---- from view to view --------------------------------------------------------------

    def enter(self) -> None:
        """Tell the others that this worker is ready; `advance` waits to be taken in."""
        self._agreeing(lambda roster: not roster.ended and roster.join(self._me))

    def install(self) -> None:
        """End the view in order: all its members stand at one boundary and want a change."""
        self._leave_session()
        version = self.version
        self._agreeing(lambda roster: roster.install(version))

    def failed(self, error: BaseException) -> None:
        """End the view because its session failed: call the roll.

        Args:
            error: What happened.

        Raises:
            BaseException: the error itself, when views fail one after the other.
        """
        self._futile += 1
        if self._futile > _MOST_FUTILE:
            raise error
        self._leave_session()
        version, reason = self.version, f"{type(error).__name__}: {error}"[:500]
        self._agreeing(lambda roster: roster.call_roll(version, self.id, reason))

    def settled(self) -> bool:
        """Say that this worker has the state now.

        Returns:
            Whether it is a member with the state; False: its view has ended before.
        """
        self._agreeing(lambda roster: roster.settle(self.id))
        return any(m.id == self.id and m.settled for m in self._watch.roster.members)

    def stepped(self) -> None:
        """Note that a step was completed in this view."""
        self._futile = 0

    def advance(self, completed: int, words: tuple[float, ...]) -> Opened:
        """Wait for the next view, open its session, and agree on where its members stand.

        Args:
            completed: Steps whose result this worker has; -1: it has no state.
            words: Anything the driver wants to tell all others; as many on every member.

        Returns:
            The view and the standing of its members.

        Raises:
            ExpelledError: the others went on without this worker.
            LeftError: it left, was left out in order, or the job is over.
            NoQuorumError: too few workers are left.
            TransportError: the store is lost, or views fail one after the other.
        """
        began_s = time.monotonic()
        entry = np.array([completed, *words], np.float64)
        while True:
            old = self._members
            roster = self._next_view()
            agreed_s = time.monotonic()
            try:
                self._open(roster)
                self._measure(roster)
                rows = np.asarray(self.running(lambda session: session.all_gather(entry)))
            except FAILURES as error:
                self.failed(error)
                continue
            rows = rows.reshape(len(roster.members), len(entry))
            return Opened(
                roster,
                roster.rank_of(self.id),
                old,
                _native.reconcile([int(count) for count in rows[:, 0]]),
                rows[:, 1:],
                began_s,
                agreed_s,
                time.monotonic(),
            )

    def finish(self, reason: str) -> None:
        """Say that the job is over, so that nobody waits to be taken in.

        Args:
            reason: Why.
        """
        with contextlib.suppress(TransportError):
            self._watch.change(lambda roster: roster.end(reason))

    def close(self) -> None:
        """Leave without a word to the roster. Calling it again does nothing."""
        if self._closed:
            return
        self._closed = True
        self._silence.close()
        self._watch.close()
        self._leave_session()
        self._door.close()
        self._listener.close()
        self._store.close()
        self._watch.join()
        if self._on_close is not None:
            self._on_close()

    def __enter__(self) -> "Member":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ---- inside -------------------------------------------------------------------------

    def _arrive(self) -> None:
        """Take a founder's place and open view 1; or find that the job has begun."""
        roster, key = self._rosters.read()
        if roster is None:
            size = self.config.world_size
            found_job(self._store, founders=size, min_size=1, max_size=size)
        rank = self.config.rank
        roster, key = self._rosters.change(
            lambda r: rank < r.founders and r.version == 0 and r.arrive(rank, self._me)
        )
        deadline = time.monotonic() + self.config.timeout_s
        while roster.version == 0:
            try:
                roster, key = self._rosters.wait(key, max(0.0, deadline - time.monotonic()))
            except DeadlineError:
                there = ", ".join(str(r) for r in sorted(roster.arrived)) or "none"
                raise DeadlineError(
                    f"{roster.founders} workers were to begin the job; within "
                    f"{self.config.timeout_s:g} s there came ranks {there}"
                ) from None
        self._watch.saw(roster, key)
        self._watch.start()
        self._silence.start()
        if any(member.id == self.id for member in roster.members):
            self.advance(0, ())
            self.set_schedule(self._schedule)

    def _next_view(self) -> _native.Roster:
        """Wait until the roster has a view later than this worker's, and it is in it."""
        call: RollCall | None = None
        changed = self._watch.changed
        while True:
            with changed:
                if self._watch.lost is not None:
                    raise TransportError(str(self._watch.lost)) from self._watch.lost
                seen = self._watch.roster
                if seen.version > self.version:
                    if seen.find(self.id) is not None:
                        return seen
                    if seen.ended and seen.departed(self.id) is None:
                        self._raise_ended(seen)  # it came too late
                    if all(joiner.id != self.id for joiner in seen.joiners):
                        self._raise_gone(seen)
                if seen.ended:
                    self._raise_ended(seen)
                if not (seen.calling and seen.version == self.version):
                    changed.wait(_LOOK_S)
                    continue
            call = call or self._roll_call()
            call.turn(seen)
            with changed:
                if self._watch.roster is seen:
                    changed.wait(_LOOK_S)

    def _roll_call(self) -> RollCall:
        secret = self.config.job_secret
        return RollCall(self.id, secret, self.heartbeat_s, self._watch, self.version)

    def _open(self, roster: _native.Roster) -> None:
        with self._watch.changed:
            self._cancel = cancel = _native.Cancel()
            self.version = roster.version
            before = self._members
            self._members = tuple(member.id for member in roster.members)
            if not set(before) <= set(self._members):
                self._futile = 0  # the view failed because somebody died, not in vain
            if self._is_over(self._watch.roster):
                raise AbortedError("the view ended before its session was opened")
        with self._silence:
            session = open_view(
                roster, self.id, self._listener, self.config, self._transport, cancel
            )
        with self._watch.changed:
            self.session = session
            over = self._is_over(self._watch.roster)
        if over:
            raise AbortedError("the view ended while its session was opened")

    def _measure(self, roster: _native.Roster) -> None:
        """With ``auto``, measure the links of the new view, as `kfcore.init` does."""
        self._automatic = None
        if self._measures and len(roster.members) > 1:
            addresses = [member.address for member in roster.members]
            self._automatic = self.running(lambda session: measured_spec(session, addresses))

    def _leave_session(self) -> None:
        if self.session is not None:
            self.session.close()

    def _heard(self, roster: _native.Roster | None) -> None:
        """On the watch's thread: end the view under way when the roster says so.

        A planned view after this one is no reason: its members have all they need to finish the
        step, and whoever waits for one that cannot fails by itself.
        """
        if roster is not None and not self._is_over(roster):
            return
        with self._watch.changed:
            version = self.version
            self._cancel.set()
        calling = roster is not None and roster.calling and roster.version == version
        if calling:
            with contextlib.suppress(KfError):
                self._watch.change(lambda r: r.call_roll(version, self.id, ""))
        if calling or roster is None or self._is_lost(roster):
            self._abort(version)

    def _abort(self, version: int) -> None:
        """Make whatever the main thread does in a view end."""
        with self._watch.changed:
            session = self.session
        if session is not None and session.view.version == version:
            session.close()

    def _is_lost(self, roster: _native.Roster) -> bool:
        gone = roster.departed(self.id)
        return gone is not None and gone.how is _native.Departure.lost

    def _is_over(self, roster: _native.Roster) -> bool:
        """Whether the view under way has ended, as far as the roster knows."""
        if self.version == 0:
            return False
        return roster.version > self.version or (
            roster.version == self.version and bool(roster.calling)
        )

    def _others(self) -> tuple[int, list[tuple[str, str]]]:
        seen, version = self._watch.roster, self.version
        if seen.calling and seen.version == version:
            return version, []
        # of a view that is over, those that go on: the others may have left in order
        return version, [
            (m.id, m.door) for m in seen.members if m.id != self.id and m.id in self._members
        ]

    def _suspect(self, version: int, text: str) -> None:
        roster = self._watch.change(lambda r: r.call_roll(version, self.id, text))
        if roster.version != version:
            self._abort(version)

    def _agreeing(self, move: Callable[[_native.Roster], bool]) -> None:
        try:
            self._watch.change(move)
        except TransportError as error:
            raise TransportError(
                f"the workers cannot agree on the next view: {error}"
            ) from error

    def _raise_gone(self, roster: _native.Roster) -> NoReturn:
        gone = roster.departed(self.id)
        if gone is None or gone.how is _native.Departure.lost:
            reason = "the others went on" if gone is None else gone.reason
            text = (
                f"this worker ({self.id}) was expelled: view {roster.version} went on without "
                f"it ({reason})"
            )
            sys.stderr.write(f"kf: {text}\n")
            sys.stderr.flush()
            raise ExpelledError(text)
        raise LeftError(f"this worker ({self.id}) has left the job: {gone.reason}")

    def _raise_ended(self, roster: _native.Roster) -> NoReturn:
        if roster.find(self.id) is None:
            raise LeftError(f"the job is over: {roster.ended}")
        raise NoQuorumError(f"the job cannot go on: {roster.ended}")
