"""State as bytes: any tree of plain values, NumPy arrays and tensors, flattened and put back.

No pickle: what comes from a file or a peer can only become data. Tensors are recognised by the
library that made them, which is never imported here.

Layout: 8 bytes length of the header (little endian), header (JSON: skeleton and leaves), then
the leaves' bytes in order. Equal trees give equal bytes.
"""

import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfcore.errors import UsageError

__all__ = ["Bytes", "Image", "is_tensor"]

Bytes = NDArray[np.uint8]
Tree = Any

_LENGTH_BYTES = 8
_DEPTH = 64
# What reading a stranger's bytes may end in.
_STRANGE = (ValueError, TypeError, LookupError, AttributeError, RuntimeError, OverflowError)


@dataclass(frozen=True)
class _Raw:
    """A leaf as its bytes: ``numpy`` array, NumPy ``scalar``, ``torch`` tensor or ``bytes``."""

    kind: str
    dtype: str
    shape: tuple[int, ...]
    data: Bytes


def is_tensor(value: object) -> bool:
    """Whether it is a torch tensor; torch need not be installed."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


class Image:
    """A flattened tree of dict, list, tuple, None, bool, int, float, str, bytes and arrays.

    Made by `of` or `from_bytes`.

    Args:
        skeleton: The tree with leaves replaced by their numbers, as JSON can hold it.
        leaves: Arrays, tensors and bytes, in order.
    """

    def __init__(self, skeleton: Any, leaves: Sequence[Any]) -> None:
        self._skeleton, self._leaves = skeleton, tuple(leaves)
        self._raws: tuple[_Raw, ...] | None = None
        self._header = b""

    @classmethod
    def of(
        cls, tree: Tree, *, copy_up_to: float = math.inf, reuse: "Image | None" = None
    ) -> "Image":
        """Flatten a tree.

        Args:
            tree: What is to be kept.
            copy_up_to: Arrays of so many bytes are copied. Of larger ones the memory itself is
                looked at.
            reuse: An image that is no longer needed; its copies' memory is used again.

        Returns:
            The image.

        Raises:
            UsageError: the tree holds something else; the text says where and what.
        """
        leaves: list[Any] = []
        skeleton = _flatten(tree, "state", leaves, _DEPTH)
        spare: Sequence[Any] = () if reuse is None else reuse._leaves
        for place, leaf in enumerate(leaves):
            if getattr(leaf, "nbytes", 0) <= copy_up_to:
                leaves[place] = _copied(leaf, spare[place] if place < len(spare) else None)
        return cls(skeleton, leaves)

    @classmethod
    def from_bytes(cls, raw: Bytes) -> "Image":
        """Read an image back; it keeps looking at ``raw``.

        Args:
            raw: [size] uint8, what `pieces` gave, joined.

        Returns:
            The image.

        Raises:
            UsageError: the bytes are not an image.
        """
        try:
            length = int.from_bytes(raw[:_LENGTH_BYTES].tobytes(), "little")
            end = _LENGTH_BYTES + length
            if not 0 < end - _LENGTH_BYTES <= len(raw) - _LENGTH_BYTES:
                raise ValueError(f"{len(raw)} bytes cannot hold a header of {length}")
            header = json.loads(raw[_LENGTH_BYTES:end].tobytes())
            raws = []
            for kind, dtype, shape, size in header["leaves"]:
                raws.append(_Raw(kind, dtype, tuple(shape), raw[end : end + size]))
                _check(raws[-1], size)
                end += size
            if end != len(raw):
                raise ValueError(f"{len(raw)} bytes, its leaves end at {end}")
            return cls(header["tree"], raws)
        except _STRANGE as error:
            raise UsageError(f"not a state: {type(error).__name__}: {error}") from error

    @classmethod
    def to_fill(cls, header: bytes, like: "Image") -> "Image":
        """An image whose leaves are memory for those of another, to be received into.

        Args:
            header: `Image.header` of the other.
            like: An image of one's own; what it looks at is used where it is of the same type
                and shape at the same place, and is overwritten then.

        Returns:
            The image; `leaves` are what is to be filled.

        Raises:
            UsageError: the bytes are not a header.
        """
        try:
            found = json.loads(header)
            mine: dict[int, Any] = {}
            _matched(found["tree"], like._skeleton, like._leaves, mine)
            leaves = [
                _room(_Raw(kind, dtype, tuple(shape), _NOTHING), size, mine.get(place))
                for place, (kind, dtype, shape, size) in enumerate(found["leaves"])
            ]
            return cls(found["tree"], leaves)
        except _STRANGE as error:
            raise UsageError(f"not a state: {type(error).__name__}: {error}") from error

    @property
    def size(self) -> int:
        """Bytes in all."""
        raws, header = self._serial()
        return _LENGTH_BYTES + len(header) + sum(len(raw.data) for raw in raws)

    @property
    def header(self) -> bytes:
        """Everything but the leaves' bytes."""
        return self._serial()[1]

    @property
    def leaves(self) -> list[Bytes]:
        """The leaves' bytes; no copies where arrays are contiguous and the processor's."""
        return [raw.data for raw in self._serial()[0]]

    def pieces(self) -> Iterator[Bytes]:
        """The bytes in order; joined they are what `from_bytes` reads.

        Yields:
            [bytes] uint8, without a copy where the array is contiguous and the processor's.
        """
        raws, header = self._serial()
        yield np.frombuffer(len(header).to_bytes(_LENGTH_BYTES, "little") + header, np.uint8)
        for raw in raws:
            yield raw.data

    def digest(self) -> str:
        """128-bit digest of all bytes: equal images, equal text."""
        hashed = hashlib.blake2b(digest_size=16)
        for piece in self.pieces():
            hashed.update(piece.data)
        return hashed.hexdigest()

    def tree(self, *, copy: bool = True) -> Tree:
        """The tree again.

        Args:
            copy: With arrays and tensors of its own; False: they look at the image's memory.

        Returns:
            An equal tree; an ordered dict comes back as a dict.

        Raises:
            UsageError: it holds tensors and torch is not loaded, or a stranger made it.
        """
        try:
            return _unflatten(self._skeleton, lambda place: _own(self._leaves[place], copy))
        except _STRANGE as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(f"not a state: {type(error).__name__}: {error}") from error

    def _serial(self) -> tuple[tuple[_Raw, ...], bytes]:
        """Leaves as bytes and the header; made when first asked for: a commit needs neither."""
        if self._raws is None:
            self._raws = tuple(map(_raw, self._leaves))
            table = [[raw.kind, raw.dtype, raw.shape, len(raw.data)] for raw in self._raws]
            text = json.dumps(
                {"tree": self._skeleton, "leaves": table},
                separators=(",", ":"),
                allow_nan=False,
            )
            self._header = text.encode()
        return self._raws, self._header


