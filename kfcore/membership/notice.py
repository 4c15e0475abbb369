"""A notice to leave (SIGTERM, a cloud's warning) that one worker of an elastic job gets."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

from kfcore.errors import KfError, UsageError
from kfcore.exits import EXIT_PREEMPTED
from kfcore.membership.member import Member

__all__ = ["LeaveOnNotice"]


class LeaveOnNotice:
    """Makes a member leave in order once it was told to; the others train on.

    A context manager around the loop. After a notice the step under way is finished; at the
    next boundary `kfcore.errors.LeftError` ends the worker, exit code 0 where it is not caught,
    and the others go on with its samples. Where the job cannot do with fewer workers, `refused`
    is called instead: `kfcore.elastic.Preemption.notice`, say, which stops the job everywhere
    so that it can be saved. A worker that is still there when the grace is over ends with
    `EXIT_PREEMPTED` (75); to the others it is lost then.

    Threads: one of its own asks to leave, since a signal handler must not wait for the store.

    Args:
        member: From `kfcore.join`.
        grace_s: Seconds from the notice to the end, > 0.
        refused: Called in that thread when the member may not leave; None: it is said on
            standard error, and the grace ends the worker.

    Example:
        >>> import kfcore
        >>> with kfcore.join(rank=0, world_size=1) as member:
        ...     with LeaveOnNotice(member, refused=lambda: print("save it")) as notice:
        ...         notice.told
        False
    """

    def __init__(
        self,
        member: Member,
        *,
        grace_s: float = 25.0,
        refused: Callable[[], None] | None = None,
    ) -> None:
        if not grace_s > 0:
            raise UsageError(f"grace_s must be > 0, got {grace_s!r}")
        self._member, self._grace_s, self._refused = member, grace_s, refused
        self._told, self._over = threading.Event(), threading.Event()
        self._before: dict[signal.Signals, signal._HANDLER] = {}
        self._thread = threading.Thread(target=self._wait, name="kf-notice", daemon=True)

    @property
    def told(self) -> bool:
        """Whether there was a notice."""
        return self._told.is_set()

    def notice(self) -> None:
        """Say that this worker has to leave; from any thread or signal handler."""
        self._told.set()

    def __enter__(self) -> "LeaveOnNotice":
        """Take SIGTERM for a notice, where this is the main thread; elsewhere call `notice`."""
        if threading.current_thread() is threading.main_thread():
            self._before[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._heard)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Forget a notice, and take signals as before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._over.set()
        self._told.set()
        self._thread.join(1.0)

    def _heard(self, _number: int, _frame: FrameType | None) -> None:
        self.notice()

    def _wait(self) -> None:
        self._told.wait()
        if self._over.is_set():
            return
        try:
            self._member.leave()
        except KfError as error:
            if self._refused is None:
                _say(f"told to leave, but {error}")
            else:
                self._refused()
        if not self._over.wait(self._grace_s):
            _say(f"told to leave {self._grace_s:g} s ago and still here: ends now")
            os._exit(EXIT_PREEMPTED)


def _say(text: str) -> None:
    sys.stderr.write(f"kf: {text}\n")
    sys.stderr.flush()
