"""Batches by rule: the critical batch, CABS, and AdaBatch's ramp."""

from kfcore.errors import UsageError
from kfcore.monitors import GradientNoiseScale, Undefined
from kfcore.policy.actions import SetLearningRate, SetLocalBatch
from kfcore.policy.base import Actions, Policy
from kfcore.policy.observation import Observation

__all__ = ["AdaBatch", "Cabs", "CriticalBatch"]


class _RuleBatch(Policy):
    """Sets the local batch to what a rule says about the global one, every so often."""

    monitors = (GradientNoiseScale(decay=0.95, name="batch_gns"),)

    def __init__(self, smallest: int, cap: int, interval: int, tolerance: float) -> None:
        if not 1 <= smallest <= cap:
            raise UsageError(f"1 <= smallest <= cap, got {smallest} and {cap}")
        if interval < 1:
            raise UsageError(f"interval must be >= 1, got {interval}")
        if not tolerance >= 0:
            raise UsageError(f"tolerance must be >= 0, got {tolerance}")
        self.smallest, self.cap = smallest, cap
        self.interval, self.tolerance = interval, tolerance

    def _wanted(self, seen: Observation) -> tuple[float, str] | None:
        """The global batch and why, or None when it is not known."""
        raise NotImplementedError

    def after_step(self, seen: Observation) -> Actions:
        """Apply the rule at the end of an interval."""
        if seen.step % self.interval:
            return None
        wanted = self._wanted(seen)
        if wanted is None:
            return None
        batch, reason = wanted
        local = min(max(round(min(batch, 1e15) / seen.world_size), self.smallest), self.cap)
        if abs(local - seen.local_batch) <= self.tolerance * seen.local_batch:
            return None
        return SetLocalBatch(local, reason=reason)


class CriticalBatch(_RuleBatch):
    """Keeps the global batch at the noise scale, where time and data are traded evenly.

    ``B = gns``, shared by the ranks and clamped to [smallest, cap] a rank. At the critical
    batch, twice the steps of an infinite batch and twice the samples of a tiny one are needed.

    Args:
        smallest: Smallest local batch, samples, >= 1.
        cap: Largest local batch, samples, >= ``smallest``.
        interval: Steps between two looks, >= 1.
        tolerance: Relative change of the batch that is worth proposing, >= 0.

    Raises:
        UsageError: an argument out of range.

    Source: McCandlish et al., "An empirical model of large-batch training", 2018, section 2.
    """

    def __init__(
        self, smallest: int = 1, cap: int = 1024, interval: int = 50, tolerance: float = 0.2
    ) -> None:
        super().__init__(smallest, cap, interval, tolerance)

    def _wanted(self, seen: Observation) -> tuple[float, str] | None:
        gns = seen.metrics["batch_gns"]
        return None if isinstance(gns, Undefined) else (gns, f"noise scale {gns:.4g}")


class Cabs(_RuleBatch):
    """Couples the batch to learning rate, gradient variance and loss.

    ``B = rate * tr(Sigma) / F`` with F the loss, shared by the ranks and clamped to [smallest,
    cap] a rank: the noise of a step then shrinks with the distance to the optimum, for a loss
    whose least value is near 0.

    Args:
        smallest: Smallest local batch, samples, >= 1.
        cap: Largest local batch, samples, >= ``smallest``.
        interval: Steps between two looks, >= 1.
        tolerance: Relative change of the batch that is worth proposing, >= 0.

    Raises:
        UsageError: an argument out of range.

    Source: Balles, Romero, Hennig, "Coupling adaptive batch sizes with learning rates", UAI
    2017, equation 11.
    """

    def __init__(
        self, smallest: int = 1, cap: int = 1024, interval: int = 10, tolerance: float = 0.1
    ) -> None:
        super().__init__(smallest, cap, interval, tolerance)

    def _wanted(self, seen: Observation) -> tuple[float, str] | None:
        var, loss = seen.metrics["batch_gns_var"], seen.metrics["loss"]
        if isinstance(var, Undefined) or isinstance(loss, Undefined) or loss <= 0:
            return None
        batch = seen.learning_rate * max(var, 0.0) / loss
        return batch, f"tr(Sigma) {var:.4g}, loss {loss:.4g}"


class AdaBatch(Policy):
    """Multiplies the batch after every so many epochs, instead of decaying the rate as much.

    After each ``every_epochs``: ``local_batch = min(factor * local_batch, cap)`` and
    ``learning_rate *= decay * (new batch / old batch)``, so that rate over batch decays by
    ``decay``. Source of the defaults: the paper's CIFAR-100 runs.

    Args:
        every_epochs: >= 1.
        factor: > 1.
        decay: Of rate over batch, in (0, 1].
        cap: Largest local batch, samples, >= 1.

    Raises:
        UsageError: an argument out of range.

    Source: Devarakonda, Naumov, Garland, "AdaBatch: Adaptive batch sizes for training deep
    neural networks", 2017.
    """

    def __init__(
        self, every_epochs: int = 20, factor: float = 2.0, decay: float = 0.375, cap: int = 1024
    ) -> None:
        if every_epochs < 1 or cap < 1:
            raise UsageError(f"every_epochs and cap must be >= 1, got {every_epochs} and {cap}")
        if not factor > 1:
            raise UsageError(f"factor must be > 1, got {factor}")
        if not 0 < decay <= 1:
            raise UsageError(f"decay must be in (0, 1], got {decay}")
        self.every_epochs, self.factor, self.decay, self.cap = every_epochs, factor, decay, cap

    def after_epoch(self, seen: Observation) -> Actions:
        """Multiply."""
        if seen.epoch % self.every_epochs:
            return None
        batch = max(seen.local_batch, min(int(self.factor * seen.local_batch), self.cap))
        rate = seen.learning_rate * self.decay * batch / seen.local_batch
        reason = f"after {seen.epoch} epochs"
        return [SetLocalBatch(batch, reason=reason), SetLearningRate(rate, reason=reason)]
