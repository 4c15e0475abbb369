"""BSP, WFBP and MG-WFBP: what is averaged together, and when.

BSP sends everything once backward has ended. Wait-free back-propagation (WFBP) sends each
tensor as soon as it is ready. MG-WFBP merges a tensor with the next one where that ends
sooner: starting an all-reduce costs alpha, and waiting for the next tensor costs less than
alpha. Sources: Zhang et al., "Poseidon", USENIX ATC 2017 (WFBP); Shi, Chu and Li, "MG-WFBP",
INFOCOM 2019, algorithm 1, with T(M) = alpha + beta M taken from the simulated network itself.
"""

from dataclasses import dataclass

import numpy as np

from kfsim.fields import field
from kfsim.network import Links
from kfsim.systems.base import Exchange, StepWork
from kfsim.systems.stream import Part, Path, alone_s, run_parts, tier_field

__all__ = ["Bsp", "MgWfbp", "Wfbp"]


@dataclass(frozen=True)
class Wfbp:
    """Each tensor by itself, as soon as it is ready."""

    schedule: str = field("ring", doc="spec of the all-reduce schedule")
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
        """All parts, one after another."""
        path = Path(self.op_us, self.path_gbps, self.tier)
        return run_parts(work, links, self._parts(work, links, path), path)

    def _parts(self, work: StepWork, links: Links, path: Path) -> list[Part]:  # noqa: ARG002
        return [Part(i, size) for i, size in enumerate(work.tensor_bytes().tolist())]


@dataclass(frozen=True)
class Bsp(Wfbp):
    """Everything as one buffer, after backward."""

    def _parts(self, work: StepWork, links: Links, path: Path) -> list[Part]:  # noqa: ARG002
        return [Part(len(work.model.tensors) - 1, int(work.tensor_bytes().sum()))]


@dataclass(frozen=True)
class MgWfbp(Wfbp):
    """Tensors merged where waiting costs less than another start."""

    def _parts(self, work: StepWork, links: Links, path: Path) -> list[Part]:
        sizes = work.tensor_bytes()
        total = int(sizes.sum())
        alpha_s = alone_s(links, work, 0, path)
        beta_s = (alone_s(links, work, total, path) - alpha_s) / total
        ready_s = work.all_ready_s()
        parts: list[Part] = []
        held, free_s = 0, -np.inf
        for tensor, size in enumerate(sizes.tolist()):
            held += size
            if tensor + 1 < len(sizes):
                # Sent now it would begin at start_s; if the next is ready within alpha of that,
                # one operation for both ends sooner than two.
                start_s = max(float(ready_s[tensor]), free_s)
                if float(ready_s[tensor + 1]) < start_s + alpha_s:
                    continue
            free_s = max(float(ready_s[tensor]), free_s) + alpha_s + beta_s * held
            parts.append(Part(tensor, held))
            held = 0
        return parts
