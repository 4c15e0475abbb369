"""What a policy may ask for. An action is a value; the engine carries it out or nobody does."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Real

from kfcore import _native
from kfcore.checks import text
from kfcore.compression.spec import parse as parse_compression
from kfcore.errors import UsageError
from kfcore.monitors import Undefined
from kfcore.sync_mode import SyncMode

__all__ = [
    "Action",
    "Checkpoint",
    "Exclude",
    "Note",
    "Resize",
    "SetBucketBytes",
    "SetCompression",
    "SetHyper",
    "SetLearningRate",
    "SetLocalBatch",
    "SetSchedule",
    "SetSyncMode",
    "Stop",
    "as_actions",
]


@dataclass(frozen=True)
class Action:
    """Base of all actions.

    Attributes:
        reason: Why, for people and for the decision log.
    """

    def setting(self) -> tuple[str, float | str]:
        """The setting this action changes, and to what.

        Returns:
            Name and value.

        Raises:
            UsageError: the value is not one that the setting can have.
        """
        raise NotImplementedError

    def to_change(self, policy: str) -> _native.Change:
        """The action as the engine takes it.

        Args:
            policy: Name of who asks.

        Returns:
            The wanted change.

        Raises:
            UsageError: the value has the wrong type.
        """
        name, value = self.setting()
        if isinstance(value, str):
            text(value, name)
        reason = text(getattr(self, "reason", ""), f"the reason of {type(self).__name__}")
        return _native.Change(text(name, "the setting's name"), value, reason, policy)

    def to_changes(
        self, policy: str, *, step: int, world_size: int
    ) -> tuple[_native.Change, ...]:
        """The action as the engine takes it, when it is asked for at a certain boundary.

        Args:
            policy: Name of who asks.
            step: Steps finished.
            world_size: Workers now.

        Returns:
            The wanted changes, one for most actions.

        Raises:
            UsageError: the value has the wrong type or range.
        """
        del step, world_size
        return (self.to_change(policy),)


@dataclass(frozen=True)
class SetLocalBatch(Action):
    """Change the batch of each rank.

    Attributes:
        local_batch: Samples a rank and step, an integer >= 1.
    """

    local_batch: int
    reason: str = ""

    def setting(self) -> tuple[str, float | str]:
        """As `Action.setting` says."""
        return "local_batch", _number("local_batch", self.local_batch)


@dataclass(frozen=True)
class SetLearningRate(Action):
    """Change the learning rate.

    Attributes:
        learning_rate: Finite and >= 0.
    """

    learning_rate: float
    reason: str = ""

    def setting(self) -> tuple[str, float | str]:
        """As `Action.setting` says."""
        return "learning_rate", _number("learning_rate", self.learning_rate)


@dataclass(frozen=True)
class SetHyper(Action):
    """Change any number that the job registered in ``hyper``.

    Attributes:
        name: As registered.
        value: Finite.
    """

    name: str
    value: float
    reason: str = ""

    def setting(self) -> tuple[str, float | str]:
        """As `Action.setting` says."""
        return self.name, _number(self.name, self.value)


@dataclass(frozen=True)
class SetSchedule(Action):
    """Change the all-reduce schedule.

    Attributes:
        schedule: Spec, e.g. ``ring``, ``star(root=1)`` or ``from_parents(0,0,0,1)``.
    """

    schedule: str
    reason: str = ""

    def setting(self) -> tuple[str, float | str]:
        """As `Action.setting` says."""
        if not isinstance(self.schedule, str):
            raise UsageError(f"schedule must be a spec text, got {self.schedule!r}")
        return "schedule", self.schedule.replace(" ", "")


@dataclass(frozen=True)
class Resize(Action):
    """Change the number of workers.

    Attributes:
        world_size: Workers wanted, an integer >= 1.
    """

    world_size: int
    reason: str = ""

    def setting(self) -> tuple[str, float | str]:
        """As `Action.setting` says."""
        return "world_size", _number("world_size", self.world_size)


@dataclass(frozen=True)
class SetSyncMode(Action):
    """Change how workers are kept together.

    Attributes:
        mode: ``allreduce`` (averaged gradients), ``local_sgd(k)`` (models averaged after every
            k-th update), ``sma(alpha)`` (each model pulled towards the mean by alpha) or
            ``pair_averaging`` (models averaged two by two). See `kfcore.sync_mode`.
    """

    mode: str
    reason: str = ""

    def setting(self) -> tuple[str, float | str]:
        """As `Action.setting` says."""
        return "sync_mode", SyncMode.parse(self.mode).spec


@dataclass(frozen=True)
class SetBucketBytes(Action):
    """Change how many bytes of gradients travel as one operation. Never changes numbers.

    Attributes:
        bucket_bytes: An integer >= 1; a larger gradient is a bucket of its own.
    """

    bucket_bytes: int
    reason: str = ""

    def setting(self) -> tuple[str, float | str]:
        """As `Action.setting` says."""
        return "bucket_bytes", _number("bucket_bytes", self.bucket_bytes)


@dataclass(frozen=True)
class SetCompression(Action):
    """Change how gradients travel.

    Attributes:
        compression: ``none``, ``f16``, ``bf16``, ``int8`` or ``top_k(fraction)``; all but
            ``none`` with error feedback. See `kfcore.compression`.
    """

    compression: str
    reason: str = ""

    def setting(self) -> tuple[str, float | str]:
        """As `Action.setting` says."""
        return "compression", parse_compression(self.compression).spec


@dataclass(frozen=True)
class Checkpoint(Action):
    """Save after the update of the step at whose boundary this is installed."""

    reason: str = ""

    def setting(self) -> tuple[str, float | str]:
        """Refuse: the step to save after is known only where it is asked for."""
        raise UsageError("a checkpoint belongs to a step; ask for it in a hook or a proposal")

    def to_changes(
        self, policy: str, *, step: int, world_size: int
    ) -> tuple[_native.Change, ...]:
        """As `Action.to_changes` says."""
        del world_size
        return (_native.Change("checkpoint", float(step + 1), self.reason, policy),)


@dataclass(frozen=True)
class Exclude(Action):
    """Let one worker leave; those of higher rank move down by one.

    Attributes:
        rank: Who, in the current view, in [0, world_size).
    """

    rank: int
    reason: str = ""

    def setting(self) -> tuple[str, float | str]:
        """Refuse: a rank means somebody only in one view."""
        raise UsageError("an exclusion belongs to a view; ask for it in a hook or a proposal")

    def to_changes(
        self, policy: str, *, step: int, world_size: int
    ) -> tuple[_native.Change, ...]:
        """As `Action.to_changes` says."""
        rank = _number("rank", self.rank)
        if rank != int(rank) or not 0 <= rank < world_size:
            raise UsageError(
                f"Exclude needs a rank in [0, {world_size}), got {self.rank} from "
                f"{policy or 'the caller'}"
            )
        if world_size == 1:
            raise UsageError(f"the only worker cannot be excluded ({policy or 'the caller'})")
        who = f"rank {int(rank)} after step {step + 1}"  # unlike any earlier exclusion
        return (
            _native.Change("excluded", who, self.reason, policy),
            _native.Change("world_size", float(world_size - 1), self.reason, policy),
        )


@dataclass(frozen=True)
class Stop(Action):
    """End training at the next boundary."""

    reason: str = ""

    def setting(self) -> tuple[str, float | str]:
        """As `Action.setting` says."""
        return "stopped", 1.0


@dataclass(frozen=True)
class Note(Action):
    """Say something in the event log; changes nothing, so nothing has to be agreed.

    Attributes:
        reason: What to say.
        facts: The same as values by name, units in the names, for programs that read the log.
    """

    reason: str = ""
    facts: Mapping[str, float | str] = field(default_factory=dict)

    def setting(self) -> tuple[str, float | str]:
        """Refuse: a note belongs to no setting."""
        raise UsageError(f"a note changes nothing: {self.reason!r}")


def as_actions(returned: object, origin: str) -> tuple[Action, ...]:
    """What a hook returned, as a tuple.

    Args:
        returned: None, one action, or several in an iterable.
        origin: Policy and hook, for the message.

    Returns:
        The actions, in order.

    Raises:
        UsageError: something else was returned.
    """
    if returned is None:
        return ()
    if isinstance(returned, Action):
        return (returned,)
    if isinstance(returned, Iterable) and not isinstance(returned, str | bytes):
        actions = tuple(returned)
        if all(isinstance(action, Action) for action in actions):
            return actions
    raise UsageError(
        f"{origin} must return None, an action or several actions, got {returned!r}"
    )


def _number(name: str, value: object) -> float:
    if isinstance(value, Undefined):
        raise UsageError(f"{name} was set from a metric without a value: {value!r}")
    if isinstance(value, bool) or not (isinstance(value, Real) or hasattr(value, "item")):
        raise UsageError(f"{name} must be a number, got {value!r}")
    return float(value)  # type: ignore[arg-type]
