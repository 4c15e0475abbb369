"""Workers as Ray actors: `run` starts them where Ray has room. Needs the extra ``ray``."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kfcore.config import adopt_environment
from kfcore.errors import AbortedError, TransportError, UsageError
from kfcore.store import StoreServer

__all__ = ["run"]

_CONSEQUENCES = (TransportError, AbortedError)  # of another worker's end
_GRACE_S = 2.0


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
    fails, the others are ended; what was lost with it does not hide its error. To try again is
    the caller's business.

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
            return _results(ray, calls)
        finally:
            for actor in actors:
                ray.kill(actor)


def _results(ray: Any, calls: list[Any]) -> list[Any]:
    """What all calls returned; the first failure ends the waiting."""
    left = list(calls)
    while left:
        done, left = ray.wait(left)
        error = _error(ray, done[0])
        if left and isinstance(error, _CONSEQUENCES):  # the real one may be on its way
            ended, _ = ray.wait(left, num_returns=len(left), timeout=_GRACE_S)
            others = [_error(ray, call) for call in ended]
            causes = [e for e in others if e is not None and not isinstance(e, _CONSEQUENCES)]
            error = causes[0] if causes else error
        if error is not None:
            raise error
    results: list[Any] = ray.get(calls)
    return results


def _error(ray: Any, call: Any) -> Exception | None:
    try:
        ray.get(call)
    except Exception as error:
        return error
    return None


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