# A container becomes a one-key object that says what it was; other values stand for themselves.
def _flatten(value: Any, where: str, leaves: list[Any], depth: int) -> Any:
    if depth == 0:
        raise UsageError(f"{where[:200]}: nested deeper than {_DEPTH}")
    if value is None or isinstance(value, bool | str) or type(value) is int:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"f": repr(value)}
    if isinstance(value, Mapping):
        return {
            "d": [
                [_key(key, where), _flatten(item, f"{where}[{key!r}]", leaves, depth - 1)]
                for key, item in value.items()
            ]
        }
    if type(value) in (list, tuple):
        items = [
            _flatten(item, f"{where}[{place}]", leaves, depth - 1)
            for place, item in enumerate(value)
        ]
        return {"l" if type(value) is list else "t": items}
    leaves.append(_leaf(value, where))
    return {"a": len(leaves) - 1}


def _key(key: Any, where: str) -> Any:
    if isinstance(key, str) or type(key) is int:
        return key
    raise UsageError(f"{where}: keys must be texts or integers, got {key!r}")


def _leaf(value: Any, where: str) -> Any:
    if is_tensor(value):
        return value.detach()
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.hasobject or value.dtype.names is not None:
            raise UsageError(f"{where}: arrays of type {value.dtype} cannot be kept")
        return value
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    raise UsageError(f"{where}: a {type(value).__name__} cannot be kept: {value!r:.100}")


def _copied(leaf: Any, spare: Any) -> Any:
    """A copy, in the memory of a copy made before if that fits."""
    if isinstance(leaf, bytes | np.generic):  # immutable
        return leaf
    if is_tensor(leaf):
        return leaf.clone()
    if (
        isinstance(spare, np.ndarray)
        and (spare.shape, spare.dtype) == (leaf.shape, leaf.dtype)
        and spare.flags.owndata
    ):
        np.copyto(spare, leaf)
        return spare
    return np.array(leaf, order="C")


def _raw(leaf: Any) -> _Raw:
    if isinstance(leaf, _Raw):
        return leaf
    if isinstance(leaf, bytes):
        return _Raw("bytes", "", (), np.frombuffer(leaf, np.uint8))
    if is_tensor(leaf):
        flat = leaf.cpu().contiguous().reshape(-1)
        data = flat.view(sys.modules["torch"].uint8).numpy() if len(flat) else _NOTHING
        return _Raw("torch", str(leaf.dtype).removeprefix("torch."), tuple(leaf.shape), data)
    array = np.asarray(leaf)
    kind = "numpy" if isinstance(leaf, np.ndarray) else "scalar"
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return _Raw(kind, array.dtype.str, array.shape, data)


