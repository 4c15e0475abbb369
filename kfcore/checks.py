"""Checks of arguments before they reach the core, whose own complaint names no argument."""

import operator
from typing import Any

from kfcore.errors import UsageError

__all__ = ["text", "whole_number"]


def whole_number(value: Any, name: str, *, bits: int = 32) -> int:
    """A number that the core can hold.

    Args:
        value: An ``int`` or what stands for one, such as ``numpy.int64``.
        name: What it is, for the message.
        bits: Width of the core's signed type.

    Returns:
        The number.

    Raises:
        UsageError: It is no whole number, or does not fit.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise UsageError(f"{name} must be a whole number, got {value!r}") from None
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise UsageError(f"{name} must fit {bits} bits, got {number}")
    return number


def text(value: Any, name: str) -> str:
    """A text that can be written as UTF-8.

    Args:
        value: A ``str``.
        name: What it is, for the message.

    Returns:
        The text.

    Raises:
        UsageError: It is no text, or holds half of a surrogate pair.
    """
    if not isinstance(value, str):
        raise UsageError(f"{name} must be a text, got {value!r}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"{name} must be valid Unicode, got {value!r}") from error
    return value
