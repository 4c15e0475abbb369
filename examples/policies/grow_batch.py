"""Grow the batch while gradient noise says that larger batches waste nothing.

The same file runs on real processes and in the simulator:

    kf run -n 4 --policy examples/policies/grow_batch.py:GrowBatch python examples/digits.py
"""

import kfcore as kf


class GrowBatch(kf.Policy):
    """Doubles the local batch after an epoch whose noise scale is above the global batch."""

    monitors = (kf.monitors.GradientNoiseScale(decay=0.9),)

    def __init__(self, cap: int = 64) -> None:
        self.cap = cap

    def after_epoch(self, seen: kf.Observation) -> kf.SetLocalBatch | None:
        """Compare the agreed noise scale with the batch that is used."""
        gns = seen.metrics["gns"]
        if gns > seen.global_batch and seen.local_batch < self.cap:
            return kf.SetLocalBatch(
                min(2 * seen.local_batch, self.cap),
                reason=f"noise scale {gns:.0f} above global batch {seen.global_batch}",
            )
        return None
