"""Learning rates that follow the batch: linear and square-root scaling, AdaScale."""

from kfcore.errors import UsageError
from kfcore.monitors import GradientNoiseScale, Undefined
from kfcore.policy.actions import SetLearningRate
from kfcore.policy.base import Actions, Policy
from kfcore.policy.observation import Observation

__all__ = ["AdaScaleRate", "LinearScaling", "SqrtScaling"]


class LinearScaling(Policy):
    """Keeps the learning rate proportional to the global batch, with a ramp after each change.

    ``rate = rate0 * B / B0``; after a change of B it moves there in equal steps over
    ``warmup_steps``. rate0 is the rate at the start, which is meant for a batch of B0.

    Args:
        base_batch: B0, samples of all ranks, >= 1.
        warmup_steps: Length of the ramp, >= 0.

    Raises:
        UsageError: an argument out of range.

    Source: Goyal et al., "Accurate, large minibatch SGD", 2017 (5 epochs of warm-up there).
    """

    power = 1.0

    def __init__(self, base_batch: int, warmup_steps: int = 0) -> None:
        if base_batch < 1:
            raise UsageError(f"base_batch must be >= 1, got {base_batch}")
        if warmup_steps < 0:
            raise UsageError(f"warmup_steps must be >= 0, got {warmup_steps}")
        self.base_batch, self.warmup_steps = base_batch, warmup_steps
        self.base_rate = 0.0
        self.batch = 0  # the one that the ramp leads to
        self.ramp_from = 0.0
        self.ramp_step = 0  # step at which the ramp began

    def before_train(self, seen: Observation) -> Actions:
        """Remember the rate, and begin the first ramp."""
        self.base_rate = self.ramp_from = seen.learning_rate
        return self._follow(seen)

    def after_step(self, seen: Observation) -> Actions:
        """Go on with the ramp, or begin one."""
        return self._follow(seen)

    def _follow(self, seen: Observation) -> Actions:
        if seen.global_batch != self.batch:
            self.batch, self.ramp_step = seen.global_batch, seen.step
            self.ramp_from = seen.learning_rate
        target = self.base_rate * (self.batch / self.base_batch) ** self.power
        done = (seen.step + 1 - self.ramp_step) / max(1, self.warmup_steps)
        rate = target if done >= 1 else self.ramp_from + done * (target - self.ramp_from)
        if rate == seen.learning_rate:
            return None
        return SetLearningRate(
            rate, reason=f"global batch {self.batch}, base batch {self.base_batch}"
        )


class SqrtScaling(LinearScaling):
    """Keeps the learning rate proportional to the square root of the global batch.

    ``rate = rate0 * sqrt(B / B0)``, for Adam and its like; else as `LinearScaling`.

    Args:
        base_batch: B0, samples of all ranks, >= 1.
        warmup_steps: Length of the ramp, >= 0.

    Raises:
        UsageError: an argument out of range.

    Source: Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014;
    Malladi et al., "On the SDEs and scaling rules for adaptive gradient algorithms", 2022.
    """

    power = 0.5


class AdaScaleRate(Policy):
    """Scales the learning rate by what the larger batch is worth.

    ``rate = rate0 * gain`` with ``gain = (var / B0 + sqr) / (var / B + sqr)``, at most B / B0;
    var and sqr as `GradientNoiseScale` averages them. Nothing changes while they are undefined,
    and while the new rate is within ``tolerance`` of the present one.

    Args:
        base_batch: B0, samples of all ranks for which the first learning rate is meant, >= 1.
        tolerance: Relative change that is worth proposing, >= 0.

    Raises:
        UsageError: an argument out of range.

    Source: Johnson et al., "AdaScale SGD: A user-friendly algorithm for distributed training",
    ICML 2020.
    """

    monitors = (GradientNoiseScale(decay=0.99, name="adascale_gns"),)

    def __init__(self, base_batch: int, tolerance: float = 0.02) -> None:
        if base_batch < 1:
            raise UsageError(f"base_batch must be >= 1, got {base_batch}")
        if not tolerance >= 0:
            raise UsageError(f"tolerance must be >= 0, got {tolerance}")
        self.base_batch, self.tolerance = base_batch, tolerance
        self.base_rate = 0.0

    def before_train(self, seen: Observation) -> None:
        """Remember the rate."""
        self.base_rate = seen.learning_rate

    def after_step(self, seen: Observation) -> Actions:
        """Follow the gain."""
        sqr, var = seen.metrics["adascale_gns_sqr"], seen.metrics["adascale_gns_var"]
        if isinstance(sqr, Undefined) or isinstance(var, Undefined) or sqr <= 0:
            return None
        noise = max(var, 0.0)
        gain = (noise / self.base_batch + sqr) / (noise / seen.global_batch + sqr)
        rate = self.base_rate * gain
        if abs(rate - seen.learning_rate) <= self.tolerance * seen.learning_rate:
            return None
        return SetLearningRate(rate, reason=f"gain {gain:.4g} at batch {seen.global_batch}")
