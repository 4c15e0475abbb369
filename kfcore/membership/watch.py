"""Two threads of a member: one follows the roster, one asks silent workers if they live."""

import threading
import time
from collections.abc import Callable

from kfcore import _native
from kfcore.errors import AbortedError, DeadlineError, KfError
from kfcore.membership.door import Life, knock
from kfcore.membership.roster import RosterStore

__all__ = ["RosterWatch", "SilenceWatch"]

_POLL_S = 1.0  # longest sleep of the thread between looks at whether it is still wanted
_LOOK_S = 0.1
_KNOCK_S = 0.25


class RosterWatch:
    """The newest roster this process knows, kept up to date by a thread.

    Threads: all methods may be called from any thread.

    Args:
        rosters: Where it is read.
        on_news: Called by the thread with each new roster, and with None when the store is
            lost; afterwards the thread ends.

    Attributes:
        changed: Notified at each new roster; also guards the other attributes.
        lost: Why the store is lost, or None.
    """

    def __init__(
        self, rosters: RosterStore, on_news: Callable[[_native.Roster | None], None]
    ) -> None:
        self._rosters, self._on_news = rosters, on_news
        self._seen: tuple[_native.Roster, int] | None = None
        self._closed = False
        self.changed = threading.Condition()
        self.lost: Exception | None = None
        self._thread = threading.Thread(target=self._follow, name="kf-roster", daemon=True)

    @property
    def roster(self) -> _native.Roster:
        """The newest roster.

        Raises:
            AbortedError: none was read yet.
        """
        if self._seen is None:
            raise AbortedError("the roster was not read yet")
        return self._seen[0]

    def saw(self, roster: _native.Roster, key_version: int) -> None:
        """Take note of a roster, unless a newer one is known.

        Args:
            roster: What stood in the store.
            key_version: Version of its key.
        """
        with self.changed:
            if self._seen is None or key_version > self._seen[1]:
                self._seen = (roster, key_version)
                self.changed.notify_all()

    def change(self, move: Callable[[_native.Roster], bool]) -> _native.Roster:
        """As `RosterStore.change`, and take note of what came of it."""
        roster, key = self._rosters.change(move)
        self.saw(roster, key)
        return roster

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Let the thread end; `join` it once the store's client is closed too."""
        with self.changed:
            self._closed = True
            self.changed.notify_all()

    def join(self) -> None:
        """Wait for the thread, a second at most."""
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(1.0)

    def _follow(self) -> None:
        key = 0
        while not self._closed:
            try:
                roster, key = self._rosters.wait(key, _POLL_S)
            except DeadlineError:
                continue
            except Exception as error:
                if not self._closed:
                    with self.changed:
                        self.lost = error
                        self.changed.notify_all()
                    self._on_news(None)
                return
            self.saw(roster, key)
            self._on_news(roster)


class SilenceWatch:
    """Asks the other members whether they live while an operation of this one takes long.

    Constant heartbeats would cost n messages a period for nothing: silence only matters to
    those who wait.

    Args:
        heartbeat_s: Silence after which a member counts as lost, seconds.
        secret: The job secret.
        others: Gives the version of the view under way and the others' ids and doors.
        suspect: Called with that version and a text that names who is silent or dead.
    """

    def __init__(
        self,
        heartbeat_s: float,
        secret: str,
        others: Callable[[], tuple[int, list[tuple[str, str]]]],
        suspect: Callable[[int, str], None],
    ) -> None:
        self._heartbeat_s, self._secret = heartbeat_s, secret
        self._others, self._suspect = others, suspect
        self._since: float | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look, name="kf-silence", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Let the thread end, and wait for it, a second at most."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(1.0)

    def __enter__(self) -> "SilenceWatch":
        self._since = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self._since = None

    def _look(self) -> None:
        while not self._closed.wait(_LOOK_S):
            since = self._since
            if since is None or time.monotonic() - since < _LOOK_S:
                continue
            version, doors = self._others()
            long = time.monotonic() - since >= self._heartbeat_s
            lives = knock(doors, self._secret, self._heartbeat_s if long else _KNOCK_S)
            # a stopped worker is silent, and so for a moment is one that has much to do
            bad = (Life.DEAD, Life.SILENT) if long else (Life.DEAD,)
            gone = [f"{who} is {life.value}" for who, life in lives.items() if life in bad]
            if gone and self._since == since and not self._closed.is_set():
                try:
                    self._suspect(version, ", ".join(gone))
                except KfError:  # the store is lost, which the other thread finds out
                    self._closed.wait(1.0)
