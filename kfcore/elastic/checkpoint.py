"""Checkpoints: a committed state in one file that loads at any number of workers.

File: magic, version (4 bytes), length of the description (4 bytes; all little endian), the
description (JSON), and the bytes of an `kfcore.elastic.image.Image`. Written beside its place,
flushed to the disk and renamed, so a name never stands for half a file.
"""

import contextlib
import json
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from kfcore.elastic.image import Image
from kfcore.elastic.state import ElasticState
from kfcore.errors import UsageError

__all__ = ["CheckpointFolder", "CheckpointInfo", "load_checkpoint", "save_checkpoint"]

_MAGIC = b"KFCKPT\r\n"  # a transfer as text would break it
_VERSION = 1
_FIXED = len(_MAGIC) + 8
_DESCRIPTION_BYTES = 1 << 20


@dataclass(frozen=True)
class CheckpointInfo:
    """What a checkpoint says about itself.

    Attributes:
        step: Steps finished when it was saved.
        parts: Names of the state's parts.
        note: What the saver wanted to be known, such as the world size.
    """

    step: int
    parts: tuple[str, ...]
    note: Mapping[str, Any] = field(default_factory=dict)


def save_checkpoint(
    path: str | Path, state: ElasticState, note: Mapping[str, Any] | None = None
) -> CheckpointInfo:
    """Write the last commit. One worker is enough: the shared parts are equal on all.

    Args:
        path: File; replaced as a whole if it exists.
        state: Committed.
        note: Plain JSON values to be kept with it.

    Returns:
        What was written.

    Raises:
        UsageError: nothing is committed, or the file cannot be written; then what was there
            before is untouched.
    """
    image, step = state.image(), state.step
    info = CheckpointInfo(-1 if step is None else step, state.names, dict(note or {}))
    described = {
        "step": info.step,
        "parts": info.parts,
        "note": info.note,
        "size": image.size,
        "digest": image.digest(),
    }
    try:
        description = json.dumps(described, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise UsageError(f"a checkpoint's note must be plain JSON: {error}") from error
    path = Path(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as file:
            file.write(_MAGIC + _number(_VERSION) + _number(len(description)) + description)
            for piece in image.pieces():
                file.write(piece.data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        _flush_folder(path.parent)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()
    return info


def load_checkpoint(path: str | Path, state: ElasticState) -> CheckpointInfo:
    """Read a checkpoint into a state, and commit it. Every worker reads, at any world size.

    Args:
        path: File.
        state: With the same parts.

    Returns:
        What the checkpoint says about itself.

    Raises:
        UsageError: the file cannot be read, is no checkpoint, of another version, cut short or
            damaged, or does not fit the state; the text names the file and the reason. The
            state is untouched unless a part inside did not fit.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            described = _description(file, path)
            raw = np.fromfile(file, np.uint8)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    if len(raw) != described["size"]:
        raise UsageError(
            f"{path}: cut short: it holds {len(raw)} of {described['size']} bytes of state"
        )
    try:
        image = Image.from_bytes(raw)
        if image.digest() != described["digest"]:
            raise UsageError("damaged: its bytes do not have the digest that was written")
        state.load(image, described["step"])
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    return CheckpointInfo(described["step"], tuple(described["parts"]), described["note"])


class CheckpointFolder:
    """The newest checkpoints of a job, one file a step.

    Args:
        path: Folder; made when something is saved.
        keep: Files kept, >= 1.

    Raises:
        UsageError: ``keep`` is out of range.
    """

    def __init__(self, path: str | Path, *, keep: int = 2) -> None:
        if keep < 1:
            raise UsageError(f"keep must be >= 1, got {keep}")
        self.path, self._keep = Path(path), keep

    def files(self) -> list[Path]:
        """The checkpoints, newest first."""
        found = self.path.glob("step-*.kfckpt") if self.path.is_dir() else ()
        named = [file for file in found if re.fullmatch(r"step-\d+\.kfckpt", file.name)]
        return sorted(named, key=lambda file: int(file.stem[5:]), reverse=True)

    def save(self, state: ElasticState, note: Mapping[str, Any] | None = None) -> Path:
        """Write the last commit, then remove what is older than ``keep`` files.

        Args:
            state: Committed.
            note: See `save_checkpoint`.

        Returns:
            The file.

        Raises:
            UsageError: as `save_checkpoint`.
        """
        path = self.path / f"step-{state.step or 0:09d}.kfckpt"
        save_checkpoint(path, state, note)
        for old in self.files()[self._keep :]:
            old.unlink(missing_ok=True)
        return path

    def load(self, state: ElasticState) -> CheckpointInfo | None:
        """Read the newest checkpoint; an unreadable one is passed over with a warning.

        Args:
            state: With the same parts.

        Returns:
            What was read; None when the folder has no checkpoint.

        Raises:
            UsageError: there are checkpoints, and none can be read.
        """
        files = self.files()
        for place, file in enumerate(files):
            try:
                return load_checkpoint(file, state)
            except UsageError as error:
                if place + 1 == len(files):
                    raise
                warnings.warn(f"trying an older one: {error}", RuntimeWarning, stacklevel=2)
        return None


def _description(file: BinaryIO, path: Path) -> dict[str, Any]:
    fixed = file.read(_FIXED)
    if fixed[: len(_MAGIC)] != _MAGIC:
        raise UsageError(f"{path}: not a checkpoint: it begins with {fixed[:8]!r}")
    if len(fixed) < _FIXED:
        raise UsageError(f"{path}: cut short: it has {len(fixed)} bytes")
    version = int.from_bytes(fixed[8:12], "little")
    length = int.from_bytes(fixed[12:16], "little")
    if version != _VERSION:
        raise UsageError(f"{path}: checkpoint version {version}, this reads {_VERSION}")
    text = file.read(min(length, _DESCRIPTION_BYTES + 1))
    if length > _DESCRIPTION_BYTES:
        raise UsageError(f"{path}: damaged: a description of {length} bytes")
    if len(text) < length:
        raise UsageError(f"{path}: cut short: {len(text)} of {length} bytes of description")
    kinds = {"step": int, "parts": list, "note": dict, "size": int, "digest": str}
    try:
        described: dict[str, Any] = json.loads(text)
        if {name: type(value) for name, value in described.items()} != kinds:
            raise ValueError("other fields")
    except (ValueError, AttributeError) as error:
        raise UsageError(f"{path}: damaged: its description is unreadable: {error}") from error
    return described


def _number(value: int) -> bytes:
    return value.to_bytes(4, "little")


def _flush_folder(path: Path) -> None:
    """Make the rename itself survive a crash of the host."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
