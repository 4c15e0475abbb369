"""The roster in the job's store: one JSON document under one key, changed by compare-and-set.

What may be done to it is decided in the core (``native/include/kf/membership.h``).
"""

import json
from collections.abc import Callable
from typing import Any, Protocol

from kfcore import _native
from kfcore.errors import InternalError, UsageError
from kfcore.store.wire import Entry, Swap

__all__ = ["ROSTER_KEY", "RosterStore", "Store", "found_job", "read_roster", "write_roster"]

ROSTER_KEY = "membership/roster"
_MEMBER = ("id", "address", "door", "host", "pid", "settled")
_PLAIN = (
    "version",
    "reason",
    "founders",
    "min_size",
    "max_size",
    "target",
    "leaving",
    "excluded",
    "call_reason",
    "present",
    "ended",
)
_MOST_TRIES = 10_000


class Store(Protocol):
    """The part of a job's store that membership needs: any client with versions."""

    def peek(self, key: str) -> Entry:
        """What a key holds now; version 0: nothing."""
        ...

    def compare_and_set(self, key: str, expected_version: int, value: str) -> Swap:
        """Set a key if its version is the expected one."""
        ...

    def watch(self, key: str, since_version: int, timeout_s: float) -> Entry:
        """Wait until a key's version exceeds another."""
        ...


def write_roster(roster: _native.Roster) -> str:
    """A roster as the text that the store keeps.

    Args:
        roster: Any.

    Returns:
        JSON.
    """
    return json.dumps(
        {
            **{name: getattr(roster, name) for name in _PLAIN},
            "members": [_plain(member) for member in roster.members],
            "joiners": [_plain(member) for member in roster.joiners],
            "arrived": {str(rank): _plain(m) for rank, m in roster.arrived.items()},
            "gone": [
                [gone.id, gone.host, gone.how.name, gone.reason, gone.version]
                for gone in roster.gone
            ],
        },
        separators=(",", ":"),
    )


def read_roster(text: str) -> _native.Roster:
    """Read what `write_roster` wrote.

    Args:
        text: JSON.

    Returns:
        The roster.

    Raises:
        InternalError: it is something else.
    """
    roster = _native.Roster()
    try:
        tree = json.loads(text)
        for name in _PLAIN:
            setattr(roster, name, tree[name])
        roster.members = [_native.Member(**member) for member in tree["members"]]
        roster.joiners = [_native.Member(**member) for member in tree["joiners"]]
        roster.arrived = {int(r): _native.Member(**m) for r, m in tree["arrived"].items()}
        roster.gone = [
            _native.Gone(id_, host, _native.Departure[how], reason, version)
            for id_, host, how, reason, version in tree["gone"]
        ]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InternalError(f"not a roster: {error!r}: {text[:100]!r}") from error
    return roster


class RosterStore:
    """Reads the roster and makes moves on it, from any process that reaches the store.

    What launchers and operators use; a worker has a `kfcore.membership.Member`.

    Args:
        store: Client of the job's store.

    Example:
        >>> from kfcore.store import StoreClient, StoreServer
        >>> with StoreServer() as server, StoreClient(server.address) as store:
        ...     found_job(store, founders=2, min_size=1, max_size=4)
        ...     rosters = RosterStore(store)
        ...     roster, _ = rosters.change(lambda roster: roster.resize(3, "more data"))
        >>> roster.target, roster.version
        (3, 0)
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self) -> tuple[_native.Roster | None, int]:
        """What stands there now.

        Returns:
            The roster, or None before anybody founded the job; and the key's version.

        Raises:
            TransportError: the store is lost.
        """
        entry = self._store.peek(ROSTER_KEY)
        return (read_roster(entry.value) if entry.version else None), entry.version

    def wait(self, since_version: int, timeout_s: float) -> tuple[_native.Roster, int]:
        """Wait for a change.

        Args:
            since_version: Version of the key seen last.
            timeout_s: Seconds.

        Returns:
            The newest roster and the key's version.

        Raises:
            DeadlineError: no change in time.
            TransportError: the store is lost.
        """
        entry = self._store.watch(ROSTER_KEY, since_version, timeout_s)
        return read_roster(entry.value), entry.version

    def change(
        self, move: Callable[[_native.Roster], bool], start: _native.Roster | None = None
    ) -> tuple[_native.Roster, int]:
        """Make a move, again and again until nobody else was faster.

        Args:
            move: Called with the newest roster; changes it and says whether it did.
            start: Stands for the roster where there is none; None: that is an error.

        Returns:
            The roster after the move, or as it is when the move changed nothing; and the key's
            version.

        Raises:
            UsageError: the move was refused, or the job was not founded.
            TransportError: the store is lost.
        """
        entry = self._store.peek(ROSTER_KEY)
        for _ in range(_MOST_TRIES):
            if entry.version:
                roster = read_roster(entry.value)
            elif start is not None:
                roster = _native.Roster(start)
            else:
                raise UsageError("the job has no roster: it was not started as an elastic job")
            if not move(roster) and entry.version:
                return roster, entry.version
            swap = self._store.compare_and_set(ROSTER_KEY, entry.version, write_roster(roster))
            if swap.done:
                return roster, swap.entry.version
            entry = swap.entry
        raise InternalError(f"the roster changed {_MOST_TRIES} times under one move")


def found_job(store: Store, *, founders: int, min_size: int, max_size: int) -> None:
    """Write the first roster; whoever starts the workers does so before they run.

    Args:
        store: Client of the job's store.
        founders: Workers that form the first view, >= 1.
        min_size: The job ends when fewer workers are left, in [1, founders].
        max_size: Most workers, >= founders.

    Raises:
        UsageError: the sizes do not fit.
        TransportError: the store is lost.
    """
    first = _native.make_roster(founders, min_size, max_size)
    RosterStore(store).change(lambda _: False, start=first)


def _plain(member: _native.Member) -> dict[str, Any]:
    return {name: getattr(member, name) for name in _MEMBER}
