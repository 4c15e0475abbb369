"""Communication by priority: the layers that the next forward pass needs first go first.

Tensors are cut into parts; whenever the network is free, the waiting part of the layer
nearest to the input is all-reduced. The next forward pass begins as soon as its first layer
is there and waits layer by layer, so communication also hides behind it. Sources: Peng et
al., "A Generic Communication Scheduler for Distributed DNN Training Acceleration"
(ByteScheduler), SOSP 2019; Jayarajan et al., "Priority-based Parameter Propagation" (P3),
MLSys 2019.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kfsim.fields import field
from kfsim.network import Links
from kfsim.systems.base import Exchange, StepWork
from kfsim.systems.stream import Path, alone_s, tier_field

__all__ = ["Piece", "Priority", "cut", "deliver"]

Times = NDArray[np.float64]


@dataclass(frozen=True)
class Piece:
    """A part of one tensor.

    Attributes:
        tensor: Its place in backward order.
        size: Bytes.
        ready_s: When it is ready on all ranks, seconds.
    """

    tensor: int
    size: int
    ready_s: float


def cut(work: StepWork, part_bytes: int, *, overlap: bool = True) -> list[Piece]:
    """Cuts tensors into parts, in backward order.

    Args:
        work: The step.
        part_bytes: Largest part; 0: whole tensors.
        overlap: Ready as backward goes; else all at its end.

    Returns:
        The parts.
    """
    ready_s = work.all_ready_s()
    last_s = float(work.end_s.max())
    pieces = []
    for tensor, size in enumerate(work.tensor_bytes().tolist()):
        count = -(-size // part_bytes) if part_bytes else 1
        for part in range(count):
            share = size * (part + 1) // count - size * part // count
            at_s = float(ready_s[tensor]) if overlap else last_s
            pieces.append(Piece(tensor, share, at_s))
    return pieces


def deliver(
    work: StepWork,
    pieces: Sequence[Piece],
    costs_s: Sequence[float],
    *,
    priority: bool,
    delay_s: float = 0.0,
) -> tuple[Times, float]:
    """Serves parts one at a time.

    Args:
        work: The step.
        pieces: In backward order.
        costs_s: Seconds each keeps the network busy.
        priority: The part nearest to the input first, and the next forward overlaps; else in
            order of readiness, and the next forward begins when all are there.
        delay_s: From the end of a part's service to its use.

    Returns:
        [world_size] when each rank may begin its next step, seconds (with priority, earlier
        than the last part by what the next forward hides), and for how long the network was
        busy.
    """
    arrived = np.zeros(len(work.model.tensors))
    waiting: list[tuple[int, int]] = []
    now, following = 0.0, 0
    while following < len(pieces) or waiting:
        if not waiting:
            now = max(now, pieces[following].ready_s)
        while following < len(pieces) and pieces[following].ready_s <= now:
            rank = -pieces[following].tensor if priority else 0
            heapq.heappush(waiting, (rank, following))
            following += 1
        _, place = heapq.heappop(waiting)
        now += costs_s[place]
        tensor = pieces[place].tensor
        arrived[tensor] = max(arrived[tensor], now + delay_s)
    if not priority:
        return np.maximum(work.end_s, float(arrived.max())), float(sum(costs_s))
    # Forward reaches the layer whose gradient is ready last first.
    forward_s = work.forward_fraction * work.compute_s[:, None]
    needed_s = work.end_s[:, None] + forward_s * (1.0 - work.model.backward_end)
    stall_s = np.maximum(0.0, (arrived[None, :] - needed_s).max(axis=1))
    return work.end_s + stall_s, float(sum(costs_s))


@dataclass(frozen=True)
class Priority:
    """All-reduce of parts, by priority."""

    schedule: str = field("ring", doc="spec of the all-reduce schedule")
    part_mib: float = field(
        4.0, doc="parts that tensors are cut into; 0: whole tensors", unit="MiB", at_least=0
    )
    op_us: float = field(0.0, doc="time of a part beside its transfers", unit="us", at_least=0)
    path_gbps: float | None = field(
        None, doc="what the data path delivers; absent: the card's rate", unit="Gbit/s", above=0
    )
    tier: str = tier_field()

    def first_schedule(self) -> str:
        """The one it keeps."""
        return self.schedule

    def exchange(self, work: StepWork, links: Links) -> Exchange:
        """All parts, the most urgent first."""
        path = Path(self.op_us, self.path_gbps, self.tier)
        pieces = cut(work, int(self.part_mib * 2**20))
        known: dict[int, float] = {}
        for piece in pieces:
            if piece.size not in known:
                known[piece.size] = alone_s(links, work, piece.size, path)
        finish_s, busy_s = deliver(
            work, pieces, [known[piece.size] for piece in pieces], priority=True
        )
        size = int(work.tensor_bytes().sum())
        zeros = np.zeros(links.world_size)
        whole = links.run(work.schedule, size, zeros, unit_bytes=work.bytes_per_element)
        return Exchange(
            finish_s=finish_s,
            comm_s=np.full(links.world_size, busy_s),
            comm_bytes=size,
            bytes_sent=whole.bytes_sent,
            collectives=len(pieces),
        )
