"""Horovod: a background thread that wakes in cycles, negotiates, fuses and all-reduces.

Each cycle the coordinator learns which tensors are ready on every rank (requests gathered,
responses broadcast), packs them into fusion buffers in the order in which they became ready and
runs the buffers one after another; the next cycle begins no sooner than the previous one's work
has ended. Source: Sergeev and Del Balso, arXiv:1802.05799; horovod/common/operations.cc and
controller.cc of 0.16-0.21 (RunLoopOnce, ComputeResponseList, FuseResponses);
docs/tensor-fusion.rst (64 MB, cycle time 5 ms before 0.20, 1 ms since).
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kfcore.errors import InternalError
from kfsim.fields import field
from kfsim.network import Links
from kfsim.systems.base import Exchange, StepWork
from kfsim.systems.stream import tier_field

__all__ = ["Horovod"]

Times = NDArray[np.float64]

_TUNE_CYCLE_MS = (1.0, 2.5, 5.0, 10.0)
_TUNE_FUSION_MIB = (1.0, 4.0, 16.0, 64.0, 128.0)


@dataclass(frozen=True)
class Horovod:
    """Coordinator, cycle, fusion, one operation at a time."""

    schedule: str = field("ring", doc="spec of the all-reduce schedule")
    cycle_ms: float = field(5.0, doc="HOROVOD_CYCLE_TIME", unit="ms", above=0)
    fusion_mib: float = field(
        64.0, doc="HOROVOD_FUSION_THRESHOLD; 0: no fusion", unit="MiB", at_least=0
    )
    response_cache: bool = field(
        True, doc="requests of known tensors travel as a bit vector (0.16.2 and later)"
    )
    request_us: float = field(
        1.0,
        doc="coordinator's time for one rank's request for one tensor",
        unit="us",
        at_least=0,
    )
    path_gbps: float | None = field(
        None, doc="what the data path delivers; absent: the card's rate", unit="Gbit/s", above=0
    )
    copy_gbytes_per_s: float | None = field(
        None, doc="rate of copies into and out of the fusion buffer; absent: free", unit="GB/s",
        above=0,
    )  # fmt: skip
    op_us: float = field(
        0.0, doc="time of an operation beside its transfers", unit="us", at_least=0
    )
    autotune: bool = field(
        False,
        doc="HOROVOD_AUTOTUNE as it ends: best of 1, 2.5, 5, 10 ms x 1, 4, 16, 64, 128 MiB",
    )
    tier: str = tier_field()

    def first_schedule(self) -> str:
        """The one it keeps."""
        return self.schedule

    def exchange(self, work: StepWork, links: Links) -> Exchange:
        """Cycles until every tensor is averaged."""
        if not self.autotune:
            return self._exchange(work, links)
        settings = itertools.product(_TUNE_CYCLE_MS, _TUNE_FUSION_MIB)
        tried = [
            replace(self, autotune=False, cycle_ms=cycle, fusion_mib=fusion)._exchange(
                work, links
            )
            for cycle, fusion in settings
        ]
        return min(tried, key=lambda one: float(one.finish_s.max()))

    def _exchange(self, work: StepWork, links: Links) -> Exchange:
        ready_s = work.all_ready_s()
        sizes = work.tensor_bytes()
        free_s = np.full(links.world_size, float(work.begin_s.min()))
        comm_s = np.zeros(links.world_size)
        sent = np.zeros(links.world_size, dtype=np.int64)
        operations = 0
        for wake_s, tensors in self._cycles(ready_s, free_s):
            begin_s = np.full(
                links.world_size, wake_s + self._negotiation_s(len(tensors), links)
            )
            for size in self._fuse([int(sizes[t]) for t in tensors]):
                copy_s = self.op_us * 1e-6
                copy_s += 0.0 if self.copy_gbytes_per_s is None else (
                    size / (self.copy_gbytes_per_s * 1e9)
                )  # fmt: skip
                done = links.run(
                    work.schedule,
                    size,
                    begin_s + copy_s,
                    unit_bytes=work.bytes_per_element,
                    rate_cap_gbps=self.path_gbps,
                    tier=self.tier,
                )
                comm_s += done.finish_s + copy_s - begin_s
                sent += done.bytes_sent
                begin_s = done.finish_s + copy_s
                operations += 1
            free_s[:] = begin_s
        return Exchange(
            finish_s=np.maximum(free_s, work.end_s),
            comm_s=comm_s,
            comm_bytes=int(sizes.sum()),
            bytes_sent=sent,
            collectives=operations,
        )

    def _cycles(self, ready_s: Times, free_s: Times) -> Iterator[tuple[float, list[int]]]:
        """Wake-up times at which some tensor is ready on all ranks, and those tensors.

        The caller moves free_s to the end of each cycle's work before it asks for the next.
        """
        cycle_s = self.cycle_ms * 1e-3
        order = np.argsort(ready_s, kind="stable")
        first = 0
        wake_s = float(free_s.max())
        while first < len(order):
            # Wake-ups that find nothing ready change nothing: go to the next useful one.
            waiting_s = float(ready_s[order[first]]) - wake_s
            if waiting_s > 0:
                wake_s += math.ceil(waiting_s / cycle_s - 1e-12) * cycle_s
            count = int(np.searchsorted(ready_s[order], wake_s + 1e-12, side="right")) - first
            if count <= 0:
                raise InternalError(f"Horovod's cycle at {wake_s} s found no ready tensor")
            yield wake_s, order[first : first + count].tolist()
            first += count
            wake_s = max(wake_s + cycle_s, float(free_s.max()))

    def _negotiation_s(self, tensors: int, links: Links) -> float:
        """Gather of requests and broadcast of responses over trees, or one small all-reduce."""
        hops = math.ceil(math.log2(links.world_size)) if links.world_size > 1 else 0
        travel_s = 2 * hops * links.latency_s
        if self.response_cache:
            return travel_s
        return travel_s + self.request_us * 1e-6 * tensors * links.world_size

    def _fuse(self, sizes: list[int]) -> list[int]:
        """Bytes of the fusion buffers: filled in order, never above the threshold together."""
        limit = self.fusion_mib * 2**20
        out: list[int] = []
        for size in sizes:
            if out and out[-1] + size <= limit:
                out[-1] += size
            else:
                out.append(size)
        return out
