"""This project's own runtime: schedules over buckets, overlapped with backward.

Buckets are filled in backward order; each is one all-reduce, and a rank runs them one after
another. The control block of the adaptation engine rides in the last. Source: this project's
executor (``docs/architecture.md``); buckets as in Li et al., "PyTorch Distributed", VLDB 2020.
"""

from dataclasses import dataclass

from kfsim.fields import field
from kfsim.network import Links
from kfsim.systems.base import Exchange, StepWork
from kfsim.systems.stream import Part, Path, run_parts, tier_field

__all__ = ["Kf", "buckets"]


@dataclass(frozen=True)
class Kf:
    """Bucketed all-reduce over any schedule."""

    schedule: str = field("ring", doc="spec of the all-reduce schedule at the start")
    bucket_mib: float = field(
        25.0, doc="a bucket is closed when it holds this much", unit="MiB", above=0
    )
    segment_kib: int = field(
        0, doc="pipelining unit; 0: whole chunks", unit="KiB", at_least=0, at_most=2**40
    )
    overlap: bool = field(True, doc="start a bucket while backward still runs")
    tier: str = tier_field()

    def first_schedule(self) -> str:
        """The spec at the start; policies may change it."""
        return self.schedule

    def exchange(self, work: StepWork, links: Links) -> Exchange:
        """All buckets, one after another on each rank."""
        if work.mode.averages_models or work.compression.kind != "none":
            return self._after_backward(work, links)
        parts = buckets(work, work.bucket_bytes or int(self.bucket_mib * 2**20))
        path = Path(tier=self.tier, segment_bytes=self.segment_kib * 1024)
        return run_parts(work, links, parts, path, overlap=self.overlap)

    def _after_backward(self, work: StepWork, links: Links) -> Exchange:
        """Compressed gradients or whole models: one exchange, when backward is over.

        Averaging in pairs and compressed exchanges are costed as a ring that sends the same
        bytes; what coding computes is not counted.
        """
        ranks = links.world_size
        elements = int(work.model.elements.sum())
        size, spec = 0, work.schedule
        if work.mode.kind == "pair_averaging":
            sent = elements * work.bytes_per_element if ranks > 1 else 0
            size, spec = _ring_bytes(sent, ranks), "ring"
        elif work.mode.averages_models:
            due = work.mode.exchanges_after(work.step)
            size = elements * work.bytes_per_element if due else 0
        else:
            sent = work.compression.wire_bytes(elements, ranks)
            size, spec = _ring_bytes(sent, ranks), "ring"
        done = links.run(
            spec,
            size + work.control_bytes,
            work.end_s,
            segment_bytes=self.segment_kib * 1024,
            unit_bytes=work.bytes_per_element,
            tier=self.tier,
        )
        return Exchange(
            finish_s=done.finish_s,
            comm_s=done.finish_s - work.end_s,
            comm_bytes=size,
            bytes_sent=done.bytes_sent,
            collectives=1,
        )


def _ring_bytes(sent: int, ranks: int) -> int:
    """The buffer for whose all-reduce by a ring a rank sends so many bytes."""
    return round(sent * ranks / (2 * (ranks - 1))) if ranks > 1 else 0


def buckets(work: StepWork, bucket_bytes: int) -> list[Part]:
    """Cuts the tensors, in backward order, into buckets.

    Args:
        work: Tensors and control block.
        bucket_bytes: A bucket is closed once it holds at least this much.

    Returns:
        The buckets; the control block is in the last one.
    """
    out: list[Part] = []
    held = 0
    sizes = work.tensor_bytes().tolist()
    for tensor, size in enumerate(sizes):
        held += size
        if held >= bucket_bytes or tensor == len(sizes) - 1:
            out.append(Part(tensor, held))
            held = 0
    out[-1] = Part(out[-1].last_tensor, out[-1].size + work.control_bytes)
    return out