_NOTHING = np.empty(0, np.uint8)


def _own(leaf: Any, copy: bool) -> Any:
    """A leaf for the caller to keep."""
    if isinstance(leaf, _Raw):
        return _read(leaf, copy)
    if not copy:
        return leaf
    if isinstance(leaf, np.ndarray):
        return leaf.copy()
    return leaf.clone() if is_tensor(leaf) else leaf


def _read(raw: _Raw, copy: bool) -> Any:
    """A leaf out of its bytes."""
    if raw.kind == "bytes":
        return raw.data.tobytes()
    if raw.kind == "torch":
        return _tensor(raw, copy)
    data = raw.data.copy() if copy else raw.data
    array = data.view(np.dtype(raw.dtype)).reshape(raw.shape)
    return array if raw.kind == "numpy" else array[()]


def _tensor(raw: _Raw, copy: bool) -> Any:
    torch = sys.modules.get("torch")
    if torch is None:
        raise UsageError("the state holds torch tensors: import torch before reading it")
    dtype = getattr(torch, raw.dtype)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"torch.{raw.dtype} is no type of elements")
    if not len(raw.data):
        return torch.empty(raw.shape, dtype=dtype)
    data = bytearray(raw.data) if copy else raw.data
    return torch.frombuffer(data, dtype=dtype).reshape(raw.shape)


def _matched(found: Any, own: Any, leaves: Sequence[Any], out: dict[int, Any]) -> None:
    """Own leaves that stand where a found skeleton has leaves, by the number there."""
    if not (isinstance(found, dict) and isinstance(own, dict) and found.keys() == own.keys()):
        return
    ((kind, inner),) = found.items()
    if kind == "a":
        out[inner] = leaves[own[kind]]
    elif kind == "d":
        mine = dict(own[kind])
        for key, item in inner:
            _matched(item, mine.get(key), leaves, out)
    elif kind in ("l", "t"):
        for item, mine in zip(inner, own[kind], strict=False):
            _matched(item, mine, leaves, out)


def _room(wanted: _Raw, size: int, mine: Any) -> Any:
    """Memory for a leaf: one's own leaf, if it can hold it, or new."""
    new = replace(wanted, data=np.empty(max(size, 0), np.uint8))
    _check(new, size)
    if not _is_open(mine):
        return new
    raw = _raw(mine)
    fits = (raw.kind, raw.dtype, raw.shape) == (new.kind, new.dtype, new.shape)
    return mine if fits and len(raw.data) == size else new


def _is_open(leaf: Any) -> bool:
    """Whether `_raw` gives a leaf's own memory, and it may be written."""
    if is_tensor(leaf):
        return leaf.device.type == "cpu" and leaf.is_contiguous() and len(leaf.reshape(-1)) > 0
    flags = leaf.flags if isinstance(leaf, np.ndarray) and leaf.ndim else None
    return flags is not None and flags.c_contiguous and flags.writeable


def _unflatten(value: Any, leaf: Callable[[int], Any]) -> Any:
    if not isinstance(value, dict):
        if isinstance(value, list):
            raise TypeError("a list that is not marked as one")
        return value
    ((kind, inner),) = value.items()
    if kind == "d":
        return {key: _unflatten(item, leaf) for key, item in inner}
    if kind in ("l", "t"):
        items = [_unflatten(item, leaf) for item in inner]
        return items if kind == "l" else tuple(items)
    if kind == "f":
        return float(inner)
    if kind == "a":
        return leaf(inner)
    raise TypeError(f"unknown kind {kind!r}")


def _check(raw: _Raw, size: int) -> None:
    """Refuse a leaf whose shape does not account for its bytes."""
    if size < 0 or len(raw.data) != size:
        raise ValueError(f"a leaf of {size} bytes, {len(raw.data)} are there")
    count = math.prod(raw.shape)
    if raw.kind == "torch":
        fits = count == 0 if size == 0 else count > 0 and size % count == 0
    elif raw.kind == "bytes":
        fits = True
    elif raw.kind in ("numpy", "scalar"):
        dtype = np.dtype(raw.dtype)
        fits = not dtype.hasobject and count * dtype.itemsize == size
    else:
        raise ValueError(f"unknown kind of leaf {raw.kind!r}")
    if not fits:
        raise ValueError(f"a leaf {raw.kind} {raw.dtype} {list(raw.shape)} of {size} bytes")
