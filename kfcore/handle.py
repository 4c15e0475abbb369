"""Operations under way: what an asynchronous call returns."""

import numbers
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from kfcore import _native
from kfcore.errors import UsageError

__all__ = ["Handle", "check_timeout"]


def check_timeout(timeout_s: Any) -> float:
    """A time to wait.

    Args:
        timeout_s: Seconds, >= 0.

    Returns:
        The number.

    Raises:
        UsageError: It is negative or not a number.
    """
    if not (isinstance(timeout_s, numbers.Real) and float(timeout_s) >= 0):  # NaN is not
        raise UsageError(f"timeout_s must be >= 0, got {timeout_s!r}")
    return float(timeout_s)


class Handle:
    """One asynchronous call; the session goes on with it while the program computes.

    The arrays given to the call must not be touched before it is done. A handle that is dropped
    does not cancel anything.

    Args:
        native: The core's session.
        started: The core's operations that make up the call.
        timeout_s: Time the call may take from now on, in seconds.
        finish: Called once when all are done; what it returns is the call's result.
    """

    def __init__(
        self,
        native: _native.Session,
        started: Sequence[_native.Started],
        timeout_s: float,
        finish: Callable[[], Any],
    ) -> None:
        self._native = native
        self._started = started
        self._until_s = time.monotonic() + timeout_s
        self._finish: Callable[[], Any] | None = finish
        self._result: Any = None
        self._lock = threading.Lock()

    @classmethod
    def of(cls, parts: "Sequence[Handle]", finish: Callable[[], Any]) -> "Handle":
        """One handle for several calls of one session.

        Args:
            parts: The calls, at least one.
            finish: Called once when all are done; what it returns is the result.

        Returns:
            A handle that is done when all of them are.
        """

        def complete() -> Any:
            for part in parts:
                part.wait(0.0)
            return finish()

        whole = cls(
            parts[0]._native, [each for part in parts for each in part._started], 0.0, complete
        )
        whole._until_s = max(part._until_s for part in parts)
        return whole

    def wait(self, timeout_s: float | None = None) -> Any:
        """Wait until the call is done.

        Args:
            timeout_s: Longest time to wait, in seconds; default: what is left of the call's
                own. A time-out is an error of the session as in any blocking call; to look
                without waiting use :meth:`done`.

        Returns:
            What the blocking call would return.

        Raises:
            UsageError: ``timeout_s`` is negative or not a number.
            MismatchError: Ranks called different operations.
            PeerLostError: A peer died or closed its session.
            DeadlineError: The time is over; the text names the ranks waited for.
        """
        if timeout_s is not None:
            check_timeout(timeout_s)
        for started in self._started:
            left_s = self._until_s - time.monotonic() if timeout_s is None else timeout_s
            _native.wait(self._native, started, left_s)
        return self._complete()

    def done(self) -> bool:
        """Whether :meth:`wait` would return, or raise the session's error, at once."""
        if not all(_native.done(self._native, started) for started in self._started):
            return False
        self._settle()
        return True

    @property
    def result(self) -> Any:
        """What the call returns; waits for it."""
        return self.wait()

    def _complete(self) -> Any:
        with self._lock:
            if self._finish is not None:
                self._result = self._finish()
                self._finish = None
                self._started = ()
        return self._result

    def _settle(self) -> None:
        try:
            self.wait(0.0)
        except Exception:
            return

    def __repr__(self) -> str:
        return f"<Handle {'done' if self._finish is None else 'under way'}>"
