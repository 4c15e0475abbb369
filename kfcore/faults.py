"""Fault plans: what goes wrong at which step, one type for real and simulated jobs. Pure.

A fault happens when a rank *enters* a step: its gradients are there, the exchange has not
begun. So the others stand in the middle of that step when a worker dies. Ranks are those of
the view under way at that step. A fault happens once, also when its step is repeated.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from kfcore.errors import UsageError

__all__ = ["KINDS", "Fault", "FaultPlan", "parse_faults", "read_faults"]

# kind -> keys that it needs, keys that it may have; each has `kind` and `step` too
KINDS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "kill": (frozenset({"rank"}), frozenset()),
    "stop": (frozenset({"rank"}), frozenset({"seconds"})),
    "slow": (frozenset({"rank", "seconds"}), frozenset({"steps"})),
    "leave": (frozenset({"rank"}), frozenset()),
    "join": (frozenset(), frozenset({"workers"})),
    "cut": (frozenset({"rank", "peer"}), frozenset()),
}
_LONGEST_S = 86400.0
_MOST_WORKERS = 8192
_LARGEST_STEP = 2**53


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong, or changes.

    Attributes:
        kind: ``kill`` a worker (SIGKILL); ``stop`` it (SIGSTOP) and let it go on after
            ``seconds``; ``slow`` it down by ``seconds`` a step for ``steps`` steps; make it
            ``leave`` in order; let ``workers`` ``join``; ``cut`` the link to ``peer``.
        step: In which step, from 1.
        rank: Whom it happens to; None for ``join``.
        peer: The other end of the link, or None.
        seconds: In [0, 86400]; of ``stop``, 0: for ever.
        steps: How many steps it lasts, >= 1.
        workers: How many join, in [1, 8192].
    """

    kind: str
    step: int
    rank: int | None = None
    peer: int | None = None
    seconds: float = 0.0
    steps: int = 1
    workers: int = 1

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if self.kind not in KINDS:
            raise UsageError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        needed, allowed = KINDS[self.kind]
        for item in fields(self)[2:]:
            given = getattr(self, item.name) != item.default
            if item.name in needed and not given:
                raise UsageError(f"{self.kind} needs {item.name}")
            if given and item.name not in needed | allowed:
                raise UsageError(f"{self.kind} has no {item.name}")
        for name, value, low, high in (
            ("step", self.step, 1, _LARGEST_STEP),
            ("rank", self.rank, 0, _MOST_WORKERS - 1),
            ("peer", self.peer, 0, _MOST_WORKERS - 1),
            ("seconds", self.seconds, 0, _LONGEST_S),
            ("steps", self.steps, 1, _LARGEST_STEP),
            ("workers", self.workers, 1, _MOST_WORKERS),
        ):
            if value is not None and not low <= value <= high:
                raise UsageError(f"{name} must be in [{low}, {high:g}], got {value}")
        if self.rank is not None and self.rank == self.peer:
            raise UsageError(f"rank and peer are both {self.rank}")

    def event(self, view_version: int) -> dict[str, Any]:
        """The line that this fault leaves in the event log, the same from both worlds.

        Args:
            view_version: Of the view under way.

        Returns:
            The fields of an event, without its time.
        """
        what = {"join": f"{self.workers} more", "cut": f"link of {self.rank} and {self.peer}"}
        return {
            "step": self.step,
            "view_version": view_version,
            "kind": "fault",
            "what": self.kind,
            "old": None,
            "new": what.get(self.kind, f"rank {self.rank}"),
            "reason": "the fault plan",
            "policy": "",
        }

    def to_table(self) -> dict[str, Any]:
        """The TOML table that reads as this fault; keys at their defaults left out."""
        return {
            item.name: getattr(self, item.name)
            for item in fields(self)
            if getattr(self, item.name) != item.default
        }


