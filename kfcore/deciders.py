"""A job's policies together: whose hooks run when, what they ask for, their states."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kfcore.errors import UsageError
from kfcore.policy.actions import Action, Note, as_actions
from kfcore.policy.base import HOOKS, Policy, named_once
from kfcore.policy.observation import Observation

__all__ = ["Deciders"]


class Deciders:
    """The policies of one job.

    Args:
        policies: Instances; each name once.

    Raises:
        UsageError: one is not a policy, or a name is used twice.
    """

    def __init__(self, policies: Sequence[Policy]) -> None:
        self._policies = named_once(policies)
        self._hooks = {
            hook: tuple(
                p for p in policies if getattr(type(p), hook) is not getattr(Policy, hook)
            )
            for hook in HOOKS
        }

    def listen(self, hook: str) -> bool:
        """Whether any policy has this hook."""
        return bool(self._hooks[hook])

    def ask(self, hook: str, seen: Observation) -> Iterator[tuple[Policy, Action]]:
        """Run one hook of every policy that has it.

        Args:
            hook: One of `HOOKS`.
            seen: What the policies see.

        Yields:
            Each action with who asks for it, as soon as its hook has returned.

        Raises:
            UsageError: a hook returned something else, or asks for a change after training.
        """
        for policy in self._hooks[hook]:
            origin = f"{policy.name}.{hook}"
            actions = as_actions(getattr(policy, hook)(seen), origin)
            if hook == "after_train" and any(not isinstance(a, Note) for a in actions):
                raise UsageError(f"{origin} asked for {actions[0]!r}, but no step follows")
            for action in actions:
                yield policy, action

    def states(self) -> dict[str, dict[str, Any]]:
        """State of each policy by name, to be saved or handed to a joiner."""
        return {policy.name: policy.state() for policy in self._policies}

    def load_states(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over what `states` gave.

        Args:
            states: By policy name; policies that are not in it keep their state.

        Raises:
            UsageError: a policy is not in this job, or does not know its state.
        """
        by_name = {policy.name: policy for policy in self._policies}
        for name, state in states.items():
            if name not in by_name:
                raise UsageError(f"no policy is named {name!r}; there are: {sorted(by_name)}")
            by_name[name].load_state(state)
