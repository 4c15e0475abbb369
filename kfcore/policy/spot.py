"""Training on machines that may be taken away."""

from math import isfinite, sqrt

import numpy as np

from kfcore.errors import UsageError
from kfcore.monitors import Undefined
from kfcore.policy.actions import Action, Checkpoint, Exclude, Resize
from kfcore.policy.base import Actions, Policy
from kfcore.policy.observation import LocalStep, Observation
from kfcore.policy.signals import Each, Signal

__all__ = ["SpotPreemption"]


class SpotPreemption(Policy):
    """Lets warned workers go in time, fills their places, and saves as often as pays.

    A worker that has notice of its end (`kfcore.Job.give_notice`) is excluded at the next
    boundary, one at a time. While fewer than ``target`` workers are left, ``target`` are asked
    for, ``cooldown_steps`` apart. The state is saved every
    ``sqrt(2 * checkpoint_s * mtbf_s / n)`` seconds of training.

    Args:
        target: Workers wanted, >= 1.
        mtbf_s: Mean time between two losses of one worker, seconds, > 0.
        checkpoint_s: Time that saving takes, seconds, > 0.
        cooldown_steps: Steps between two requests for workers, >= 0.

    Raises:
        UsageError: an argument out of range.

    Source: Young, "A first order approximation to the optimum checkpoint interval", CACM 1974;
    the rest is ours.
    """

    def __init__(
        self,
        target: int,
        mtbf_s: float = 36_000.0,
        checkpoint_s: float = 10.0,
        cooldown_steps: int = 100,
    ) -> None:
        if target < 1:
            raise UsageError(f"target must be >= 1, got {target}")
        if not (0 < mtbf_s < float("inf") and 0 < checkpoint_s < float("inf")):
            raise UsageError(
                f"mtbf_s and checkpoint_s must be > 0, got {mtbf_s} and {checkpoint_s}"
            )
        if cooldown_steps < 0:
            raise UsageError(f"cooldown_steps must be >= 0, got {cooldown_steps}")
        self.target, self.mtbf_s, self.checkpoint_s = target, mtbf_s, checkpoint_s
        self.cooldown_steps = cooldown_steps
        self.unsaved_s = 0.0
        self.asked_at = -1

    def signals(self, local: LocalStep) -> dict[str, Signal]:
        """Whether this rank has notice."""
        return {"leaving_by_rank": Each(np.isfinite(local.notice_s))}

    def after_step(self, seen: Observation) -> Actions:
        """Let go, save, ask for more, in this order of urgency."""
        actions: list[Action] = []
        step_s = seen.metrics["step_s"]
        self.unsaved_s += 0.0 if isinstance(step_s, Undefined) else step_s
        interval_s = sqrt(2 * self.checkpoint_s * self.mtbf_s / seen.world_size)
        if isfinite(interval_s) and self.unsaved_s >= interval_s:
            self.unsaved_s = 0.0
            actions.append(Checkpoint(reason=f"{interval_s:.4g} s of training are not saved"))
        leaving = [r for r, notice in enumerate(seen.signals["leaving_by_rank"]) if notice]
        if leaving and seen.world_size > 1:
            return [*actions, Exclude(leaving[0], reason="its machine will be taken away")]
        resting = self.asked_at >= 0 and seen.step - self.asked_at < self.cooldown_steps
        if not leaving and seen.world_size < self.target and not resting:
            self.asked_at = seen.step
            actions.append(Resize(self.target, reason=f"{seen.world_size} workers are left"))
        return actions
