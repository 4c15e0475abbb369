"""Every error the library raises, by what the caller should do about it.

The C++ core raises the same classes: its bindings look them up here by name.
``docs/errors.md`` lists causes and remedies.
"""

from kfcore.exits import EXIT_EXPELLED

__all__ = [
    "AbortedError",
    "ConflictingProposals",
    "DeadlineError",
    "ExpelledError",
    "InternalError",
    "KfError",
    "LeftError",
    "MismatchError",
    "NoQuorumError",
    "PeerLostError",
    "StaleViewError",
    "TransportError",
    "UsageError",
]


class KfError(Exception):
    """Base of every error of this library."""


class UsageError(KfError, ValueError):
    """The caller's mistake: the same call fails again. Fix the caller; never retry."""


class MismatchError(UsageError):
    """Ranks disagree about an operation. Raised on every rank, with both sides in the text."""


class ConflictingProposals(UsageError):  # noqa: N818 - the name says what happened
    """Ranks or policies proposed different changes. Nothing was changed anywhere."""


class TransportError(KfError, RuntimeError):
    """The environment failed. The view is suspect: close the session, propose a new view."""


class PeerLostError(TransportError, ConnectionError):
    """A peer closed or reset its connection; the text names its rank."""


class DeadlineError(TransportError, TimeoutError):
    """No progress before the deadline; the text names the ranks that were waited for."""


class StaleViewError(KfError):
    """A message or call from an older view. Synchronise again and retry in the new view."""


class NoQuorumError(KfError):
    """Too few members to agree. Wait or stop, as the policy says."""


class ExpelledError(KfError, SystemExit):
    """The others went on without this worker. Unless it is caught, the process exits 76."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = EXIT_EXPELLED


class LeftError(KfError, SystemExit):
    """This worker left its job in order, or the job is over. Uncaught, it exits 0."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = 0


class AbortedError(KfError):
    """This side closed the session while an operation was under way. Unwind quietly."""


class InternalError(KfError):
    """A broken invariant: a bug in this library. Let the process die."""
