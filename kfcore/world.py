"""Opens sessions: of a launched job, and of a world of threads for tests."""

import warnings
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from kfcore import _native
from kfcore.address import advertised_host
from kfcore.checks import whole_number
from kfcore.config import Config
from kfcore.errors import AbortedError, PeerLostError, UsageError
from kfcore.memory import POOL
from kfcore.probe import measured_spec
from kfcore.session import Session
from kfcore.store import StoreClient, connect_store
from kfcore.view import View

__all__ = ["init", "inproc_world", "open_session"]

DEFAULT_SCHEDULE = "ring"
DEFAULT_SEGMENT_BYTES = 256 * 1024

T = TypeVar("T")


def init(*, schedule: str = "auto", transport: str = "auto", **explicit: Any) -> Session:
    """Open this worker's session: read its configuration, meet the others, connect.

    Without a launcher it is the session of a single process.

    Args:
        schedule: Spec of the schedule that operations use at first. ``auto`` measures the links
            (`kfcore.probe`) and chooses for each operation by its size.
        transport: ``auto``: shared memory between workers of one host, TCP between hosts;
            ``tcp``: TCP between all workers.
        **explicit: Fields of `kfcore.config.Config`, which win over the environment.

    Returns:
        The session; closing it leaves the job's store too.

    Raises:
        UsageError: The configuration or schedule is not usable.
        DeadlineError: The store or a peer was not reached within ``timeout_s``.
        TransportError: The store or a peer refused this worker.

    Example:
        >>> import kfcore, numpy
        >>> with kfcore.init(rank=0, world_size=1) as session:
        ...     session.all_reduce(numpy.ones(3))
        array([1., 1., 1.])
    """
    config = Config.from_env(**explicit)
    store = connect_store(config)
    try:
        return open_session(
            config,
            store,
            schedule=schedule,
            transport=transport,
            on_close=None if store is None else store.close,
        )
    except BaseException:
        if store is not None:
            store.close()
        raise


def open_session(
    config: Config,
    store: StoreClient | None,
    *,
    schedule: str = DEFAULT_SCHEDULE,
    view_version: int = 1,
    segment_bytes: int = DEFAULT_SEGMENT_BYTES,
    transport: str = "auto",
    on_close: Callable[[], None] | None = None,
) -> Session:
    """Open the session of one view: publish an address, read the others', connect to all.

    A worker listens on a port that the system chooses and publishes it as
    ``view/<view_version>/rank/<rank>``; its address is its member id.

    Args:
        config: This worker's place in the job.
        store: Where the workers meet; None for a single process.
        schedule: Spec of the schedule that operations use at first; ``auto`` measures first.
        view_version: Version of the view, the same on every worker, >= 0.
        segment_bytes: Pitch of pipelining, in bytes; a positive multiple of 16.
        transport: ``auto``: shared memory between workers of one host, TCP between hosts;
            ``tcp``: TCP between all workers.
        on_close: Called once, after the session was closed.

    Returns:
        A session in which every rank has heard of every other.

    Raises:
        UsageError: No store for more than one worker, or a bad schedule or transport.
        DeadlineError: Not all workers were there within ``config.timeout_s``.
        StaleViewError: The others are in a newer view.
        TransportError: No socket could be opened, or a peer refused this worker.
    """
    if transport not in ("auto", "tcp"):
        raise UsageError(f"transport must be auto or tcp, got {transport!r}")
    if config.simd is not None:
        _native.use_simd_level(config.simd)
    if config.world_size == 1:
        view = View(view_version, ("single",))
        native = _native.open_inproc_session(
            _native.InprocHub(1), _native_view(view), 0, schedule, segment_bytes
        )
        return Session(native, view, timeout_s=config.timeout_s, on_close=on_close)
    if store is None:
        raise UsageError(f"world_size {config.world_size} needs a store where workers meet")
    listener = _native.TcpListener(advertised_host(config, store.address), 0)
    store.set(_address_key(view_version, config.rank), listener.address)
    addresses = [
        store.get(_address_key(view_version, rank), config.timeout_s)
        for rank in range(config.world_size)
    ]
    view = View(view_version, tuple(addresses))
    native, warning = _native.open_host_session(
        listener,
        _native_view(view),
        config.rank,
        config.job_id,
        config.job_secret,
        addresses,
        schedule,
        segment_bytes,
        config.timeout_s,
        transport == "auto",
        POOL,
    )
    if warning:
        warnings.warn(f"using TCP within this host: {warning}", RuntimeWarning, stacklevel=2)
    session = Session(native, view, timeout_s=config.timeout_s, on_close=on_close)
    # a worker that goes on has been seen by all, so the store may go when the first one leaves
    session.barrier(name="kf/open")
    if schedule == "auto":
        session.set_schedule(measured_spec(session, addresses))
    return session


def inproc_world(
    world_size: int,
    fn: Callable[[Session], T],
    *,
    schedule: str = "ring",
    timeout_s: float = 30.0,
    segment_bytes: int = DEFAULT_SEGMENT_BYTES,
) -> list[T]:
    """Run a function on every rank of a world of threads in this process.

    Args:
        world_size: Number of ranks, >= 1.
        fn: Called once a rank with its session, which is closed afterwards.
        schedule: Spec of the schedule.
        timeout_s: Longest time an operation may take, in seconds.
        segment_bytes: Pitch of pipelining, in bytes; a positive multiple of 16.

    Returns:
        What ``fn`` returned, by rank.

    Raises:
        UsageError: ``world_size`` or ``schedule`` is not usable.
        BaseException: The error of the rank that failed first, rather than those of the ranks
            that failed because of it.
    """
    hub = _native.InprocHub(whole_number(world_size, "world_size"))
    view = View(1, tuple(f"thread-{rank}" for rank in range(world_size)))
    native_view = _native_view(view)
    sessions = [
        Session(
            _native.open_inproc_session(hub, native_view, rank, schedule, segment_bytes),
            view,
            timeout_s=timeout_s,
        )
        for rank in range(world_size)
    ]

    def run(session: Session) -> T:
        with session:
            return fn(session)

    with ThreadPoolExecutor(world_size, thread_name_prefix="rank") as pool:
        futures = [pool.submit(run, session) for session in sessions]
        wait(futures, return_when=FIRST_EXCEPTION)
        errors = [f.exception() for f in futures]  # waits for the rest
    # a rank that fails closes its session, so the others fail too: report the cause
    causes = [e for e in errors if e is not None]
    causes.sort(key=lambda e: isinstance(e, (PeerLostError, AbortedError)))
    if causes:
        raise causes[0]
    return [f.result() for f in futures]


def _address_key(view_version: int, rank: int) -> str:
    return f"view/{view_version}/rank/{rank}"


def _native_view(view: View) -> _native.View:
    return _native.View(view.version, list(view.members))