@dataclass(frozen=True)
class FaultPlan:
    """Faults in the order of their steps.

    Attributes:
        faults: At one step in the order of the file.
        source: Where it comes from, for messages.

    Example:
        >>> plan = FaultPlan((Fault("join", 9), Fault("kill", 4, rank=1)))
        >>> [fault.kind for fault in plan.faults], plan.to_toml().splitlines()[1:4]
        (['kill', 'join'], ['kind = "kill"', 'step = 4', 'rank = 1'])
    """

    faults: tuple[Fault, ...] = ()
    source: str = field(default="fault plan", compare=False)

    def __post_init__(self) -> None:
        """Put them in order."""
        object.__setattr__(self, "faults", tuple(sorted(self.faults, key=lambda f: f.step)))

    @property
    def needs_elastic(self) -> bool:
        """Whether a job whose workers cannot change would end by it."""
        return any(fault.kind not in ("slow", "stop") for fault in self.faults)

    def at(self, step: int) -> tuple[Fault, ...]:
        """Those that begin at a step.

        Args:
            step: From 1.

        Returns:
            Those faults, in the order of the file.
        """
        return tuple(fault for fault in self.faults if fault.step == step)

    def delay_s(self, step: int, rank: int) -> float:
        """Seconds by which a rank is slowed down in a step.

        Args:
            step: From 1.
            rank: In the view under way.

        Returns:
            The sum over all faults in force, 0 where there is none.
        """
        return sum(
            fault.seconds
            for fault in self.faults
            if fault.kind == "slow"
            and fault.rank == rank
            and fault.step <= step < fault.step + fault.steps
        )

    def to_toml(self) -> str:
        """The file that reads as this plan."""
        lines = []
        for fault in self.faults:
            lines.append("[[fault]]")
            for key, value in fault.to_table().items():
                shown = f'"{value}"' if isinstance(value, str) else repr(value)
                lines.append(f"{key} = {shown}")
            lines.append("")
        return "\n".join(lines)


def parse_faults(items: Any, where: str) -> tuple[Fault, ...]:
    """Check parsed ``[[fault]]`` tables.

    Args:
        items: As TOML gives them.
        where: Names the place in messages.

    Returns:
        The faults, in the order given.

    Raises:
        UsageError: Not a list of tables, an unknown key, a missing one, a wrong type, or a
            value against its rule; the text names the place and the rule.
    """
    if not isinstance(items, Sequence) or isinstance(items, str):
        raise UsageError(f"{where} must be a list of tables ([[fault]]), got {items!r}")
    return tuple(_fault(item, f"{where}[{place}]") for place, item in enumerate(items))


def read_faults(path: str | Path) -> FaultPlan:
    """Read a fault plan: a TOML file with a ``[[fault]]`` table each.

    Args:
        path: The file.

    Returns:
        The checked plan.

    Raises:
        UsageError: The file cannot be read, is not TOML, or breaks a rule; the text names file,
            table and rule.
    """
    try:
        raw = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not TOML: {error}") from error
    for key in raw:
        if key != "fault":
            raise UsageError(f"{path}: unknown key {key!r}; there is: [[fault]]")
    return FaultPlan(parse_faults(raw.get("fault", []), f"{path}: fault"), str(path))


_TYPES: Mapping[str, type] = {"kind": str, "seconds": float}
_NAMES = {str: "a text", int: "an integer", float: "a number"}


def _fault(item: Any, where: str) -> Fault:
    if not isinstance(item, Mapping):
        raise UsageError(f"{where} must be a table, got {item!r}")
    known = [each.name for each in fields(Fault)]
    values: dict[str, Any] = {}
    for key, value in item.items():
        if key not in known:
            raise UsageError(f"{where}: unknown key {key!r}; there are: {', '.join(known)}")
        wanted = _TYPES.get(key, int)
        number = (
            isinstance(value, int | float) if wanted is float else isinstance(value, wanted)
        )
        if not number or isinstance(value, bool):
            raise UsageError(f"{where}: {key} must be {_NAMES[wanted]}, got {value!r}")
        values[key] = wanted(value)
    for key in ("kind", "step"):
        if key not in values:
            raise UsageError(f"{where}: key {key!r} is required")
    try:
        return Fault(**values)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
