"""Worlds of threads over any transport: the same test for the same promise."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kfcore import inproc_world
from kfcore.config import Config
from kfcore.errors import KfError
from kfcore.session import Session
from kfcore.store import StoreClient, StoreServer
from kfcore.world import open_session

TRANSPORTS = ("inproc", "tcp", "shm")


def run_world(
    transport: str, world_size: int, fn: Callable[[Session], Any], *, timeout_s: float = 20.0
) -> list[Any]:
    """What ``fn`` returns on each rank; raises a cause rather than its consequences."""
    if transport == "inproc":
        return inproc_world(world_size, fn, timeout_s=timeout_s)
    with StoreServer("127.0.0.1", 0, "secret") as server:
        base = Config(
            0,
            world_size,
            0,
            server.address,
            job_id="j",
            job_secret="secret",
            timeout_s=timeout_s,
        )

        def run(rank: int) -> Any:
            with StoreClient(server.address, "secret") as store:
                session = open_session(
                    base.with_rank(rank),
                    store,
                    transport="tcp" if transport == "tcp" else "auto",
                )
                with session:
                    assert world_size == 1 or session.transport == transport
                    return fn(session)

        with ThreadPoolExecutor(world_size) as pool:
            futures = [pool.submit(run, rank) for rank in range(world_size)]
            errors = [future.exception() for future in futures]
    causes = [error for error in errors if error is not None]
    causes.sort(key=lambda error: isinstance(error, KfError))
    if causes:
        raise causes[0]
    return [future.result() for future in futures]
