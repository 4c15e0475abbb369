"""The base of every policy: hooks from what was observed to what should change."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, ClassVar

from kfcore.errors import UsageError
from kfcore.monitors import Monitor
from kfcore.policy.actions import Action
from kfcore.policy.observation import LocalStep, Observation
from kfcore.policy.signals import Signal

__all__ = ["HOOKS", "Actions", "Policy", "named_once"]

Actions = Action | Iterable[Action] | None

HOOKS = (
    "before_train",
    "before_epoch",
    "after_step",
    "after_epoch",
    "after_train",
    "on_change",
)


class Policy:
    """A pure decider. It never touches a socket, a clock, a random number or a tensor.

    Every rank holds its own instance and feeds it the same observations, so every instance
    decides the same. That is why a hook may look at ``seen`` and at what it kept of earlier
    ones, and at nothing else. What a hook returns is proposed at once and takes effect one step
    later, on all ranks at the same boundary.

    Attributes kept on ``self`` are the policy's state; they are saved and handed to joiners,
    except those named ``_local_*``, which `signals` may use to remember this rank's own past.
    """

    monitors: ClassVar[tuple[Monitor, ...]] = ()

    @property
    def name(self) -> str:
        """Name in logs and conflicts, unique in a job."""
        return type(self).__name__

    def signals(self, local: LocalStep) -> Mapping[str, Signal]:  # noqa: ARG002
        """Local numbers to be reduced over all ranks, free of charge.

        Called once with nothing measured, to learn names and kinds, then at each step. Names
        and kinds must stay the same.

        Args:
            local: What this rank measured; arrays [world_size] in the simulator.

        Returns:
            `Sum`, `Mean`, `Max` or `Min` by name; found reduced in ``seen.signals``.
        """
        return {}

    def before_train(self, seen: Observation) -> Actions:
        """Called once, before the first step."""

    def before_epoch(self, seen: Observation) -> Actions:
        """Called before the first step of each pass over the data."""

    def after_step(self, seen: Observation) -> Actions:
        """Called at the boundary after each step."""

    def after_epoch(self, seen: Observation) -> Actions:
        """Called at the end of each pass over the data."""

    def after_train(self, seen: Observation) -> Actions:
        """Called once, at the end. Nothing can be changed any more, but a `Note` is logged."""

    def on_change(self, seen: Observation) -> Actions:
        """Called at a boundary that installed ``seen.changes``, before `after_step`."""

    def state(self) -> dict[str, Any]:
        """What must be kept for the policy to go on elsewhere, as a copy."""
        kept = {k: v for k, v in vars(self).items() if not k.startswith("_local_")}
        return copy.deepcopy(kept)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave.

        Args:
            state: Of a policy of the same class.

        Raises:
            UsageError: it holds something that this policy does not have.
        """
        unknown = sorted(set(state) - set(vars(self)))
        if unknown:
            raise UsageError(f"policy {self.name} has no state {unknown[0]!r}")
        vars(self).update(copy.deepcopy(dict(state)))


def named_once(policies: Sequence[Policy]) -> tuple[Policy, ...]:
    """The policies of a job, checked.

    Args:
        policies: Instances; each its own.

    Returns:
        The same.

    Raises:
        UsageError: one is not a policy (a class, say), two share a name, or a method's name is
            nearly that of a hook.
    """
    seen: set[str] = set()
    for policy in policies:
        if not isinstance(policy, Policy):
            raise UsageError(f"policies must be instances of kfcore.Policy, got {policy!r}")
        if policy.name in seen:
            raise UsageError(f"two policies are named {policy.name!r}; give one another `name`")
        seen.add(policy.name)
        _check_hooks(type(policy))
    return tuple(policies)


def _check_hooks(kind: type[Policy]) -> None:
    """Refuse a method that looks like a misspelt hook: it would never be called.

    Private methods are the policy's own business, and so are names unlike any hook's.
    """
    known = {*HOOKS, "signals", "state", "load_state", "monitors", "name"}
    for name in dir(kind):
        if name.startswith("_") or name in known or not callable(getattr(kind, name)):
            continue
        meant = get_close_matches(name, known, n=1, cutoff=0.7)
        if meant or name.startswith(("before_", "after_", "on_")):
            hint = f"did you mean {meant[0]!r}?" if meant else f"hooks are {', '.join(HOOKS)}"
            raise UsageError(
                f"policy {kind.__name__} has a method {name!r}, which nothing calls; {hint} "
                "(a helper's name begins with '_')"
            )
