"""Opens the sessions behind ``torch.distributed``'s back end ``kf``."""

import atexit
import contextlib
import secrets
import sys
import weakref
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch._C._distributed_c10d as torch_c10d
import torch.distributed as dist

from kfcore.address import advertised_host
from kfcore.config import Config
from kfcore.errors import DeadlineError, UsageError
from kfcore.session import Session
from kfcore.store import connect_store
from kfcore.store.wire import parse_address
from kfcore.torch.process_group import ProcessGroup
from kfcore.world import open_session

__all__ = ["register", "session"]

_SECRET_KEY = "secret"  # noqa: S105 - where it lies, not what it is
_groups: "weakref.WeakSet[ProcessGroup]" = weakref.WeakSet()
_made: Counter[str] = Counter()


class _TorchStore:
    """torch's store, as far as opening a session needs one."""

    def __init__(self, store: Any, prefix: str) -> None:
        self._store, self._prefix = store, prefix
        # where it is in the network; a file or a store given by the program is nowhere
        self.address = Config.from_env().store_address or "127.0.0.1:1"

    def set(self, key: str, value: str) -> None:
        self._store.set(self._prefix + key, value)

    def get(self, key: str, timeout_s: float) -> str:
        try:
            self._store.wait([self._prefix + key], timedelta(seconds=timeout_s))
            return str(self._store.get(self._prefix + key).decode())
        except (dist.DistStoreError, RuntimeError) as error:
            raise DeadlineError(
                f"torch's store has no {key!r} after {timeout_s:g} s: not all ranks came to "
                f"init_process_group ({error})"
            ) from error


def register() -> None:
    """Make ``kf`` known to ``torch.distributed``; harmless when called again."""
    if hasattr(dist.Backend, "KF"):
        return
    dist.Backend.register_backend("kf", _create, extended_api=True, devices=["cpu"])
    _adopt_launcher()
    atexit.register(_close_all)


def session(group: Any = None) -> Session:
    """The session behind a process group of the back end ``kf``.

    Args:
        group: A process group; None: the default one.

    Returns:
        Its session, for what torch has no words for: monitors, schedules, `kfcore.Job`.

    Raises:
        UsageError: There is no such group, or another back end made it.
    """
    if group is None:
        if not dist.is_initialized():
            raise UsageError('call init_process_group("kf") first')
        group = dist.group.WORLD
    if not isinstance(group, ProcessGroup):
        raise UsageError(f"the process group was made by {dist.get_backend(group)}, not by kf")
    return group.session


def _create(options: Any, backend_options: Any) -> ProcessGroup:
    del backend_options
    rank, size, timeout = options.group_rank, options.group_size, options.timeout
    members = list(options.global_ranks_in_group)
    parent = dist.group.WORLD if members and dist.is_initialized() else None
    if isinstance(parent, ProcessGroup) and parent.exchange is parent.session:
        if members == list(range(parent.size())):
            part: Any = parent.session.group(members)
        else:
            part = parent.session.group(members, name=f"kf/torch/{options.group_id}")
        group = ProcessGroup(part, parent.session, rank, size, timeout, owns=False)
    else:
        # under torchrun a group made after another one was destroyed finds the old one's keys
        _made[options.group_id] += 1
        met = _TorchStore(options.store, f"kf/{_made[options.group_id]}/")
        opened = _open_session(met, rank, size, timeout)
        group = ProcessGroup(opened, opened, rank, size, timeout, owns=True)
    group.keep_store(options.store)
    _groups.add(group)
    return group


def _open_session(met: _TorchStore, rank: int, size: int, timeout: timedelta) -> Session:
    timeout_s = timeout.total_seconds()
    config = Config.from_env()
    secret = config.job_secret
    if size > 1 and not secret:  # torchrun has none: whoever may read torch's store is a member
        if rank == 0:
            met.set(_SECRET_KEY, secrets.token_hex(16))
        secret = met.get(_SECRET_KEY, timeout_s)
    config = Config.from_env(
        rank=rank,
        world_size=size,
        store_address=met.address,
        local_world_size=min(config.local_world_size or size, size),
        hosts_store=False,
        job_secret=secret,
        timeout_s=timeout_s,
    )
    return open_session(config, met)  # type: ignore[arg-type]


def _close_all() -> None:
    for group in list(_groups):  # torch keeps some of them beyond the interpreter's end
        group.shutdown()


def _adopt_launcher() -> None:
    """Let ``init_process_group()`` without an address work in a job started by ``kf run``.

    That launcher has a store of its own and tells its workers nothing of torch's; so rank 0
    hosts one on a free port and publishes where.
    """
    handlers = getattr(sys.modules["torch.distributed.rendezvous"], "_rendezvous_handlers", {})
    original = handlers.get("env")
    if original is None:
        return

    def env(url: str, *args: Any, **kwargs: Any) -> Iterator[tuple[Any, int, int]]:
        if not Config.knows_launcher():
            yield from original(url, *args, **kwargs)
            return
        config = Config.from_env()
        yield _host_store(config), config.rank, config.world_size
        raise RuntimeError("a job of kf run cannot meet again through the same address")

    handlers["env"] = env


_torch_stores = 0


def _host_store(config: Config) -> Any:
    global _torch_stores  # noqa: PLW0603 - each meeting of the job needs another key
    _torch_stores += 1
    if config.world_size == 1:
        return torch_c10d.HashStore()
    store = connect_store(config)
    if store is None:
        raise UsageError("a job of several workers needs a store where they meet")
    timeout = timedelta(seconds=config.timeout_s)
    key = f"torch/store/{_torch_stores}"
    with contextlib.closing(store):
        if config.rank == 0:
            host = advertised_host(config)
            hosted = torch_c10d.TCPStore(host, 0, None, True, timeout, wait_for_workers=False)
            bracketed = f"[{host}]" if ":" in host else host
            store.set(key, f"{bracketed}:{hosted.port}")
            return hosted
        host, port = parse_address(store.get(key, config.timeout_s))
        return torch_c10d.TCPStore(host, port, None, False, timeout, wait_for_workers=False)
