"""Which schedule is cheapest for measured links, and why."""

import math
from dataclasses import dataclass

from kfcore import _native, checks
from kfcore.errors import UsageError

__all__ = ["Choice", "Hosts", "choices", "choose"]


@dataclass(frozen=True)
class Hosts:
    """Hosts of equally many ranks, ranks of a host in a row.

    Attributes:
        ranks_per_host: Ranks on each host, >= 1; counts where it divides the number of ranks.
        latency_s: Cost of a round inside a host apart from its bytes, in s, >= 0.
        bytes_per_s: Bandwidth of each rank to the ranks of its host, > 0.
    """

    ranks_per_host: int
    latency_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class Choice:
    """A schedule that was compared.

    Attributes:
        spec: For :func:`kfcore.schedule.build`.
        time_s: What it would take, by the cost model, in s.
    """

    spec: str
    time_s: float


def choices(
    buffer_bytes: int,
    world_size: int,
    *,
    latency_s: float,
    bytes_per_s: float,
    reduce_bytes_per_s: float = math.inf,
    collective: str = "all_reduce",
    hosts: Hosts | None = None,
) -> list[Choice]:
    """What ``auto`` compares, the cheapest first.

    ``clique`` and ``star`` are not among them: the model's ideal switch hides what many senders
    at one port do to a real one.

    Args:
        buffer_bytes: Size of the whole buffer, in bytes, >= 0.
        world_size: Number of ranks, in ``[1, 8192]``.
        latency_s: Cost of a round apart from its bytes (alpha), in s, >= 0.
        bytes_per_s: Bandwidth of each port in each direction (1 / beta), > 0.
        reduce_bytes_per_s: Speed of adding (1 / gamma), > 0.
        collective: As in :func:`kfcore.schedule.build`.
        hosts: Links inside hosts, where they differ; the numbers above hold between hosts then.

    Returns:
        At least one.

    Raises:
        UsageError: A number is outside its range, or the collective is unknown.

    Example:
        >>> inside = Hosts(ranks_per_host=4, latency_s=2e-6, bytes_per_s=5e9)
        >>> best = choices(1 << 24, 8, latency_s=5e-5, bytes_per_s=1e9, hosts=inside)[0]
        >>> best.spec.startswith("hierarchical(")
        True
    """
    inside = hosts or Hosts(1, latency_s, bytes_per_s)
    if inside.ranks_per_host < 1:
        raise UsageError(f"ranks_per_host must be >= 1, got {inside.ranks_per_host}")
    found = _native.choices(
        checks.text(collective, "collective"),
        checks.whole_number(buffer_bytes, "buffer_bytes", bits=64),
        checks.whole_number(world_size, "world_size"),
        latency_s,
        bytes_per_s,
        reduce_bytes_per_s,
        checks.whole_number(inside.ranks_per_host, "ranks_per_host"),
        inside.latency_s,
        inside.bytes_per_s,
    )
    return [Choice(spec, time_s) for spec, time_s in found]


def choose(
    buffer_bytes: int,
    world_size: int,
    *,
    latency_s: float,
    bytes_per_s: float,
    reduce_bytes_per_s: float = math.inf,
    collective: str = "all_reduce",
) -> str:
    """Picks the spec that :func:`kfcore.schedule.cost` finds cheapest on a uniform network.

    Args:
        buffer_bytes: Size of the whole buffer, in bytes, >= 0.
        world_size: Number of ranks, in ``[1, 8192]``.
        latency_s: Cost of a round apart from its bytes (alpha), in s, >= 0.
        bytes_per_s: Bandwidth of each rank's port in each direction (1 / beta), > 0.
        reduce_bytes_per_s: Speed of adding (1 / gamma), > 0.
        collective: As in :func:`kfcore.schedule.build`.

    Returns:
        A spec for :func:`kfcore.schedule.build`.

    Raises:
        UsageError: A number is outside its range, or the collective is unknown.

    Example:
        >>> choose(64, 16, latency_s=5e-5, bytes_per_s=1e9)
        'recursive_doubling'
        >>> choose(100_000_000, 12, latency_s=5e-5, bytes_per_s=1e9)
        'ring'
    """
    return choices(
        buffer_bytes,
        world_size,
        latency_s=latency_s,
        bytes_per_s=bytes_per_s,
        reduce_bytes_per_s=reduce_bytes_per_s,
        collective=collective,
    )[0].spec
