"""What a job asks of its session, and the session of a process on its own."""

from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

import numpy as np

from kfcore.configuration import DEFAULT_BUCKET_BYTES
from kfcore.errors import UsageError

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

    def grouped_all_reduce(
        self, arrays: Sequence[Any], op: str | Sequence[str], *, fusion_bytes: int = ...
    ) -> Any:
        """All-reduce several arrays in place, each with its own op, in few operations."""
        ...

    def all_to_all(self, rows: Any) -> Any:
        """Row i goes to rank i; row i of the result came from rank i."""
        ...

    def all_gather(self, array: Any) -> Any:
        """[world_size, ...], row = rank."""
        ...

    def send(self, array: Any, peer: int, *, async_op: bool) -> Any:
        """Send an array; a handle when ``async_op``."""
        ...

    def recv(self, array: Any, peer: int) -> Any:
        """Receive an array in place."""
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

    def grouped_all_reduce(
        self,
        arrays: Sequence[Any],
        op: str | Sequence[str],
        *,
        fusion_bytes: int = DEFAULT_BUCKET_BYTES,
    ) -> None:
        """Leave the only contribution as it is."""

    def all_to_all(self, rows: Any) -> Any:
        """The only row is this rank's own."""
        return rows

    def all_gather(self, array: Any) -> Any:
        """The only row is this rank's own."""
        return array[None]

    def send(self, array: Any, peer: int, *, async_op: bool) -> NoReturn:  # noqa: ARG002
        """Refuse: there is nobody else."""
        raise UsageError(f"a process on its own cannot send to rank {peer}")

    def recv(self, array: Any, peer: int) -> NoReturn:  # noqa: ARG002
        """Refuse: there is nobody else."""
        raise UsageError(f"a process on its own cannot receive from rank {peer}")

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
