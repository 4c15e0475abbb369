"""Feed a policy what another run saw, and list what it asks for.

A run records with ``Job(record=True)``, ``Controller(record=True)`` or a simulation's record
option: its event log then holds an ``observed`` event for each hook.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kfcore.errors import UsageError
from kfcore.policy.actions import Action, as_actions
from kfcore.policy.base import HOOKS, Policy
from kfcore.policy.observation import Observation

__all__ = ["Replayed", "observations", "replay"]


@dataclass(frozen=True)
class Replayed:
    """One action of a replayed policy.

    Attributes:
        step: Steps finished when it was asked for.
        hook: Which hook asked.
        action: What for.
    """

    step: int
    hook: str
    action: Action


def observations(path: str | Path) -> Iterator[tuple[str, Observation]]:
    """The observations of an event log, in order.

    Args:
        path: File of JSON lines.

    Yields:
        Hook and observation.

    Raises:
        UsageError: the file or a line of it cannot be read; no observation is in it.
    """
    found = False
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            event = json.loads(line)
            if event.get("kind") != "observed":
                continue
            hook, seen = event["what"], Observation.from_json(event["new"])
        except (AttributeError, KeyError, ValueError) as error:
            raise UsageError(f"{path}:{number}: not an event: {error}") from error
        if hook not in HOOKS:
            raise UsageError(f"{path}:{number}: there is no hook {hook!r}")
        found = True
        yield hook, seen
    if not found:
        raise UsageError(f"{path} has no observed events; record it with record=True")


def replay(policy: Policy, path: str | Path) -> list[Replayed]:
    """What a policy asks for when it sees what a recorded run saw.

    Nothing is installed: the observations stay those of the recorded run.

    Args:
        policy: A fresh instance.
        path: The run's event log.

    Returns:
        Its actions in order.

    Raises:
        UsageError: the log cannot be read, or lacks a metric or signal that the policy uses.
    """
    out: list[Replayed] = []
    for hook, seen in observations(path):
        try:
            returned = getattr(policy, hook)(seen)
        except KeyError as error:
            raise UsageError(
                f"{policy.name}.{hook} looked for {error} at step {seen.step}; "
                f"{path} does not have it"
            ) from error
        actions = as_actions(returned, f"{policy.name}.{hook}")
        out.extend(Replayed(seen.step, hook, action) for action in actions)
    return out
