"""A smaller learning rate when the loss falls no more."""

from kfcore.errors import UsageError
from kfcore.monitors import Undefined
from kfcore.policy.actions import SetLearningRate
from kfcore.policy.base import Actions, Policy
from kfcore.policy.observation import Observation

__all__ = ["Plateau"]


class Plateau(Policy):
    """Multiplies the learning rate when the mean loss of an epoch has not improved for long.

    An epoch improves when its mean loss is below ``(1 - threshold)`` times the best one. After
    more than ``patience`` epochs in a row without: ``rate = max(factor * rate, min_rate)``.

    Args:
        factor: In (0, 1).
        patience: Epochs that are forgiven, >= 0.
        threshold: Relative improvement that counts, in [0, 1).
        min_rate: Smallest rate, >= 0.

    Raises:
        UsageError: an argument out of range.

    Source: torch.optim.lr_scheduler.ReduceLROnPlateau, whose rule and defaults these are.
    """

    def __init__(
        self,
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        min_rate: float = 0.0,
    ) -> None:
        if not 0 < factor < 1:
            raise UsageError(f"factor must be in (0, 1), got {factor}")
        if patience < 0:
            raise UsageError(f"patience must be >= 0, got {patience}")
        if not 0 <= threshold < 1:
            raise UsageError(f"threshold must be in [0, 1), got {threshold}")
        if not min_rate >= 0:
            raise UsageError(f"min_rate must be >= 0, got {min_rate}")
        self.factor, self.patience = factor, patience
        self.threshold, self.min_rate = threshold, min_rate
        self.best: float | None = None
        self.bad_epochs = 0
        self.total = 0.0
        self.count = 0

    def after_step(self, seen: Observation) -> None:
        """Add the loss up."""
        loss = seen.metrics["loss"]
        if not isinstance(loss, Undefined):
            self.total += loss
            self.count += 1

    def after_epoch(self, seen: Observation) -> Actions:
        """Compare with the best epoch."""
        if not self.count:
            return None
        mean, self.total, self.count = self.total / self.count, 0.0, 0
        if self.best is None or mean < self.best * (1 - self.threshold):
            self.best, self.bad_epochs = mean, 0
            return None
        self.bad_epochs += 1
        if self.bad_epochs <= self.patience:
            return None
        self.bad_epochs = 0
        rate = max(self.factor * seen.learning_rate, self.min_rate)
        if rate >= seen.learning_rate:
            return None
        return SetLearningRate(
            rate, reason=f"loss {mean:.4g} is no better than {self.best:.4g}"
        )
