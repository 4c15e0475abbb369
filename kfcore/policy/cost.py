"""As few workers as the deadline allows."""

from kfcore.errors import UsageError
from kfcore.monitors import Undefined
from kfcore.policy.actions import Resize
from kfcore.policy.base import Actions
from kfcore.policy.observation import Observation
from kfcore.policy.pacing import PacedPolicy

__all__ = ["CostAwareResize"]


class CostAwareResize(PacedPolicy):
    """Changes the number of workers so that the work is done just in time.

    With a price per worker and hour, and throughput that grows less than linearly, fewer
    workers do the work for less money; so the cheapest choice is the smallest that meets the
    deadline. The rate needed is what is left of ``total_samples`` over what is left of
    ``deadline_s``. Below it by any amount: one worker more, or as many as linear growth would
    need. Above it even with ``(n - 1) / n`` of the present throughput, by ``slack``: one worker
    less. Throughput is a running mean that starts afresh after each resize.

    Args:
        total_samples: Of the whole training, >= 1.
        deadline_s: For all steps together, seconds from the start, > 0.
        min_workers: >= 1.
        max_workers: >= ``min_workers``.
        slack: Relative reserve before a worker is given back, >= 0.
        cooldown_steps: Steps between two changes, >= 0.

    Raises:
        UsageError: an argument out of range.

    Source: ours, after Wu et al., "Can't be late", NSDI 2024 (progress along the deadline
    line).
    """

    def __init__(
        self,
        total_samples: int,
        deadline_s: float,
        min_workers: int = 1,
        max_workers: int = 16,
        slack: float = 0.1,
        cooldown_steps: int = 20,
    ) -> None:
        super().__init__(patience=5, cooldown_steps=cooldown_steps)
        if total_samples < 1:
            raise UsageError(f"total_samples must be >= 1, got {total_samples}")
        if not 0 < deadline_s < float("inf"):
            raise UsageError(f"deadline_s must be > 0, got {deadline_s}")
        if not 1 <= min_workers <= max_workers:
            raise UsageError(
                f"1 <= min_workers <= max_workers, got {min_workers} and {max_workers}"
            )
        if not slack >= 0:
            raise UsageError(f"slack must be >= 0, got {slack}")
        self.total_samples, self.deadline_s, self.slack = total_samples, deadline_s, slack
        self.min_workers, self.max_workers = min_workers, max_workers
        self.elapsed_s = 0.0
        self.samples = 0.0  # since the last resize, with their time
        self.time_s = 0.0

    def after_step(self, seen: Observation) -> Actions:
        """Compare the pace with the one that is needed."""
        step_s = seen.metrics["step_s"]
        if isinstance(step_s, Undefined):
            return None
        self.elapsed_s += step_s
        self.samples = 0.9 * self.samples + seen.global_batch
        self.time_s = 0.9 * self.time_s + step_s
        left = self.total_samples - seen.samples
        if left <= 0 or self.time_s <= 0:
            return None
        left_s = self.deadline_s - self.elapsed_s
        pace, workers = self.samples / self.time_s, seen.world_size
        need = left / left_s if left_s > 0 else float("inf")
        want = workers
        if pace < need:
            want = max(workers + 1, -int(-workers * min(need / pace, 1e6) // 1))
        elif pace * (workers - 1) / workers > need * (1 + self.slack):
            want = workers - 1
        want = min(max(want, self.min_workers), self.max_workers)
        direction = "more" if want > workers else "fewer" if want < workers else ""
        if not self._may_act(seen.step, direction):
            return None
        return Resize(want, reason=f"{pace:.4g} samples/s, {need:.4g} needed for the deadline")

    def on_change(self, seen: Observation) -> None:
        """Another number of workers has another throughput."""
        if any(change.what == "world_size" for change in seen.changes):
            self.samples, self.time_s = 0.0, 0.0
