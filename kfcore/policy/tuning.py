"""Schedules tried one after another; the fastest stays until the network changes."""

from collections.abc import Sequence

from kfcore.errors import UsageError
from kfcore.monitors import Undefined
from kfcore.policy.actions import Note, SetSchedule
from kfcore.policy.base import Actions, Policy
from kfcore.policy.observation import Observation

__all__ = ["TuneSchedule"]

_SETTLE = 3  # steps before a trial counts: its schedule is installed, and times come late


class TuneSchedule(Policy):
    """Measures each candidate for some steps, keeps the fastest, tries again when speed drifts.

    The score of a candidate is samples over time of ``trial_steps`` steps. Another one replaces
    the schedule in force only if it is better by ``margin`` (hysteresis). From then on a
    running mean of the speed (weight 0.8 on the past) is compared with the score; when it is
    off by more than ``drift`` for ``patience`` steps, and ``cooldown_steps`` have passed, all
    are tried again. Each trial is a note with ``score_samples_per_s`` among its facts, the
    choice is marked ``final``; ``kf policy trials`` makes a table of them.

    Args:
        candidates: Specs, separated by ``;`` or as a list; each exists for this world size.
        trial_steps: Steps of a trial that count, >= 1.
        margin: Relative gain that is worth a change, >= 0.
        drift: Relative change of speed that asks for another tuning, > 0.
        patience: Steps in a row, >= 1.
        cooldown_steps: Steps between two tunings, >= 0.

    Raises:
        UsageError: an argument out of range.

    Source: ours.
    """

    def __init__(
        self,
        candidates: str | Sequence[str] = "ring;binary_tree;recursive_doubling",
        trial_steps: int = 5,
        margin: float = 0.05,
        drift: float = 0.2,
        patience: int = 5,
        cooldown_steps: int = 100,
    ) -> None:
        specs = candidates.split(";") if isinstance(candidates, str) else list(candidates)
        self.candidates = [spec.replace(" ", "") for spec in specs]
        if not all(self.candidates) or len(set(self.candidates)) < len(self.candidates):
            raise UsageError(f"candidates must be different specs, got {candidates!r}")
        for name, value in (("trial_steps", trial_steps), ("patience", patience)):
            if value < 1:
                raise UsageError(f"{name} must be >= 1, got {value}")
        if cooldown_steps < 0 or not margin >= 0 or not drift > 0:
            raise UsageError(
                "cooldown_steps and margin must be >= 0 and drift > 0, got "
                f"{cooldown_steps}, {margin} and {drift}"
            )
        self.trial_steps, self.margin, self.drift = trial_steps, margin, drift
        self.patience, self.cooldown_steps = patience, cooldown_steps
        self.order: list[str] = []  # of this tuning; the schedule in force comes first
        self.scores: list[float] = []
        self.steps = 0  # since the schedule under trial was asked for
        self.samples = 0.0
        self.time_s = 0.0
        self.score: float | None = None  # of the choice; None: tuning
        self.speed = 0.0  # running mean
        self.off = 0  # steps in a row of drift
        self.tuned_at = 0

    def after_step(self, seen: Observation) -> Actions:
        """Go on with the trial, or watch the speed."""
        step_s = seen.metrics["step_s"]
        if isinstance(step_s, Undefined) or step_s <= 0:
            return None
        if not self.order:
            self._begin(seen)
        if self.score is not None:
            return self._watch(seen, seen.global_batch / step_s)
        tried = self.order[len(self.scores)]
        if self.steps == 0 and seen.schedule != tried:
            return SetSchedule(tried, reason=f"trial {len(self.scores) + 1}")
        self.steps += 1
        if self.steps <= _SETTLE:
            return None
        self.samples += seen.global_batch
        self.time_s += step_s
        if self.steps < _SETTLE + self.trial_steps:
            return None
        return self._end_trial(seen)

    def after_train(self, seen: Observation) -> Actions:
        """Say so when training ended before the choice was made."""
        if self.score is not None:
            return None
        tried, wanted = len(self.scores), len(self.candidates)
        return Note(
            f"still warming up: {tried} of {wanted} schedules tried",
            {"candidate": seen.schedule, "state": "still warming up"},
        )

    def on_change(self, seen: Observation) -> None:
        """Other workers, other speeds: tune afresh."""
        if any(change.what in ("world_size", "local_batch") for change in seen.changes):
            self._begin(seen)

    def _begin(self, seen: Observation) -> None:
        first = [seen.schedule] if seen.schedule in self.candidates else []
        self.order = [*first, *(spec for spec in self.candidates if spec not in first)]
        self.scores, self.score, self.off = [], None, 0
        self.steps = _SETTLE if first else 0
        self.samples = self.time_s = 0.0

    def _end_trial(self, seen: Observation) -> Actions:
        score = self.samples / self.time_s
        tried = self.order[len(self.scores)]
        self.scores.append(score)
        self.steps, self.samples, self.time_s = 0, 0.0, 0.0
        note = Note(
            f"schedule {tried}: {score:.5g} samples/s",
            {"candidate": tried, "score_samples_per_s": score, "state": "trial"},
        )
        if len(self.scores) < len(self.order):
            coming = self.order[len(self.scores)]
            return [note, SetSchedule(coming, reason=f"trial {len(self.scores) + 1}")]
        best = max(range(len(self.order)), key=self.scores.__getitem__)
        if self.scores[best] <= (1 + self.margin) * self.scores[0]:
            best = 0
        self.score = self.speed = self.scores[best]
        self.tuned_at = seen.step
        chosen = self.order[best]
        reason = f"{self.score:.5g} samples/s, {self.order[0]} {self.scores[0]:.5g}"
        facts: dict[str, float | str] = {"candidate": chosen, "state": "final"}
        facts["score_samples_per_s"] = self.score
        return [
            note,
            Note(f"chose {chosen}: {reason}", facts),
            SetSchedule(chosen, reason=reason),
        ]

    def _watch(self, seen: Observation, speed: float) -> Actions:
        if seen.step - self.tuned_at <= _SETTLE or self.score is None:
            return None
        self.speed = 0.8 * self.speed + 0.2 * speed
        drifted = abs(self.speed / self.score - 1) > self.drift
        self.off = self.off + 1 if drifted else 0
        if self.off < self.patience or seen.step - self.tuned_at < self.cooldown_steps:
            return None
        was = self.score
        self._begin(seen)
        return Note(f"speed went from {was:.5g} to {self.speed:.5g} samples/s: tuning again")
