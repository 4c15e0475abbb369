"""Another schedule when the network is disturbed: KungFu's communication strategy policy."""

import numpy as np

from kfcore.errors import UsageError
from kfcore.policy.actions import SetSchedule
from kfcore.policy.base import Actions, Policy
from kfcore.policy.observation import LocalStep, Measure, Observation
from kfcore.policy.signals import Signal, Sum

__all__ = ["InterferenceSchedule"]


class InterferenceSchedule(Policy):
    """Switches the schedule, once, when most ranks see the all-reduce slow down.

    Each rank takes its own all-reduce rate (bytes / seconds) after ``reference_step`` measured
    steps as its reference, and from then on votes "slow" whenever its rate is below
    ``threshold`` times that. When more than half of the ranks vote so, the job switches.

    Args:
        schedule: Spec to switch to.
        threshold: Fraction of the reference rate below which a rank votes, in (0, 1).
        reference_step: Measured steps before the reference is taken, >= 1.

    Raises:
        UsageError: an argument out of range.

    Source: Mai et al., "KungFu: Making Training in Distributed Machine Learning Adaptive", OSDI
    2020, figure 5, as specified by the authors' artifact (threshold 0.8, reference after 5
    steps, from a star rooted at rank 0 to one rooted at rank 1, one switch).
    """

    def __init__(
        self,
        schedule: str = "star(root=1)",
        threshold: float = 0.8,
        reference_step: int = 5,
    ) -> None:
        if not 0 < threshold < 1:
            raise UsageError(f"threshold must be in (0, 1), got {threshold}")
        if reference_step < 1:
            raise UsageError(f"reference_step must be >= 1, got {reference_step}")
        self.schedule = schedule
        self.threshold = threshold
        self.reference_step = reference_step
        self.switched = False
        self._local_steps = 0
        self._local_reference: Measure | None = None

    def signals(self, local: LocalStep) -> dict[str, Signal]:
        """This rank's vote, 0 or 1."""
        rate = local.comm_rate
        if not np.all(np.isfinite(rate)):
            return {"slow": Sum(0)}
        self._local_steps += 1
        if self._local_reference is None:
            if self._local_steps >= self.reference_step:
                self._local_reference = rate
            return {"slow": Sum(0)}
        return {"slow": Sum(rate < self.threshold * self._local_reference)}

    def after_step(self, seen: Observation) -> Actions:
        """Count the votes."""
        votes = seen.signals["slow"]
        if self.switched or votes <= seen.world_size / 2:
            return None
        self.switched = True
        return SetSchedule(
            self.schedule,
            reason=f"{votes:.0f} of {seen.world_size} ranks below "
            f"{self.threshold:g} of their reference rate",
        )

    def on_change(self, seen: Observation) -> None:
        """With other workers the old reference means nothing."""
        if any(change.what == "world_size" for change in seen.changes):
            self._local_steps = 0
            self._local_reference = None
