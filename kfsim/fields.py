"""Reads a TOML table into a frozen dataclass; every fault names file, key and rule."""

import dataclasses
import math
import operator
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from kfcore.errors import UsageError

__all__ = ["field", "read"]

T = TypeVar("T")
_MISSING = dataclasses.MISSING
_LARGEST = 2**53  # every integer up to it is a float64 too


def field(
    default: Any = _MISSING,
    *,
    doc: str,
    unit: str = "",
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """A scenario key: its default, its meaning and the rule it must obey.

    Args:
        default: Value when the key is absent; none: the key is required.
        doc: Meaning, one line.
        unit: Of the value; empty for counts and names.
        at_least: Smallest value.
        above: Value it must exceed.
        at_most: Largest value.
        below: Value it must stay under.
        choices: The only texts allowed; empty: any.

    Returns:
        A dataclass field that carries all this as metadata.
    """
    rules = {
        "doc": doc,
        "unit": unit,
        "at_least": at_least,
        "above": above,
        "at_most": at_most,
        "below": below,
        "choices": choices,
    }
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata=rules)
    return dataclasses.field(default=default, metadata=rules)


def read(cls: type[T], table: Mapping[str, Any], where: str) -> T:
    """Makes a dataclass from a table.

    Args:
        cls: Dataclass whose fields were made by `field`, or are dataclasses or tuples of them.
        table: Parsed TOML. ``source`` (text) and ``sources`` (a table of texts by key) are
            notes and may stand in every table.
        where: File and table, for messages.

    Returns:
        The object.

    Raises:
        UsageError: an unknown key, a missing one, a wrong type, or a value against its rule.
    """
    hints = typing.get_type_hints(cls)
    known = {item.name: item for item in dataclasses.fields(cls)}  # type: ignore[arg-type]
    _check_notes(table, known, where)
    for key in table:
        if key not in known and key not in ("source", "sources"):
            raise UsageError(f"{where}: unknown key {key!r}; there are: {', '.join(known)}")
    values: dict[str, Any] = {}
    for name, item in known.items():
        if name in table:
            values[name] = _value(hints[name], table[name], item.metadata, f"{where}: {name}")
        elif item.default is _MISSING and item.default_factory is _MISSING:
            raise UsageError(f"{where}: key {name!r} is required ({item.metadata['doc']})")
    return cls(**values)


def _check_notes(table: Mapping[str, Any], known: Mapping[str, Any], where: str) -> None:
    if not isinstance(table, Mapping):
        raise UsageError(f"{where}: must be a table, got {table!r}")
    if not isinstance(table.get("source", ""), str):
        raise UsageError(f"{where}: source must be a text, got {table['source']!r}")
    notes = table.get("sources", {})
    if not isinstance(notes, Mapping):
        raise UsageError(f"{where}: sources must be a table, got {notes!r}")
    for key, note in notes.items():
        if key not in known:
            raise UsageError(f"{where}: sources names the unknown key {key!r}")
        if not isinstance(note, str):
            raise UsageError(f"{where}: sources.{key} must be a text, got {note!r}")


def _value(hint: Any, value: Any, rules: Mapping[str, Any], where: str) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(arg for arg in typing.get_args(hint) if arg is not type(None))
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise UsageError(f"{where}: must be a list, got {value!r}")
        inner = typing.get_args(hint)[0]
        return tuple(
            _value(inner, item, rules, f"{where}[{place}]") for place, item in enumerate(value)
        )
    if typing.get_origin(hint) is dict:
        return _scalars(value, where)
    if dataclasses.is_dataclass(hint):
        return read(typing.cast("type[Any]", hint), value, where)
    return _scalar(hint, value, rules, where)


def _scalars(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{where}: must be a table, got {value!r}")
    for key, item in value.items():
        if not isinstance(item, bool | int | float | str):
            raise UsageError(f"{where}.{key}: must be a number, text or flag, got {item!r}")
    return dict(value)


def _scalar(hint: Any, value: Any, rules: Mapping[str, Any], where: str) -> Any:
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise UsageError(f"{where}: must be in [-2^53, 2^53], got a number beyond")
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        names = {int: "an integer", float: "a number", str: "a text", bool: "true or false"}
        raise UsageError(f"{where}: must be {names[hint]}, got {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{where}: must be finite, got {value!r}")
    if isinstance(value, str) and rules.get("choices") and value not in rules["choices"]:
        raise UsageError(
            f"{where}: must be one of {', '.join(rules['choices'])}, got {value!r}"
        )
    if isinstance(value, int | float) and not isinstance(value, bool):
        _check_range(value, rules, where)
    return value


def _check_range(value: float, rules: Mapping[str, Any], where: str) -> None:
    tests: tuple[tuple[str, str, Callable[[float, float], bool]], ...] = (
        ("at_least", ">=", operator.ge),
        ("above", ">", operator.gt),
        ("at_most", "<=", operator.le),
        ("below", "<", operator.lt),
    )
    for rule, sign, holds in tests:
        limit = rules.get(rule)
        if limit is not None and not holds(value, limit):
            raise UsageError(f"{where}: must be {sign} {limit}, got {value}")
