"""Opening the session of a view."""

import warnings
from dataclasses import dataclass
from typing import Any

from kfcore import _native
from kfcore.config import Config
from kfcore.memory import POOL
from kfcore.session import Session
from kfcore.view import View

__all__ = ["Opened", "open_view"]

SEGMENT_BYTES = 256 * 1024


@dataclass(frozen=True)
class Opened:
    """A session of a new view, its members agreed on where they stand.

    Attributes:
        roster: The roster whose view it is.
        rank: This worker's.
        old_members: Ids of the view before, by rank; empty for a newcomer.
        standing: Who has the last step, who needs it, who needs the state.
        words: [world_size, n] what each member said of itself, see `Member.advance`.
        began_s: When the old view ended for this worker, monotonic seconds.
        agreed_s: When the new view was known.
        ready_s: When its session was open.
    """

    roster: _native.Roster
    rank: int
    old_members: tuple[str, ...]
    standing: _native.Reconciled
    words: Any
    began_s: float
    agreed_s: float
    ready_s: float


def open_view(
    roster: _native.Roster,
    member_id: str,
    listener: _native.TcpListener,
    config: Config,
    transport: str,
    cancel: _native.Cancel,
) -> Session:
    """Connect to all other members of a view.

    Args:
        roster: Whose view it is.
        member_id: This worker, one of its members.
        listener: Where the others find it; stays open.
        config: Of the job.
        transport: ``auto`` or ``tcp``.
        cancel: Ends the attempt when set by another thread.

    Returns:
        The session, with the ring schedule.

    Raises:
        TransportError: some member was not there in time.
        StaleViewError: the others are in a newer view.
        AbortedError: it was cancelled.
    """
    view = View(roster.version, tuple(member.id for member in roster.members))
    native_view = _native.View(view.version, list(view.members))
    warning = ""
    if view.world_size == 1:
        hub = _native.InprocHub(1)
        native = _native.open_inproc_session(hub, native_view, 0, "ring", SEGMENT_BYTES)
    else:
        native, warning = _native.open_host_session(
            listener,
            native_view,
            roster.rank_of(member_id),
            config.job_id,
            config.job_secret,
            [member.address for member in roster.members],
            "ring",
            SEGMENT_BYTES,
            config.timeout_s,
            transport == "auto",
            POOL,
            cancel,
            keep_listener=True,
        )
    if warning:
        warnings.warn(f"using TCP within this host: {warning}", RuntimeWarning, stacklevel=2)
    return Session(native, view, timeout_s=config.timeout_s)
