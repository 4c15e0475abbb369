"""Arrays that peers may ask for: how they are described and laid out in one run of bytes."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kfcore import _native
from kfcore.checks import text, whole_number
from kfcore.errors import TransportError, UsageError
from kfcore.staging import stage

__all__ = ["SavedModel", "request", "save"]


@dataclass(frozen=True)
class SavedModel:
    """What a rank has saved.

    Attributes:
        version: Its version, >= 0.
        arrays: NumPy arrays that belong to the reader, in the order in which they were given.
    """

    version: int
    arrays: list[np.ndarray[Any, Any]]


def save(
    native: _native.Session, name: str, arrays: Sequence[Any], version: int, keep: int
) -> None:
    """Copy arrays into the session's store.

    Args:
        native: The core's session.
        name: What peers ask for.
        arrays: Of any strides.
        version: Larger than the last one of this name.
        keep: How many versions are kept.

    Raises:
        UsageError: An argument is not usable.
        TransportError: The session is dead.
    """
    staged = stage(arrays, writes=False)
    kinds = [str(piece.dtype).removeprefix("DType.") for piece in staged.pieces]
    if "bfloat16" in kinds:
        raise UsageError("bfloat16 has no counterpart in NumPy: save it as float32")
    shapes = [tuple(array.shape) for array in staged.kept]
    description = json.dumps(list(zip(kinds, shapes, strict=True)))
    number = whole_number(version, "version", bits=64)
    kept = whole_number(keep, "keep")
    _native.save_model(native, text(name, "name"), number, description, staged.pieces, kept)


def request(
    native: _native.Session, peer: int, name: str, version: int | None, timeout_s: float
) -> SavedModel | None:
    """Ask a rank for arrays.

    Args:
        native: The core's session.
        peer: Rank to ask.
        name: What they were saved as.
        version: None: the newest.
        timeout_s: Longest time to wait, in seconds.

    Returns:
        The arrays, or None when the rank does not have this version any more.

    Raises:
        UsageError: An argument is not usable.
        TransportError: The session is dead, or what came makes no sense.
    """
    if version is not None and version < 0:
        raise UsageError(f"version must be >= 0, got {version}")
    wanted = -1 if version is None else whole_number(version, "version", bits=64)
    rank = whole_number(peer, "peer")
    model = _native.request_model(native, rank, text(name, "name"), wanted, timeout_s)
    if model is None:
        return None
    memory: np.ndarray[Any, Any] = np.asarray(_native.model_bytes(model))
    if rank == native.rank:
        memory = memory.copy()  # the store's own must not change
    return SavedModel(model.version, _cut(memory, model.description, rank))


def _cut(
    memory: np.ndarray[Any, Any], description: bytes, peer: int
) -> list[np.ndarray[Any, Any]]:
    arrays: list[np.ndarray[Any, Any]] = []
    at = 0
    try:
        for kind, shape in json.loads(description):
            at = -(-at // _native.Model.align) * _native.Model.align
            dtype = np.dtype(kind)
            end = at + math.prod(shape) * dtype.itemsize
            arrays.append(memory[at:end].view(dtype).reshape(shape))
            at = end
    except (ValueError, TypeError) as error:
        raise TransportError(f"rank {peer} sent an unreadable model: {error}") from error
    return arrays
