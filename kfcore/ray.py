"""Workers as Ray actors: `run` starts them where Ray has room. Needs the extra ``ray``."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kfcore.config import adopt_environment
from kfcore.errors import UsageError
from kfcore.store import StoreServer

__all__ = ["run"]


def run(
    function: Callable[..., Any],
    workers: int,
    *,
    args: Sequence[Any] = (),
    resources: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
) -> list[Any]:
    """Call a function in each of several actors, which find each other with `kfcore.init`.

    Ray must be connected (``ray.init()``). The job's store is in this process. When a worker
    fails, the others are ended. To try again is the caller's business.

    Args:
        function: Called with ``args`` in every worker; Ray must be able to send it.
        workers: Actors, >= 1.
        args: Positional arguments.
        resources: Options of each actor, such as ``{"num_cpus": 2}``; Ray starts all of them
            or waits.
        env: More environment variables of the workers.

    Returns:
        [workers] what the function returned, by rank.

    Raises:
        UsageError: ``workers`` is below 1, or Ray is not installed or not connected.
        Exception: what a worker failed with, as Ray reports it.
    """
    if workers < 1:
        raise UsageError(f"workers must be >= 1, got {workers}")
    ray = _connected()
    host = ray.util.get_node_ip_address()
    options = {"num_cpus": 1, **(resources or {}), "max_restarts": 0}
    secret = secrets.token_hex(32)
    with StoreServer(host, secret=secret) as store:
        actors = [ray.remote(_Worker).options(**options).remote() for _ in range(workers)]
        try:
            nodes = ray.get([actor.node.remote() for actor in actors])
            job = {
                **(env or {}),
                "KF_STORE": store.address,
                "KF_JOB_ID": secrets.token_hex(8),
                "KF_JOB_SECRET": secret,
                "KF_WORLD_SIZE": str(workers),
            }
            calls = [
                actor.call.remote({**job, **place}, function, list(args))
                for actor, place in zip(actors, places(nodes), strict=True)
            ]
            left = list(calls)
            while left:  # the first failure ends the job, whichever worker it is of
                done, left = ray.wait(left)
                ray.get(done)
            results: list[Any] = ray.get(calls)
            return results
        finally:
            for actor in actors:
                ray.kill(actor)


def places(nodes: Sequence[str]) -> list[dict[str, str]]:
    """Ranks of workers, and their places on their nodes.

    Args:
        nodes: Each worker's node, by rank.

    Returns:
        Each worker's variables.

    Example:
        >>> [each["KF_LOCAL_RANK"] for each in places(["a", "b", "a"])]
        ['0', '0', '1']
    """
    return [
        {
            "KF_RANK": str(rank),
            "KF_LOCAL_RANK": str(nodes[:rank].count(node)),
            "KF_LOCAL_WORLD_SIZE": str(nodes.count(node)),
        }
        for rank, node in enumerate(nodes)
    ]


class _Worker:
    """What runs in an actor."""

    def node(self) -> str:
        import ray  # noqa: PLC0415 - optional

        return str(ray.get_runtime_context().get_node_id())

    def call(self, env: dict[str, str], function: Callable[..., Any], args: list[Any]) -> Any:
        adopt_environment(env)
        return function(*args)


def _connected() -> Any:
    try:
        import ray  # noqa: PLC0415 - optional
    except ImportError as error:
        raise UsageError("Ray is not installed: pip install 'kungfu-lab[ray]'") from error
    if not ray.is_initialized():
        raise UsageError("Ray is not connected: call ray.init() first")
    return ray
