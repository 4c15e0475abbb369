"""Changes at steps that are known beforehand."""

from collections.abc import Mapping

from kfcore.errors import UsageError
from kfcore.policy.actions import Resize, SetLocalBatch, SetSchedule
from kfcore.policy.base import Actions, Policy
from kfcore.policy.observation import Observation

__all__ = ["FixedSchedule", "ScheduledBatch", "ScheduledResize"]


def _parse(plan: str | Mapping[int, int]) -> dict[str, int]:
    try:
        pairs = (
            list(plan.items())
            if isinstance(plan, Mapping)
            else [tuple(map(int, item.split(":"))) for item in plan.split(",")]
        )
        out = {int(step): int(value) for step, value in pairs}
    except ValueError as error:
        raise UsageError(f"a plan must read 'step:value,step:value', got {plan!r}") from error
    if any(step < 1 or value < 1 for step, value in out.items()):
        raise UsageError(f"steps and values of a plan must be >= 1, got {plan!r}")
    return {str(step): value for step, value in out.items()}  # text: states travel as JSON


class ScheduledBatch(Policy):
    """Sets the local batch at given steps.

    Args:
        plan: ``"100:64,200:128"`` or a mapping: after step 100 the batch becomes 64 samples a
            rank, and so on. As with every proposal it is in force one step later.

    Raises:
        UsageError: the plan is malformed.

    Source: Smith et al., "Don't decay the learning rate, increase the batch size", ICLR 2018.
    """

    def __init__(self, plan: str | Mapping[int, int]) -> None:
        self.plan = _parse(plan)

    def after_step(self, seen: Observation) -> Actions:
        """Look the step up."""
        if str(seen.step) not in self.plan:
            return None
        return SetLocalBatch(self.plan[str(seen.step)], reason=f"planned for step {seen.step}")


class ScheduledResize(Policy):
    """Sets the number of workers at given steps.

    Args:
        plan: ``"10:4,20:1"`` or a mapping: after step 10 there are to be 4 workers, and so on.

    Raises:
        UsageError: the plan is malformed.

    Source: KungFu's ScheduledElasticPolicy, https://github.com/lsds/KungFu.
    """

    def __init__(self, plan: str | Mapping[int, int]) -> None:
        self.plan = _parse(plan)

    def after_step(self, seen: Observation) -> Actions:
        """Look the step up."""
        if str(seen.step) not in self.plan:
            return None
        return Resize(self.plan[str(seen.step)], reason=f"planned for step {seen.step}")


class FixedSchedule(Policy):
    """Sets the all-reduce schedule before the first step, and keeps it.

    Args:
        schedule: Spec, e.g. ``binary_tree``.
    """

    def __init__(self, schedule: str) -> None:
        self.schedule = schedule

    def before_train(self, seen: Observation) -> Actions:  # noqa: ARG002
        """Ask for the schedule."""
        return SetSchedule(self.schedule, reason="fixed by the user")
