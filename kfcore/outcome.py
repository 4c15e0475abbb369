"""What a step's boundary brought."""

from dataclasses import dataclass

from kfcore.events import Change

__all__ = ["StepOutcome"]


@dataclass(frozen=True)
class StepOutcome:
    """What a step's boundary brought. The same on every rank.

    Attributes:
        installed: Changes in force from now on.
        skipped: Some rank's gradient was not finite: nobody may apply this step.
        conflict: Ranks proposed different changes; exchange `Controller.proposal_text` and call
            `Controller.raise_conflict`.
    """

    installed: tuple[Change, ...] = ()
    skipped: bool = False
    conflict: bool = False
