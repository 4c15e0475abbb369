"""The settings of a job as the engine holds them: names, kinds, bounds, first values."""

from collections.abc import Mapping, Sequence
from typing import Any

from kfcore import _native, schedule
from kfcore.compression import Compression
from kfcore.errors import UsageError
from kfcore.events import Change
from kfcore.sync_mode import SyncMode

__all__ = [
    "DEFAULT_BUCKET_BYTES",
    "check_schedule",
    "first_settings",
    "installed_changes",
    "plain",
]

_RESERVED = {
    *("local_batch", "learning_rate", "schedule", "world_size", "stopped"),
    *("sync_mode", "bucket_bytes", "compression", "checkpoint", "excluded"),
}
_INTEGRAL = {"local_batch", "world_size", "stopped", "bucket_bytes", "checkpoint"}
DEFAULT_BUCKET_BYTES = 64 << 20  # of Session.grouped_all_reduce too
_MAX_INTEGER = float(2**53)  # every integer up to here is exact in a float64
_MAX_WORLD = float(2**20)
_MAX_FLOAT = 1.7976931348623157e308  # keeps infinity out


def first_settings(
    world_size: int,
    local_batch: int,
    learning_rate: float,
    spec: str,
    hyper: Mapping[str, float],
) -> list[_native.Setting]:
    """The first configuration of a job.

    Args:
        world_size: Workers, >= 1.
        local_batch: Samples a rank and step, an integer >= 1.
        learning_rate: Finite, >= 0.
        spec: Of the all-reduce schedule.
        hyper: Other numbers that may change, by name; finite.

    Returns:
        One setting each, with its bounds.

    Raises:
        UsageError: a hyper-parameter takes a name that has an argument of its own, or there is
            no such schedule for this many workers. Bounds are checked by the engine.
    """
    taken = sorted(_RESERVED & hyper.keys())
    if taken:
        raise UsageError(f"hyper must not name {taken[0]!r}; it has an argument of its own")
    kind, setting = _native.SettingKind, _native.Setting
    settings = [
        setting("world_size", kind.world_size, float(world_size), 1.0, _MAX_WORLD, True),
        setting("local_batch", kind.hyper, float(local_batch), 1.0, _MAX_INTEGER, True),
        setting("learning_rate", kind.hyper, float(learning_rate), 0.0, _MAX_FLOAT),
        setting("schedule", kind.schedule, spec),
        setting("stopped", kind.stop, 0.0, 0.0, 1.0, True),
        setting("sync_mode", kind.sync_mode, SyncMode().spec),
        setting(
            "bucket_bytes",
            kind.bucket_bytes,
            float(DEFAULT_BUCKET_BYTES),
            1.0,
            _MAX_INTEGER,
            True,
        ),
        setting("compression", kind.compression, Compression().spec),
        setting("checkpoint", kind.checkpoint, 0.0, 0.0, _MAX_INTEGER, True),
        setting("excluded", kind.member, "nobody"),
    ]
    settings += [
        setting(name, kind.hyper, float(value), -_MAX_FLOAT, _MAX_FLOAT)
        for name, value in sorted(hyper.items())
    ]
    schedule.build(spec, world_size)
    return settings


def plain(name: str, value: Any) -> Any:
    """A setting's value for people: counts as integers, all else as it is."""
    return int(value) if name in _INTEGRAL and isinstance(value, float) else value


def with_values(
    settings: Sequence[_native.Setting], values: Mapping[str, float]
) -> list[_native.Setting]:
    """The same settings with some other values.

    Args:
        settings: Of an engine.
        values: By name.

    Returns:
        What another engine can be made of, which checks the bounds.
    """
    return [
        _native.Setting(
            old.name,
            old.kind,
            float(values[old.name]) if old.name in values else old.value,
            old.minimum,
            old.maximum,
            old.integral,
        )
        for old in settings
    ]


def check_schedule(spec: str, world_size: int) -> None:
    """Refuse a schedule that does not exist for the world it is meant for.

    Args:
        spec: Of an all-reduce schedule.
        world_size: Workers, >= 1.

    Raises:
        UsageError: there is no such schedule.
    """
    try:
        schedule.build(spec, world_size)
    except UsageError as error:
        raise UsageError(f"schedule {spec} with {world_size} workers: {error}") from error


def installed_changes(entries: Sequence[_native.Installed]) -> tuple[Change, ...]:
    """The engine's decisions as policies and logs see them.

    Args:
        entries: Of one boundary.

    Returns:
        One change each, in the same order.
    """
    return tuple(
        Change(
            what=entry.name,
            old=plain(entry.name, entry.old_value),
            new=plain(entry.name, entry.new_value),
            reason=entry.reason,
            policy=entry.policy,
            step=entry.step,
            view_version=entry.view_version,
        )
        for entry in entries
    )
