"""No communication at all: each worker runs as fast as it would alone.

Source: the "ideal" line of KungFu's scalability figure (Fig. 9; Mai et al., OSDI 2020).
"""

from dataclasses import dataclass

import numpy as np

from kfsim.network import Links
from kfsim.systems.base import Exchange, StepWork

__all__ = ["Ideal"]


@dataclass(frozen=True)
class Ideal:
    """Gradients need no averaging; ranks never wait for each other."""

    def first_schedule(self) -> str:
        """Named for the log only: nothing is sent."""
        return "ring"

    def exchange(self, work: StepWork, links: Links) -> Exchange:
        """Done as soon as backward is."""
        zeros = np.zeros(links.world_size)
        return Exchange(work.end_s, zeros, 0, zeros.astype(np.int64), 0)
