"""Parameter servers, one on each host: push gradients, sum, pull the sums.

Workers of a host first add up inside it (as BytePS does; `local_reduce = false`: each worker
talks to the servers itself, as TensorFlow's did). Tensors are cut into parts of ``part_mib``
and spread over the servers, or each tensor is on one server (``part_mib = 0``). A host's card
carries what its workers push and what its server answers, so each way it carries 2 (h - 1) /
h of the gradients; a server's incoming connections pay `cluster.incast_loss`. Parts go first
come, first served, or by priority of the layer, the first layer first (`priority = true`):
the next forward pass then begins when its first layers are there. Sources: Li et al.,
"Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014; Jiang et al.,
"BytePS", OSDI 2020; Peng et al., "ByteScheduler", SOSP 2019.
"""

from dataclasses import dataclass

import numpy as np

from kfsim.fields import field
from kfsim.network import Links
from kfsim.systems.base import Exchange, StepWork
from kfsim.systems.priority import cut, deliver

__all__ = ["ParameterServer"]


@dataclass(frozen=True)
class ParameterServer:
    """Servers beside the workers."""

    part_mib: float = field(
        4.0, doc="parts that tensors are cut into; 0: whole tensors", unit="MiB", at_least=0
    )
    overlap: bool = field(True, doc="push while backward still runs")
    priority: bool = field(False, doc="first layers first, overlapped with the next forward")
    local_reduce: bool = field(True, doc="workers of a host add up before they push")
    server_gbytes_per_s: float | None = field(
        None, doc="rate at which a server sums; absent: free", unit="GB/s", above=0
    )
    op_us: float = field(0.0, doc="time of a part beside its transfers", unit="us", at_least=0)
    path_gbps: float | None = field(
        None, doc="what the data path delivers; absent: the card's rate", unit="Gbit/s", above=0
    )

    def first_schedule(self) -> str:
        """Named for the log only."""
        return "clique"

    def exchange(self, work: StepWork, links: Links) -> Exchange:
        """Pushes and pulls, a card at a time."""
        pieces = cut(work, int(self.part_mib * 2**20), overlap=self.overlap)
        costs = [self._cost_s(piece.size, links, len(pieces)) for piece in pieces]
        delay_s = self._local_s(work, links)
        finish_s, busy_s = deliver(
            work, pieces, costs, priority=self.priority, delay_s=delay_s + self._trip_s(links)
        )
        size = int(work.tensor_bytes().sum())
        hosts, ranks = links.hosts, links.world_size
        sent = 2 * (hosts - 1) / hosts * size / (ranks / hosts if self.local_reduce else 1)
        return Exchange(
            finish_s=finish_s,
            comm_s=np.full(ranks, busy_s),
            comm_bytes=size,
            bytes_sent=np.full(ranks, round(sent), dtype=np.int64),
            collectives=len(pieces),
        )

    def _trip_s(self, links: Links) -> float:
        return 2 * links.latency_s if links.hosts > 1 else 0.0

    def _cost_s(self, size: int, links: Links, pieces: int) -> float:
        """Seconds that one part keeps the busiest card busy."""
        hosts, cluster = links.hosts, links.cluster
        copies = 1.0 if self.local_reduce else links.world_size / hosts
        carried = 2 * (hosts - 1) / hosts * size * copies
        rate = links.host_bytes_per_s(self.path_gbps)
        if hosts > 1:
            senders = (hosts - 1) * copies
            rate /= 1 + cluster.incast_loss * (senders - 1)
            if cluster.connection_gbps is not None:
                rate = min(rate, senders * cluster.connection_gbps * 1e9 / 8)
        # Fewer parts than servers leave cards idle: the busiest has a whole part.
        carried *= max(1.0, hosts / pieces)
        summed_s = 0.0
        if self.server_gbytes_per_s is not None:
            summed_s = size * copies / (self.server_gbytes_per_s * 1e9)
        return max(carried / rate, summed_s) + self.op_us * 1e-6

    def _local_s(self, work: StepWork, links: Links) -> float:
        """Adding up and handing out one part inside a host; other parts overlap it."""
        gbytes, ranks = links.cluster.local_gbytes_per_s, links.cluster.ranks_per_host
        if gbytes is None or ranks == 1 or not self.local_reduce:
            return 0.0
        size = int(work.tensor_bytes().sum())
        part = min(size, int(self.part_mib * 2**20) or size)
        return 2 * (ranks - 1) / ranks * part / (gbytes * 1e9)
