"""What can be part of a worker's state, and how each kind is read and put back."""

import random
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from kfcore.elastic.image import is_tensor
from kfcore.errors import UsageError

__all__ = ["Part", "Value", "as_part"]


class Part(Protocol):
    """Something whose state can be read as a tree and put back."""

    def capture(self) -> Any:
        """The state as a tree that `kfcore.elastic.image.Image` takes; arrays uncopied."""
        ...

    def restore(self, tree: Any) -> None:
        """Take over a captured state; its arrays may be kept."""
        ...


class Value:
    """A part made of two functions, for what has no state of its own.

    Args:
        read: Gives the state as a tree.
        write: Takes it back.

    Example:
        >>> seen = {"steps": 3}
        >>> part = Value(lambda: seen["steps"], lambda steps: seen.update(steps=steps))
        >>> part.restore(part.capture() + 1); seen
        {'steps': 4}
    """

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], None]) -> None:
        self.capture, self.restore = read, write


def as_part(value: Any, name: str) -> Part:
    """Find out how to read and restore an object.

    Args:
        value: An array or tensor (restored in place); a NumPy, torch or `random` generator; a
            `Part`; anything with ``state_dict`` and ``load_state_dict`` (torch modules and
            optimizers, samplers) or ``state`` and ``load_state`` (policies); or a list, tuple
            or dict of such.
        name: For messages.

    Returns:
        The part.

    Raises:
        UsageError: it is none of these.
    """
    if isinstance(value, np.ndarray) or is_tensor(value):
        return _Array(value, name)
    if isinstance(value, np.random.Generator):
        return _numpy_generator(value)
    if isinstance(value, random.Random):
        return Value(value.getstate, value.setstate)
    for read, write in (
        ("capture", "restore"),
        ("state_dict", "load_state_dict"),
        ("state", "load_state"),
        ("get_state", "set_state"),  # torch.Generator, numpy.random.RandomState
    ):
        if callable(getattr(value, read, None)) and callable(getattr(value, write, None)):
            return Value(getattr(value, read), getattr(value, write))
    if isinstance(value, Mapping):
        return _Group({key: as_part(item, f"{name}[{key!r}]") for key, item in value.items()})
    if isinstance(value, list | tuple):
        return _Group({at: as_part(item, f"{name}[{at}]") for at, item in enumerate(value)})
    raise UsageError(
        f"part {name!r} must be an array, a generator, have state_dict and load_state_dict, or "
        f"be a kfcore.elastic.Value, got {type(value).__name__}"
    )


class _Array:
    """An array or tensor that keeps its memory: others may hold views of it."""

    def __init__(self, array: Any, name: str) -> None:
        self._array, self._name = array, name

    def capture(self) -> Any:
        return self._array

    def restore(self, tree: Any) -> None:
        mine, found = self._array, tree
        if type(found) is not type(mine) and not (is_tensor(mine) and is_tensor(found)):
            raise UsageError(f"part {self._name!r} is no array in this state: {found!r:.80}")
        if (mine.dtype, tuple(mine.shape)) != (found.dtype, tuple(found.shape)):
            raise UsageError(
                f"part {self._name!r} is {mine.dtype}{list(mine.shape)}, "
                f"in this state {found.dtype}{list(found.shape)}"
            )
        if is_tensor(mine):
            if mine.data_ptr() != found.data_ptr():  # else it was received in place
                mine.detach().copy_(found)
        else:
            np.copyto(mine, found)


class _Group:
    """Several parts under their keys."""

    def __init__(self, parts: Mapping[Any, Part]) -> None:
        self._parts = parts

    def capture(self) -> Any:
        return {key: part.capture() for key, part in self._parts.items()}

    def restore(self, tree: Any) -> None:
        if not isinstance(tree, dict) or set(tree) != set(self._parts):
            found = sorted(map(str, tree)) if isinstance(tree, dict) else tree
            raise UsageError(f"parts {sorted(map(str, self._parts))} do not fit {found!r:.200}")
        for key, part in self._parts.items():
            part.restore(tree[key])


def _numpy_generator(generator: np.random.Generator) -> Part:
    bits: Any = generator.bit_generator

    def restore(tree: Any) -> None:
        try:
            bits.state = tree
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"not a state of {type(bits).__name__}: {error}") from error

    return Value(lambda: bits.state, restore)
