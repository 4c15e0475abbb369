"""What a job asks of its session, and the session of a process on its own."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

__all__ = ["Alone", "JobSession", "tell_all", "view_version"]


class JobSession(Protocol):
    """The part of `kfcore.Session` that a job needs."""

    @property
    def rank(self) -> int:
        """This worker."""
        ...

    @property
    def world_size(self) -> int:
        """All workers."""
        ...

    @property
    def schedule(self) -> str:
        """Spec of the all-reduce schedule in force."""
        ...

    def grouped_all_reduce(self, arrays: Sequence[Any], op: Sequence[str]) -> Any:
        """All-reduce several arrays in place as one operation, each with its own op."""
        ...

    def set_schedule(self, spec: str) -> None:
        """Use another schedule; called at the same point on every rank."""
        ...


class Alone:
    """A world of one, without sockets or store: every reduction is the identity."""

    rank = 0
    world_size = 1

    def __init__(self) -> None:
        self.schedule = "ring"

    def grouped_all_reduce(self, arrays: Sequence[Any], op: Sequence[str]) -> None:
        """Leave the only contribution as it is."""

    def set_schedule(self, spec: str) -> None:
        """Remember it, for whoever asks."""
        self.schedule = spec


def view_version(session: object) -> int:
    """Version of the view that a session is bound to; 1 where it has none.

    Args:
        session: Any `JobSession`.

    Returns:
        The number, >= 1.
    """
    return int(getattr(getattr(session, "view", None), "version", 1))


def tell_all(session: JobSession, text: str, width: int) -> list[str]:
    """Each rank's text, in order of rank; every rank calls it at the same point.

    Args:
        session: Open.
        text: This rank's; cut after ``width`` bytes.
        width: Longest text, in bytes of UTF-8.

    Returns:
        [world_size] texts.
    """
    rows = np.zeros((session.world_size, width))
    data = text.encode()[:width]
    rows[session.rank, : len(data)] = list(data)
    session.grouped_all_reduce([rows], op=["sum"])
    raw = [row.astype(np.uint8).tobytes().rstrip(b"\0") for row in rows]
    return [each.decode("utf-8", "replace") for each in raw]
