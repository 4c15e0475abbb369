"""Measures the links of a session when it opens, so that ``auto`` chooses for them.

Two kinds of link are told apart: inside a host and between hosts. Of the latter, one is
measured: by rank 0, with the first rank of the next host. The numbers go from rank 0 to all
others, so every rank writes the same spec of them.

A measurement is never twice the same, yet a choice that flickers would change the last digits
of sums from run to run. So a number counts as its kind's nominal one unless it is more than
eight times off; beyond, it is rounded to nominal times a power of eight. Links inside a
host are not measured: with ranks that outnumber the cores a probe shows the scheduler's delays
there, which may be a hundred times the link's; what they are like follows from the transport.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from kfcore.session import Session
from kfcore.store.wire import parse_address

__all__ = ["Link", "auto_spec", "measured_spec", "ranks_per_host", "snap"]

Array = np.ndarray[Any, np.dtype[np.float64]]
STEP = 8.0  # smaller deviations are noise on a busy machine
PINGS = 20
FIRST_BYTES, MOST_BYTES = 64 << 10, 4 << 20
LONG_ENOUGH_S = 4e-3  # a transfer that takes longer is not followed by a larger one
TAG = -(1 << 40)  # far from what programs use


@dataclass(frozen=True)
class Link:
    """One kind of link.

    Attributes:
        latency_s: Of a small message, in s.
        bytes_per_s: Of a large one.
    """

    latency_s: float
    bytes_per_s: float


NOMINAL_TCP = Link(50e-6, 1.25e9)
# with ranks that outnumber the cores as well as without
NOMINAL_SHM = Link(25e-6, 2e9)
NOMINAL_REDUCE_BYTES_PER_S = 5e9


def snap(value: float, nominal: float) -> float:
    """The number that stands for a measured one.

    Args:
        value: Measured, > 0.
        nominal: What is expected, > 0.

    Returns:
        ``nominal`` times a power of 8, the nearest to ``value`` that lies between them.

    Example:
        >>> snap(7.9, 1.0), snap(8.1, 1.0), snap(0.01, 1.0)
        (1.0, 8.0, 0.015625)
    """
    steps = math.trunc(math.log(value / nominal) / math.log(STEP))
    return float(nominal * STEP**steps)


def ranks_per_host(addresses: Sequence[str]) -> int:
    """How many ranks each host has, where all have as many and ranks of a host are in a row.

    Args:
        addresses: Of all ranks, ``host:port``.

    Returns:
        The number; 1 where hosts are unequal or their ranks are mixed.

    Example:
        >>> ranks_per_host(["10.0.0.1:5", "10.0.0.1:6", "10.0.0.2:5", "10.0.0.2:6"])
        2
        >>> ranks_per_host(["10.0.0.1:5", "10.0.0.2:5", "10.0.0.1:6"])
        1
    """
    hosts = [parse_address(address)[0] for address in addresses]
    per_host = hosts.count(hosts[0])
    if len(hosts) % per_host:
        return 1
    blocks = [hosts[at : at + per_host] for at in range(0, len(hosts), per_host)]
    firsts = {block[0] for block in blocks}
    even = len(firsts) == len(blocks) and all(len(set(block)) == 1 for block in blocks)
    return per_host if even else 1


def auto_spec(
    world_size: int, per_host: int, inside: Link, between: Link, reduce_bytes_per_s: float
) -> str:
    """The spec of ``auto`` for these links.

    Args:
        world_size: Number of ranks.
        per_host: Ranks of each host; ``world_size`` when there is one host.
        inside: Links of a host.
        between: Links between hosts.
        reduce_bytes_per_s: Speed of adding.

    Returns:
        ``auto(...)``, the same text for the same numbers.
    """
    main = inside if per_host == world_size else between
    spec = (
        f"auto(latency_s={main.latency_s!r},bytes_per_s={main.bytes_per_s!r},"
        f"reduce_bytes_per_s={reduce_bytes_per_s!r}"
    )
    if 1 < per_host < world_size:
        spec += (
            f",ranks_per_host={per_host},host_latency_s={inside.latency_s!r},"
            f"host_bytes_per_s={inside.bytes_per_s!r}"
        )
    return spec + ")"


def measured_spec(session: Session, addresses: Sequence[str]) -> str:
    """Measure a session's links; every rank calls it at the same point.

    Takes some milliseconds: 20 round trips and a few transfers of up to 4 MiB over one link
    between hosts, if there are several.

    Args:
        session: Open, of at least two ranks.
        addresses: Of all ranks.

    Returns:
        ``auto(...)`` with the numbers, the same on every rank.

    Raises:
        KfError: As any operation.
    """
    per_host = ranks_per_host(addresses)
    size = session.world_size
    inside = NOMINAL_SHM if session.transport in ("shm", "shm+tcp") else NOMINAL_TCP
    between = NOMINAL_TCP
    if per_host < size:
        between = _snapped(_measure(session, per_host), between)
    adding = snap(_adding_bytes_per_s(), NOMINAL_REDUCE_BYTES_PER_S)
    # rank 0's numbers hold: another rank may even be connected differently
    numbers = np.array([*astuple(inside), *astuple(between), adding])
    session.broadcast(numbers)
    lat_in, rate_in, lat_out, rate_out, adding = numbers.tolist()
    return auto_spec(size, per_host, Link(lat_in, rate_in), Link(lat_out, rate_out), adding)


def _snapped(measured: Link, nominal: Link) -> Link:
    return Link(
        snap(measured.latency_s, nominal.latency_s),
        snap(measured.bytes_per_s, nominal.bytes_per_s),
    )


def _measure(session: Session, peer: int) -> Link:
    """The link between rank 0 and ``peer``; of no meaning on the other ranks."""
    if session.rank not in (0, peer):
        return NOMINAL_TCP
    other = peer if session.rank == 0 else 0
    ball = np.zeros(1)
    latency_s = min(_round_trip(session, other, ball, ball) for _ in range(PINGS)) / 2
    count, bytes_per_s = FIRST_BYTES // 4, 0.0
    go_on = np.ones(1)
    while go_on[0]:
        count *= 4
        block = np.zeros(count // 8)
        took_s = min(_round_trip(session, other, block, ball) for _ in range(3))
        bytes_per_s = max(bytes_per_s, count / max(took_s - latency_s, took_s / 2))
        go_on[0] = took_s < LONG_ENOUGH_S and count < MOST_BYTES
        if session.rank == 0:
            session.send(go_on, other, TAG)
        else:
            session.recv(go_on, other, TAG)
    return Link(latency_s, bytes_per_s)


def _round_trip(session: Session, other: int, there: Array, back: Array) -> float:
    """Seconds, > 0, until an array was sent by rank 0 and another came back."""
    begin_s = time.perf_counter()
    if session.rank == 0:
        session.send(there, other, TAG)
        session.recv(back, other, TAG)
    else:
        session.recv(there, other, TAG)
        session.send(back, other, TAG)
    return max(time.perf_counter() - begin_s, 1e-9)


def _adding_bytes_per_s() -> float:
    total, more = np.zeros(1 << 16, np.float32), np.ones(1 << 16, np.float32)
    best_s = math.inf
    for _ in range(20):
        begin_s = time.perf_counter()
        np.add(total, more, out=total)
        best_s = min(best_s, time.perf_counter() - begin_s)
    return total.nbytes / max(best_s, 1e-9)
