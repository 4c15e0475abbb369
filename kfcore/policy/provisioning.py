"""Workers added as long as each is worth it: KungFu's resource provisioning."""

from kfcore.errors import UsageError
from kfcore.monitors import Undefined
from kfcore.policy.actions import Resize
from kfcore.policy.base import Actions, Policy
from kfcore.policy.observation import Observation

__all__ = ["MarginalThroughput"]


class MarginalThroughput(Policy):
    """Adds a worker after each window until one does not bring enough throughput.

    T[n] is the throughput of all n workers over the second half of a window of ``window``
    steps. If ``T[n] < (1 + alpha / n) T[n-1]`` the last worker is removed and the search ends;
    else another one is added, up to ``cap``. Perfect scaling would give ``1 + 1 / (n - 1)``.

    Args:
        window: Steps, >= 2.
        alpha: Share of the ideal gain that is asked for, > 0.
        cap: Most workers, >= 1.

    Raises:
        UsageError: an argument out of range.

    Source: Mai et al., "KungFu: Making Training in Distributed Machine Learning Adaptive", OSDI
    2020, figure 6, as specified by the authors' artifact (800 steps, alpha 1/3).
    """

    def __init__(self, window: int = 800, alpha: float = 1 / 3, cap: int = 16) -> None:
        if window < 2:
            raise UsageError(f"window must be >= 2, got {window}")
        if not alpha > 0:
            raise UsageError(f"alpha must be > 0, got {alpha}")
        if cap < 1:
            raise UsageError(f"cap must be >= 1, got {cap}")
        self.window, self.alpha, self.cap = window, alpha, cap
        self.steps = 0  # in the window
        self.samples = 0.0
        self.time_s = 0.0
        self.before: float | None = None  # T[n-1]
        self.ended = False

    def after_step(self, seen: Observation) -> Actions:
        """Measure; at the end of a window decide."""
        if self.ended:
            return None
        self.steps += 1
        step_s = seen.metrics["step_s"]
        if self.steps > self.window // 2 and not isinstance(step_s, Undefined):
            self.samples += seen.global_batch
            self.time_s += step_s
        if self.steps < self.window or self.time_s <= 0:
            return None
        now, workers = self.samples / self.time_s, seen.world_size
        before, self.before = self.before, now
        self.steps, self.samples, self.time_s = 0, 0.0, 0.0
        facts = f"T[{workers}] = {now:.4g} samples/s"
        if before is not None and now < (1 + self.alpha / workers) * before:
            self.ended = True
            need = (1 + self.alpha / workers) * before
            return Resize(workers - 1, reason=f"{facts}, less than the {need:.4g} asked for")
        if workers >= self.cap:
            self.ended = True
            return None
        return Resize(workers + 1, reason=facts if before is None else f"{facts}, worth it")
