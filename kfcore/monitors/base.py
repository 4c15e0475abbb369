"""What a monitor is, and what it sees of each step."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from kfcore import _native
from kfcore.monitors.metric import Metric

__all__ = ["Monitor", "RunningMonitor", "StepView"]


@dataclass(frozen=True)
class StepView:
    """One step as the monitors see it: reduced, so the same on every rank.

    Attributes:
        step: Step just finished, from 1.
        world_size: Ranks that took part.
        samples: Samples behind the averaged gradient.
        mean_grad_sq_norm: Mean over ranks of |g_i|^2; NaN when not every rank measured it.
        grad_sq_norm: |G|^2 of the averaged gradient; NaN when not measured.
        gradients: Gradients behind ``mean_grad_sq_norm``: ranks times accumulated micro-steps.
        step_s: Of the slowest rank in the step before, seconds; NaN when not measured.
    """

    step: int
    world_size: int
    samples: float
    mean_grad_sq_norm: float
    grad_sq_norm: float
    gradients: int
    step_s: float = math.nan

    @classmethod
    def of(
        cls,
        step: int,
        world_size: int,
        cluster: _native.ClusterStep,
        grad_sq_norm: float,
        micro_steps: int,
    ) -> "StepView":
        """Put together what the control block brought and what only the driver knows.

        Args:
            step: Just finished.
            world_size: Ranks that took part.
            cluster: The reduced control block.
            grad_sq_norm: As the attribute.
            micro_steps: Gradients that each rank accumulated.

        Returns:
            The view.
        """
        return cls(
            step=step,
            world_size=world_size,
            samples=cluster.samples,
            mean_grad_sq_norm=cluster.mean_grad_sq_norm,
            grad_sq_norm=grad_sq_norm,
            gradients=world_size * micro_steps,
            step_s=cluster.step_s,
        )


class RunningMonitor(Protocol):
    """The state of a monitor in one job."""

    def wants_norms(self, step: int) -> bool:
        """Whether `update` will use the gradient norms of this step."""
        ...

    def update(self, view: StepView) -> None:
        """Take in one step that was not skipped."""
        ...

    def metrics(self) -> Mapping[str, Metric]:
        """Current values; always the same names."""
        ...

    def reset(self) -> None:
        """Forget: the local batch or the world size was changed."""
        ...


class Monitor(Protocol):
    """What a policy lists in ``monitors``: a frozen value, equal when it measures alike."""

    @property
    def name(self) -> str:
        """Name of its main metric, unique in a job."""
        ...

    def start(self) -> RunningMonitor:
        """A fresh state for one job."""
        ...
