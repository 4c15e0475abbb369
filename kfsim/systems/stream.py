"""All-reduces of a step, one after another or several at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfsim.fields import field
from kfsim.network import Collective, Links
from kfsim.systems.base import Exchange, StepWork

__all__ = ["TIERS", "Part", "Path", "alone_s", "run_parts", "tier_field"]

Times = NDArray[np.float64]

TIERS = ("auto", "closed_form", "recurrence", "batched", "fluid")


def tier_field() -> Any:
    """The key ``tier`` of a system."""
    return field("auto", doc="how link sharing is computed", choices=TIERS)


@dataclass(frozen=True)
class Part:
    """Gradients that are averaged as one buffer.

    Attributes:
        last_tensor: The last of them that backward finishes.
        size: Bytes.
    """

    last_tensor: int
    size: int


@dataclass(frozen=True)
class Path:
    """How a buffer travels.

    Attributes:
        op_us: Time of each operation beside its transfers (launch, negotiation), microseconds.
        path_gbps: What the data path delivers at most, Gbit/s; None: the card's rate.
        tier: How link sharing is computed.
        segment_bytes: Pipelining unit; 0: whole chunks.
    """

    op_us: float = 0.0
    path_gbps: float | None = None
    tier: str = "auto"
    segment_bytes: int = 0


def run_parts(
    work: StepWork,
    links: Links,
    parts: Sequence[Part],
    path: Path,
    *,
    overlap: bool = True,
    streams: int = 1,
) -> Exchange:
    """Averages buffers in their order.

    With one stream a rank runs one operation at a time. With more, those under way share the
    network equally: each needs its latency, and its share of the rate for the rest.

    Args:
        work: What the ranks compute, and when.
        links: The network.
        parts: In the order in which they are given to the network.
        path: How they travel.
        overlap: Begin while backward runs.
        streams: Operations at a time, >= 1.

    Returns:
        The step's exchange.
    """
    free_s = work.begin_s if overlap else work.end_s
    comm_s, sent = np.zeros(links.world_size), np.zeros(links.world_size, dtype=np.int64)
    starts: list[Times] = []
    for part in parts:
        ready_s = np.maximum(work.ready_s(part.last_tensor), free_s)
        starts.append(ready_s)
        if streams == 1:
            done = _run(links, work, part.size, ready_s + path.op_us * 1e-6, path)
            free_s = done.finish_s
            comm_s += free_s - ready_s
            sent += done.bytes_sent
    if streams > 1 and parts:
        alone = [_run(links, work, part.size, np.zeros_like(free_s), path) for part in parts]
        bare_s = float(_run(links, work, 0, np.zeros_like(free_s), path).finish_s.max())
        fixed_s = bare_s + path.op_us * 1e-6
        need_s = [max(0.0, float(one.finish_s.max()) - bare_s) for one in alone]
        ends = _share([float(s.max()) for s in starts], fixed_s, need_s, streams)
        free_s = np.full(links.world_size, max(ends))
        comm_s = free_s - starts[0]
        sent = sum((one.bytes_sent for one in alone), sent)
    return Exchange(
        finish_s=np.maximum(free_s, work.end_s),
        comm_s=comm_s,
        comm_bytes=sum(part.size for part in parts),
        bytes_sent=sent,
        collectives=len(parts),
    )


def alone_s(links: Links, work: StepWork, size: int, path: Path) -> float:
    """How long one buffer takes when all ranks start together and nothing else is under way.

    Args:
        links: The network.
        work: Gives schedule and element size.
        size: Bytes, >= 0.
        path: How it travels.

    Returns:
        Seconds, `Path.op_us` included.
    """
    zeros = np.zeros(links.world_size)
    done = _run(links, work, size, zeros, path)
    return float(done.finish_s.max()) + path.op_us * 1e-6


def _run(links: Links, work: StepWork, size: int, ready_s: Times, path: Path) -> Collective:
    return links.run(
        work.schedule,
        size,
        ready_s,
        segment_bytes=path.segment_bytes,
        unit_bytes=work.bytes_per_element,
        rate_cap_gbps=path.path_gbps,
        tier=path.tier,
    )


def _share(
    ready_s: Sequence[float], fixed_s: float, need_s: Sequence[float], streams: int
) -> list[float]:
    """When each operation ends; those past their fixed time share one resource equally.

    Operation i starts when it is ready and one of the streams is free, in order.
    """
    count = len(ready_s)
    ends = [0.0] * count
    left = list(need_s)
    waiting = list(range(count))
    active: dict[int, float] = {}  # operation -> when its fixed time is over
    now = 0.0
    while waiting or active:
        while waiting and len(active) < streams and ready_s[waiting[0]] <= now:
            first = waiting.pop(0)
            active[first] = now + fixed_s
        flowing = [i for i, since in active.items() if since <= now]
        moments = [since for since in active.values() if since > now]
        if waiting and len(active) < streams:
            moments.append(ready_s[waiting[0]])
        if flowing:
            moments.append(now + min(left[i] for i in flowing) * len(flowing))
        later = min(moments)
        for i in flowing:
            left[i] -= (later - now) / len(flowing)
            if left[i] <= 1e-12:
                ends[i] = later
                del active[i]
        now = later
    return ends
