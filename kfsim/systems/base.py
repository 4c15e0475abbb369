"""What a system under test is given in a step, and what it gives back."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kfcore.compression import Compression
from kfcore.sync_mode import SyncMode
from kfsim.network import Links
from kfsim.workload import Model

__all__ = ["Exchange", "StepWork", "System"]

Times = NDArray[np.float64]

_ALLREDUCE = SyncMode()
_AS_THEY_ARE = Compression()


@dataclass(frozen=True)
class StepWork:
    """One step's computation on all ranks. Seconds from the job's start.

    Attributes:
        model: Its tensors, in backward order.
        bytes_per_element: Of a gradient.
        begin_s: [world_size] when each rank begins its forward pass.
        compute_s: [world_size] forward and backward.
        forward_fraction: Share of compute_s before backward begins.
        control_bytes: Of the control block that rides in the last bucket.
        schedule: Spec in force, for systems that follow it.
        step: From 1.
        mode: How workers are kept together, likewise.
        bucket_bytes: Of gradients in one operation, likewise; None: the system's own.
        compression: How gradients travel, likewise.
    """

    model: Model
    bytes_per_element: int
    begin_s: Times
    compute_s: Times
    forward_fraction: float
    control_bytes: int
    schedule: str
    step: int = 1
    mode: SyncMode = _ALLREDUCE
    bucket_bytes: int | None = None
    compression: Compression = _AS_THEY_ARE

    @property
    def end_s(self) -> Times:
        """[world_size] when backward ends."""
        return self.begin_s + self.compute_s

    def ready_s(self, tensor: int) -> Times:
        """[world_size] when a tensor's gradient is ready on each rank."""
        backward = 1.0 - self.forward_fraction
        share = self.forward_fraction + backward * self.model.backward_end[tensor]
        ready: Times = self.begin_s + self.compute_s * share
        return ready

    def all_ready_s(self) -> Times:
        """[tensors] when each gradient is ready on every rank."""
        backward = 1.0 - self.forward_fraction
        share = self.forward_fraction + backward * self.model.backward_end
        latest: Times = (self.begin_s[:, None] + self.compute_s[:, None] * share).max(axis=0)
        return latest

    def tensor_bytes(self) -> NDArray[np.int64]:
        """[tensors] bytes of each gradient."""
        return self.model.elements * self.bytes_per_element


@dataclass(frozen=True)
class Exchange:
    """How a step's gradients were averaged.

    Attributes:
        finish_s: [world_size] when each rank has all averaged gradients.
        comm_s: [world_size] time with a collective under way, whether it was waited for or not.
        comm_bytes: Bytes of gradients given to all-reduce by each rank.
        bytes_sent: [world_size] int64, on the wire.
        collectives: Number of them.
    """

    finish_s: Times
    comm_s: Times
    comm_bytes: int
    bytes_sent: NDArray[np.int64]
    collectives: int


class System(Protocol):
    """A way to average gradients. Immutable: all state of a step is in its arguments."""

    def first_schedule(self) -> str:
        """Spec of the all-reduce schedule at the start."""
        ...

    def exchange(self, work: StepWork, links: Links) -> Exchange:
        """Average one step's gradients over all ranks.

        Args:
            work: What the ranks compute, and when.
            links: The network, as it is in this step.

        Returns:
            When each rank has them, and what went over the wire.
        """
        ...
