"""PyTorch's DistributedDataParallel: buckets in backward order, overlapped with backward.

Tensors fill buckets of ``bucket_mib``, the first of ``first_bucket_mib``; a full bucket is one
all-reduce, started while backward goes on; with ``streams`` > 1 buckets go to process groups in
turn (round robin). Source: Li et al., "PyTorch Distributed", VLDB 2020, sections 3.2 and 5.4;
torch/nn/parallel/distributed.py (bucket_cap_mb 25, first bucket 1 MiB).
"""

from dataclasses import dataclass

from kfsim.fields import field
from kfsim.network import Links
from kfsim.systems.base import Exchange, StepWork
from kfsim.systems.stream import Part, Path, run_parts, tier_field

__all__ = ["Ddp"]


@dataclass(frozen=True)
class Ddp:
    """Buckets as DistributedDataParallel forms them."""

    schedule: str = field("ring", doc="spec of the all-reduce schedule")
    bucket_mib: float = field(25.0, doc="bucket_cap_mb", unit="MiB", above=0)
    first_bucket_mib: float = field(1.0, doc="of the first bucket", unit="MiB", above=0)
    streams: int = field(1, doc="process groups in turn", at_least=1, at_most=64)
    overlap: bool = field(True, doc="start a bucket while backward still runs")
    op_us: float = field(
        0.0, doc="time of an operation beside its transfers", unit="us", at_least=0
    )
    path_gbps: float | None = field(
        None, doc="what the data path delivers; absent: the card's rate", unit="Gbit/s", above=0
    )
    tier: str = tier_field()

    def first_schedule(self) -> str:
        """The one it keeps."""
        return self.schedule

    def exchange(self, work: StepWork, links: Links) -> Exchange:
        """All buckets, in the order in which they fill."""
        path = Path(self.op_us, self.path_gbps, self.tier)
        return run_parts(
            work, links, self._buckets(work), path, overlap=self.overlap, streams=self.streams
        )

    def _buckets(self, work: StepWork) -> list[Part]:
        parts: list[Part] = []
        held, limit = 0, self.first_bucket_mib * 2**20
        for tensor, size in enumerate(work.tensor_bytes().tolist()):
            held += size
            if held >= limit:
                parts.append(Part(tensor, held))
                held, limit = 0, self.bucket_mib * 2**20
        if held:
            parts.append(Part(len(work.model.tensors) - 1, held))
        return parts
