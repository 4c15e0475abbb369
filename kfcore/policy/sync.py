"""When to average models instead of gradients, and how often."""

from math import ceil, sqrt

from kfcore.errors import UsageError
from kfcore.monitors import Undefined
from kfcore.policy.actions import SetSyncMode
from kfcore.policy.base import Actions, Policy
from kfcore.policy.observation import Observation

__all__ = ["AdaComm", "SmaThenAllreduce"]


class AdaComm(Policy):
    """Averages models rarely at first, and more often as the loss falls.

    Every ``interval`` steps: ``k = ceil(k0 * sqrt(F / F0))`` with F the mean loss of the
    interval and F0 that of the first one; where that is not below the present k, half of it.
    The mode is ``local_sgd(k)``.

    Args:
        first_period: k0, steps between two averages at the start, >= 1.
        interval: Steps, >= 1.

    Raises:
        UsageError: an argument out of range.

    Source: Wang and Joshi, "Adaptive communication strategies to achieve the best
    error-runtime trade-off in local-update SGD", SysML 2019, equations 17 and 18.
    """

    def __init__(self, first_period: int = 16, interval: int = 100) -> None:
        if first_period < 1:
            raise UsageError(f"first_period must be >= 1, got {first_period}")
        if interval < 1:
            raise UsageError(f"interval must be >= 1, got {interval}")
        self.first_period, self.interval = first_period, interval
        self.period = first_period
        self.first_loss: float | None = None
        self.total = 0.0
        self.count = 0

    def before_train(self, seen: Observation) -> Actions:  # noqa: ARG002
        """Begin with the longest period."""
        return SetSyncMode(f"local_sgd({self.first_period})", reason="first period")

    def after_step(self, seen: Observation) -> Actions:
        """At the end of an interval, set the period by the loss."""
        loss = seen.metrics["loss"]
        if not isinstance(loss, Undefined):
            self.total += loss
            self.count += 1
        if seen.step % self.interval or not self.count:
            return None
        mean, self.total, self.count = self.total / self.count, 0.0, 0
        if self.first_loss is None:
            self.first_loss = mean
            return None
        if self.first_loss <= 0 or mean < 0:
            return None
        period = max(1, ceil(self.first_period * sqrt(mean / self.first_loss)))
        if period >= self.period:
            period = max(1, ceil(self.period / 2))
        if period == self.period:
            return None
        self.period = period
        return SetSyncMode(
            f"local_sgd({period})", reason=f"loss {mean:.4g}, at first {self.first_loss:.4g}"
        )


class SmaThenAllreduce(Policy):
    """Synchronous model averaging up to a step, averaged gradients after it.

    Averaging explores more while learning rates are large; averaged gradients converge faster
    at the end. At the change all ranks get the mean of their models.

    Args:
        change_step: Step after which gradients are averaged, >= 1.
        alpha: Share of the distance to the mean that a model moves a step, in (0, 1].

    Raises:
        UsageError: an argument out of range.

    Source: KungFu's AdaptiveSGDOptimizer (alpha 0.1), https://github.com/lsds/KungFu.
    """

    def __init__(self, change_step: int, alpha: float = 0.1) -> None:
        if change_step < 1:
            raise UsageError(f"change_step must be >= 1, got {change_step}")
        if not 0 < alpha <= 1:
            raise UsageError(f"alpha must be in (0, 1], got {alpha}")
        self.change_step, self.alpha = change_step, alpha

    def before_train(self, seen: Observation) -> Actions:  # noqa: ARG002
        """Begin with averaging."""
        return SetSyncMode(f"sma({self.alpha:g})", reason="before the change")

    def after_step(self, seen: Observation) -> Actions:
        """Change over."""
        if seen.step != self.change_step:
            return None
        return SetSyncMode("allreduce", reason=f"step {self.change_step}")
