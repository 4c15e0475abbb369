"""The policy whose parameters e15 searches."""

import kfcore as kf


class ThresholdBatch(kf.Policy):
    """Double batch and learning rate when the noise scale is above a multiple of the batch.

    The rate follows the batch by the linear rule of Goyal et al., 2017.

    factor: multiple of the global batch, ratio. every: steps between decisions. cap: largest
    local batch, samples.
    """

    monitors = (kf.monitors.GradientNoiseScale(decay=0.9),)

    def __init__(self, factor=1.0, every=20, cap=64):
        self.factor, self.every, self.cap = factor, every, cap

    def after_step(self, seen):
        """Decide at every ``every``-th step."""
        if seen.step % self.every or seen.local_batch >= self.cap:
            return None
        if seen.metrics["gns"] > self.factor * seen.global_batch:
            batch = min(2 * seen.local_batch, self.cap)
            rate = seen.learning_rate * batch / seen.local_batch
            reason = f"noise above {self.factor:g} batches"
            return [kf.SetLocalBatch(batch, reason), kf.SetLearningRate(rate, reason)]
        return None
