"""Which workers are slow, by name."""

from math import isfinite
from statistics import median

from kfcore.errors import UsageError
from kfcore.policy.actions import Note
from kfcore.policy.base import Actions, Policy
from kfcore.policy.observation import LocalStep, Observation
from kfcore.policy.signals import Each, Signal

__all__ = ["NameStragglers"]


class NameStragglers(Policy):
    """Notes in the event log which ranks compute slowly, and when they have recovered.

    A rank is a straggler after ``patience`` steps in a row in which its computing time was
    above ``factor`` times the median over all ranks and ``excess_s`` above it, and no longer
    after as many in which it was not. Time spent waiting for others does not count, so the slow
    rank is named, not its peers. Changes nothing. ``stragglers`` holds the ranks named now.

    Args:
        factor: Times the median, > 1.
        patience: Steps, >= 1.
        excess_s: Seconds above the median that matter at all, >= 0.

    Raises:
        UsageError: an argument out of range.

    Source: ours.
    """

    def __init__(self, factor: float = 1.4, patience: int = 3, excess_s: float = 0.001) -> None:
        if not factor > 1:
            raise UsageError(f"factor must be > 1, got {factor}")
        if patience < 1:
            raise UsageError(f"patience must be >= 1, got {patience}")
        if not excess_s >= 0:
            raise UsageError(f"excess_s must be >= 0, got {excess_s}")
        self.factor = factor
        self.excess_s = excess_s
        self.patience = patience
        self.stragglers: list[int] = []
        self.streak: list[int] = []  # steps in a row that contradict what is said of the rank

    def signals(self, local: LocalStep) -> dict[str, Signal]:
        """This rank's computing time, seconds."""
        return {"compute_s_by_rank": Each(local.compute_s)}

    def after_step(self, seen: Observation) -> Actions:
        """Count, and say what changed."""
        times = seen.signals["compute_s_by_rank"]
        if not all(map(isfinite, times)):
            return None
        if len(self.streak) != len(times):
            self.streak = [0] * len(times)
        usual_s = median(times)
        limit_s = max(self.factor * usual_s, usual_s + self.excess_s)
        notes = []
        for rank, time_s in enumerate(times):
            named = rank in self.stragglers
            self.streak[rank] = self.streak[rank] + 1 if (time_s > limit_s) != named else 0
            if self.streak[rank] < self.patience:
                continue
            self.streak[rank] = 0
            self.stragglers = sorted(set(self.stragglers) ^ {rank})
            what = "is no longer slow" if named else "is slow"
            notes.append(
                Note(
                    f"rank {rank} {what}: computed for {time_s:.4g} s, "
                    f"median of all ranks {usual_s:.4g} s"
                )
            )
        return notes

    def on_change(self, seen: Observation) -> None:
        """With other workers, ranks mean other workers."""
        if any(change.what == "world_size" for change in seen.changes):
            self.stragglers, self.streak = [], []
