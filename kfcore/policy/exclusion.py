"""Workers that stay slow have to go."""

from kfcore.errors import UsageError
from kfcore.policy.actions import Action, Exclude, Note
from kfcore.policy.base import Actions
from kfcore.policy.observation import Observation
from kfcore.policy.stragglers import NameStragglers

__all__ = ["ExcludeStragglers"]


class ExcludeStragglers(NameStragglers):
    """Excludes the slowest rank that has been slow for long, if that makes the job faster.

    A rank is slow as `NameStragglers` says. The slowest of them leaves when the others together
    would be faster without it: when its computing time is more than ``n / (n - 1)`` times the
    next slower one's. One leaves at a time, ``cooldown_steps`` apart, and never below
    ``min_workers``.

    Args:
        factor: Times the median, > 1.
        patience: Steps in a row, >= 1.
        excess_s: Seconds above the median that matter at all, >= 0.
        min_workers: Workers that stay in any case, >= 1.
        cooldown_steps: Steps between two exclusions, >= 0.

    Raises:
        UsageError: an argument out of range.

    Source: Or et al., "Resource elasticity in distributed deep learning", MLSys 2020 (removal
    of stragglers); the rule for when it pays is ours.
    """

    def __init__(
        self,
        factor: float = 1.4,
        patience: int = 20,
        excess_s: float = 0.001,
        min_workers: int = 1,
        cooldown_steps: int = 50,
    ) -> None:
        super().__init__(factor, patience, excess_s)
        if min_workers < 1:
            raise UsageError(f"min_workers must be >= 1, got {min_workers}")
        if cooldown_steps < 0:
            raise UsageError(f"cooldown_steps must be >= 0, got {cooldown_steps}")
        self.min_workers, self.cooldown_steps = min_workers, cooldown_steps
        self.excluded_at = -1

    def after_step(self, seen: Observation) -> Actions:
        """Name, then exclude."""
        asked = super().after_step(seen)
        notes: list[Action] = [note for note in asked or () if isinstance(note, Note)]  # type: ignore[union-attr]
        times = seen.signals["compute_s_by_rank"]
        resting = self.excluded_at >= 0 and seen.step - self.excluded_at < self.cooldown_steps
        if not self.stragglers or resting or seen.world_size <= self.min_workers:
            return notes
        worst = max(self.stragglers, key=lambda rank: float(times[rank]))
        rest_s = max(float(time_s) for rank, time_s in enumerate(times) if rank != worst)
        if not times[worst] * (seen.world_size - 1) > rest_s * seen.world_size:
            return notes
        self.excluded_at = seen.step
        reason = f"computes for {times[worst]:.4g} s, all others for at most {rest_s:.4g} s"
        return [*notes, Exclude(worst, reason=reason)]
