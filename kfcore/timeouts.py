"""The one time-out of a job, and the limits that follow from it.

``timeout_s`` (``KF_TIMEOUT_S``, `kf run --timeout-s`) is how long an operation may take. All
other limits are derived here, or in the core by the same rule, so that what is to happen within
an operation's time can: a silent worker is found before the operation ends, a lost store is
given up no later, an unfinished handshake leaves time for another.
"""

from dataclasses import dataclass

from kfcore.errors import UsageError

__all__ = ["TimeOuts"]

_HEARTBEAT_S = 3.0
_LEAST_HEARTBEAT_S = 0.5  # a healthy worker on a busy machine may take as long to answer
_RECONNECT_S = 5.0


@dataclass(frozen=True)
class TimeOuts:
    """Limits of one worker, all in seconds.

    Attributes:
        timeout_s: Longest time of an operation, and for the workers to meet.
        heartbeat_s: Silence, in the middle of an operation, after which a worker is asked
            whether it lives; after as long again it is given up.
        reconnect_s: How long a lost store is looked for.

    Example:
        >>> TimeOuts.of(60.0)
        TimeOuts(timeout_s=60.0, heartbeat_s=3.0, reconnect_s=5.0)
        >>> TimeOuts.of(4.0)
        TimeOuts(timeout_s=4.0, heartbeat_s=1.0, reconnect_s=4.0)
    """

    timeout_s: float
    heartbeat_s: float
    reconnect_s: float

    @classmethod
    def of(cls, timeout_s: float, heartbeat_s: float | None = None) -> "TimeOuts":
        """Derive the limits of a job whose workers may change.

        Args:
            timeout_s: The job's time-out, > 0.
            heartbeat_s: The user's own; None: 3, or a quarter of ``timeout_s`` if that is less.

        Returns:
            The limits.

        Raises:
            UsageError: They are in an impossible order; the text states the rule.
        """
        if not 0 < timeout_s < float("inf"):
            raise UsageError(f"timeout_s must be finite and > 0, got {timeout_s}")
        wanted = heartbeat_s
        if wanted is None:
            wanted = max(_LEAST_HEARTBEAT_S, min(_HEARTBEAT_S, timeout_s / 4))
        if not _LEAST_HEARTBEAT_S <= wanted <= timeout_s / 2:
            raise UsageError(
                f"heartbeat_s must be in [{_LEAST_HEARTBEAT_S:g}, timeout_s / 2], with a "
                f"timeout_s of {timeout_s:g}: a worker is given up after two silent "
                f"heartbeats, and operations must not end before; got {wanted:g}"
            )
        return cls(timeout_s, wanted, store_reconnect_s(timeout_s))


def store_reconnect_s(timeout_s: float) -> float:
    """How long a lost store is looked for: 5 s, or the job's time-out if that is less."""
    return min(_RECONNECT_S, timeout_s)
