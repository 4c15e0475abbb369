"""Batch growth by gradient noise scale: the adaptive batch size policy of the KungFu paper."""

from kfcore.errors import UsageError
from kfcore.monitors import GradientNoiseScale, Undefined
from kfcore.policy.actions import SetLocalBatch
from kfcore.policy.base import Actions, Policy
from kfcore.policy.observation import Observation

__all__ = ["NoiseScaleBatch"]


class NoiseScaleBatch(Policy):
    """Doubles the local batch after each epoch in which the noise per batch rose.

    ``r = EMA(|gns| / local_batch)``, each new value first clipped to ``[r / 2, 2 r]``, because
    single values are wild. After an epoch: if ``r`` is above its value one epoch ago, then
    ``local_batch = min(2 * local_batch, cap)``. The learning rate is left alone.

    Unlike the original, ``gns`` is agreed over the cluster, so the sum of ``r`` over workers
    that the original compares is ``world_size * r`` here and needs no reduction of its own.

    Args:
        cap: Largest local batch, samples, >= 1.
        decay: Weight of the past in ``r``, in [0, 1).

    Raises:
        UsageError: an argument out of range.

    Source: Mai et al., "KungFu: Making Training in Distributed Machine Learning Adaptive", OSDI
    2020, figure 4, as specified by the authors' artifact (cap 1024, decay 0.9).
    """

    monitors = (GradientNoiseScale(decay=0.9),)

    def __init__(self, cap: int = 1024, decay: float = 0.9) -> None:
        if cap < 1:
            raise UsageError(f"cap must be >= 1, got {cap}")
        if not 0 <= decay < 1:
            raise UsageError(f"decay must be in [0, 1), got {decay}")
        self.cap = cap
        self.decay = decay
        self.ratio: float | None = None
        self.ratio_before: float | None = None

    def after_step(self, seen: Observation) -> None:
        """Follow the noise; a step without a noise scale is left out."""
        gns = seen.metrics["gns"]
        if isinstance(gns, Undefined):
            return
        ratio = abs(gns) / seen.local_batch
        if self.ratio is None:
            self.ratio = ratio
            return
        clipped = min(max(ratio, self.ratio / 2), self.ratio * 2)
        self.ratio = self.decay * self.ratio + (1 - self.decay) * clipped

    def after_epoch(self, seen: Observation) -> Actions:
        """Double the batch if the noise rose since the last epoch."""
        before, self.ratio_before = self.ratio_before, self.ratio
        if before is None or self.ratio is None or self.ratio <= before:
            return None
        if seen.local_batch >= self.cap:
            return None
        return SetLocalBatch(
            min(2 * seen.local_batch, self.cap),
            reason=f"noise scale / local batch rose from {before:.4g} to {self.ratio:.4g}",
        )
