"""Batch and learning rate of greatest goodput: Pollux within one job."""

from kfcore.errors import UsageError
from kfcore.monitors import GradientNoiseScale, Undefined
from kfcore.policy.actions import SetLearningRate, SetLocalBatch
from kfcore.policy.base import Actions
from kfcore.policy.observation import Observation
from kfcore.policy.pacing import PacedPolicy

__all__ = ["PolluxGoodput"]

_CANDIDATES = 50


class PolluxGoodput(PacedPolicy):
    """Chooses the local batch with the greatest goodput, and scales the learning rate with it.

    ``goodput(b) = n b / T(b) * (gns + B0) / (gns + n b)`` with ``T(b) = a + c b + exposed_s``;
    a and c are fitted to the computing times seen (least squares); n is the world size and B0
    the base batch. After a first look it tries twice the batch once, because one batch gives no
    slope. 50 sizes between the smallest and ``cap``, evenly in the logarithm, are compared; the
    batch changes when the best is better by ``margin``. ``rate = rate0 * gain`` with AdaScale's
    ``gain = (gns / B0 + 1) / (gns / B + 1)``. The intra-job part of Pollux, with compute and
    exposed communication added (its gamma = 1).

    Args:
        base_batch: B0, samples of all ranks for which the first learning rate is meant, >= 1.
        cap: Largest local batch, samples, >= 1.
        margin: Relative gain that is worth a change, >= 0.
        cooldown_steps: Steps between two changes of the batch, >= 0.

    Raises:
        UsageError: an argument out of range.

    Source: Qiao et al., "Pollux: Co-adaptive cluster scheduling for goodput-optimized deep
    learning", OSDI 2021, equations 6 to 11.
    """

    monitors = (GradientNoiseScale(decay=0.95, name="pollux_gns"),)

    def __init__(
        self, base_batch: int, cap: int = 1024, margin: float = 0.05, cooldown_steps: int = 20
    ) -> None:
        super().__init__(patience=3, cooldown_steps=cooldown_steps)
        if base_batch < 1 or cap < 1:
            raise UsageError(f"base_batch and cap must be >= 1, got {base_batch} and {cap}")
        if not margin >= 0:
            raise UsageError(f"margin must be >= 0, got {margin}")
        self.base_batch, self.cap, self.margin = base_batch, cap, margin
        self.base_rate = 0.0
        self.smallest = 0
        self.batch_before = 0  # of the step that the times belong to
        self.compute_s: dict[str, list[float]] = {}  # by local batch: sum and count
        self.exposed_s: float | None = None  # running mean

    def before_train(self, seen: Observation) -> None:
        """Remember where training begins."""
        self.base_rate, self.smallest = seen.learning_rate, seen.local_batch

    def after_step(self, seen: Observation) -> Actions:
        """Measure, and look for a better batch."""
        self._measure(seen)
        gns = seen.metrics["pollux_gns"]
        if isinstance(gns, Undefined) or self.exposed_s is None:
            return None
        if len(self.compute_s) < 2:
            best, reason = min(2 * seen.local_batch, self.cap), "one batch gives no slope"
        else:
            best, gain = self._best(seen, gns)
            if gain <= 1 + self.margin:
                best = seen.local_batch
            reason = f"goodput {gain:.3g} times that of {seen.local_batch}, gns {gns:.4g}"
        want = str(best) if best != seen.local_batch else ""
        if not self._may_act(seen.step, want):
            return None
        batch = best * seen.world_size
        rate = self.base_rate * (gns / self.base_batch + 1) / (gns / batch + 1)
        return [SetLocalBatch(best, reason=reason), SetLearningRate(rate, reason=reason)]

    def goodput(self, local_batch: int, workers: int, gns: float) -> float:
        """Useful samples a second that the model predicts.

        Args:
            local_batch: Samples a rank and step.
            workers: Ranks.
            gns: Noise scale, samples.

        Returns:
            Samples of the base batch's worth a second; 0 before two batches were seen.
        """
        fixed_s, sample_s = self._fit()
        step_s = fixed_s + sample_s * local_batch + (self.exposed_s or 0.0)
        batch = workers * local_batch
        return batch / step_s * (gns + self.base_batch) / (gns + batch) if step_s > 0 else 0.0

    def _measure(self, seen: Observation) -> None:
        compute_s, exposed_s = seen.metrics["compute_s"], seen.metrics["exposed_s"]
        batch, self.batch_before = self.batch_before, seen.local_batch
        if batch == 0 or isinstance(compute_s, Undefined) or isinstance(exposed_s, Undefined):
            return
        total = self.compute_s.setdefault(str(batch), [0.0, 0.0])
        total[0] += compute_s
        total[1] += 1
        old = exposed_s if self.exposed_s is None else self.exposed_s
        self.exposed_s = 0.9 * old + 0.1 * exposed_s

    def _fit(self) -> tuple[float, float]:
        points = [(float(b), total / count) for b, (total, count) in self.compute_s.items()]
        if not points:
            return 0.0, 0.0
        mean_b = sum(b for b, _ in points) / len(points)
        mean_s = sum(s for _, s in points) / len(points)
        spread = sum((b - mean_b) ** 2 for b, _ in points)
        slope = sum((b - mean_b) * (s - mean_s) for b, s in points) / spread if spread else 0.0
        slope = min(max(slope, 0.0), mean_s / mean_b)  # neither part of a time is negative
        return mean_s - slope * mean_b, slope

    def _best(self, seen: Observation, gns: float) -> tuple[int, float]:
        low, high = self.smallest, max(self.cap, self.smallest)
        sizes = sorted(
            {round(low * (high / low) ** (i / (_CANDIDATES - 1))) for i in range(_CANDIDATES)}
        )
        now = self.goodput(seen.local_batch, seen.world_size, gns)
        best = max(sizes, key=lambda size: self.goodput(size, seen.world_size, gns))
        return best, self.goodput(best, seen.world_size, gns) / now if now > 0 else 1.0
