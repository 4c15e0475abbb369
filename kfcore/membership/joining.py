"""How a process becomes a member of its job."""

from typing import Any

from kfcore.config import Config
from kfcore.membership.member import Member
from kfcore.store import StoreClient, StoreServer, connect_store

__all__ = ["join"]


def join(
    *,
    schedule: str = "ring",
    transport: str = "auto",
    heartbeat_s: float | None = None,
    **explicit: Any,
) -> Member:
    """Become a member of this process's job, whose workers may change while it runs.

    A job that was started as an elastic one says how many workers it may have; any other can
    lose all workers but one and takes no new ones. Whoever comes after the job has begun waits
    in `kfcore.Job`, when its first batch is asked for, until it is taken in.

    Args:
        schedule: Spec of the schedule that operations use at first; the same on every worker.
            ``auto`` measures the links of each view anew, as `kfcore.init` does.
        transport: ``auto`` or ``tcp``, as for `kfcore.init`.
        heartbeat_s: Seconds of silence, in the middle of an operation, after which a worker is
            asked whether it lives, and again as many until it is given up; from 0.5 to half
            the time-out of operations; None: 3, or a quarter of that time-out if less.
        **explicit: Fields of `kfcore.config.Config`, which win over the environment.

    Returns:
        The member: a context manager, and what `kfcore.Job` takes for a session.

    Raises:
        UsageError: the configuration is not usable.
        TransportError: the store or the others could not be reached.

    Example:
        >>> import kfcore
        >>> with kfcore.join(rank=0, world_size=1) as member:
        ...     member.world_size, member.version
        (1, 1)
    """
    config = Config.from_env(**explicit)
    server = None
    store = connect_store(config)
    if store is None:  # a single process: nobody can join it
        server = StoreServer()
        store = StoreClient(server.address)
    on_close = None if server is None else server.close
    return Member(
        config,
        store,
        schedule=schedule,
        transport=transport,
        heartbeat_s=heartbeat_s,
        on_close=on_close,
    )
