"""Patience, hysteresis and cool-down: how a policy keeps from acting on noise or too often."""

from kfcore.errors import UsageError
from kfcore.policy.base import Policy

__all__ = ["PacedPolicy"]


class PacedPolicy(Policy):
    """Base of policies that act only on what persists, and then rest.

    ``_may_act`` is asked at every step. It is true once what the policy wants was wanted at
    ``patience`` steps in a row, if ``cooldown_steps`` have passed since it was true last.

    Args:
        patience: Steps in a row, >= 1.
        cooldown_steps: Steps between two actions, >= 0.

    Raises:
        UsageError: an argument out of range.
    """

    def __init__(self, patience: int, cooldown_steps: int) -> None:
        if patience < 1:
            raise UsageError(f"patience must be >= 1, got {patience}")
        if cooldown_steps < 0:
            raise UsageError(f"cooldown_steps must be >= 0, got {cooldown_steps}")
        self.patience = patience
        self.cooldown_steps = cooldown_steps
        self.wanted = ""  # what was wanted last
        self.streak = 0  # at how many steps in a row
        self.acted_at = -1  # step of the last action; -1: none yet

    def _may_act(self, step: int, want: str) -> bool:
        """Whether to act now on a wish; an empty wish is none."""
        self.streak = self.streak + 1 if want and want == self.wanted else int(bool(want))
        self.wanted = want
        if not want or self.streak < self.patience:
            return False
        if self.acted_at >= 0 and step - self.acted_at < self.cooldown_steps:
            return False
        self.acted_at, self.streak = step, 0
        return True
