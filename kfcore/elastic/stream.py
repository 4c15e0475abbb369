"""An image in pieces of bounded size, from several senders to a joiner. No I/O.

Every sender holds an equal image; sender ``s`` of ``k`` sends the chunks whose number is ``s``
modulo ``k``. What a lost sender owed is among the receiver's `Assembly.missing` chunks.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np

from kfcore.elastic.image import Bytes, Image
from kfcore.errors import UsageError

__all__ = ["CHUNK_BYTES", "Assembly", "Manifest", "chunks", "share_of"]

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Manifest:
    """What is going to be sent; a joiner needs it first.

    Attributes:
        step: Step whose state it is.
        total_bytes: Of the image, >= 0.
        chunk_bytes: Of each chunk but the last, >= 1.
        digest: `Image.digest`.
    """

    step: int
    total_bytes: int
    chunk_bytes: int
    digest: str

    def __post_init__(self) -> None:
        """Refuse what cannot be cut."""
        if self.total_bytes < 0 or self.chunk_bytes < 1:
            raise UsageError(
                "total_bytes must be >= 0 and chunk_bytes >= 1, got "
                f"{self.total_bytes} and {self.chunk_bytes}"
            )

    @classmethod
    def of(cls, image: Image, step: int, chunk_bytes: int = CHUNK_BYTES) -> "Manifest":
        """The manifest of an image.

        Args:
            image: What is sent.
            step: Step whose state it is.
            chunk_bytes: Bound of a chunk, >= 1.

        Returns:
            The manifest; making it reads the whole image once.
        """
        return cls(step, image.size, chunk_bytes, image.digest())

    @property
    def count(self) -> int:
        """Chunks in all."""
        return -(-self.total_bytes // self.chunk_bytes)

    def to_text(self) -> str:
        """As JSON, for a store."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> "Manifest":
        """Read what `to_text` wrote.

        Args:
            text: JSON.

        Returns:
            The manifest.

        Raises:
            UsageError: it is something else.
        """
        try:
            found = json.loads(text)
            kinds = {item.name: item.type for item in fields(cls)}
            if {name: type(value) for name, value in found.items()} != kinds:
                raise ValueError("other fields")
            return cls(**found)
        except (ValueError, AttributeError) as error:
            raise UsageError(f"not a manifest: {error}: {text[:100]!r}") from error


def chunks(
    image: Image, manifest: Manifest, wanted: Sequence[int] | None = None
) -> Iterator[tuple[int, Bytes]]:
    """Cut an image.

    Args:
        image: What is sent.
        manifest: Of an equal image.
        wanted: Numbers of chunks, increasing; None: all.

    Yields:
        Number and bytes ([at most chunk_bytes] uint8) of each chunk; no copy unless it spans
        several arrays.

    Raises:
        UsageError: the image has another size than the manifest says; no such chunk.
    """
    if image.size != manifest.total_bytes:
        raise UsageError(
            f"the manifest is of {manifest.total_bytes} bytes, the image has {image.size}"
        )
    numbers = range(manifest.count) if wanted is None else wanted
    pieces = image.pieces()
    piece, start = next(pieces), 0  # start: the piece's place in the image
    for number in numbers:
        begin, end = _span(manifest, number)
        parts = []
        while begin < end:
            while start + len(piece) <= begin:
                start += len(piece)
                piece = next(pieces)
            parts.append(piece[begin - start : end - start])
            begin += len(parts[-1])
        yield number, parts[0] if len(parts) == 1 else np.concatenate(parts)


def share_of(sender: int, senders: int, manifest: Manifest) -> range:
    """Numbers of the chunks that a sender sends.

    Args:
        sender: In [0, senders).
        senders: How many share the work, >= 1.
        manifest: Of what is sent.

    Returns:
        Every ``senders``-th number from ``sender`` on.
    """
    return range(sender, manifest.count, senders)


class Assembly:
    """The receiving side: takes chunks in any order, twice if need be, until all are there.

    Args:
        manifest: Of what is to come.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._bytes = np.empty(manifest.total_bytes, np.uint8)
        self._missing = set(range(manifest.count))

    @property
    def missing(self) -> list[int]:
        """Numbers of the chunks that have not come, increasing."""
        return sorted(self._missing)

    def put(self, number: int, data: Bytes) -> None:
        """Take a chunk.

        Args:
            number: Its number.
            data: [size] uint8.

        Raises:
            UsageError: there is no such chunk, or it has another size.
        """
        begin, end = _span(self.manifest, number)
        if data.shape != (end - begin,) or data.dtype != np.uint8:
            raise UsageError(
                f"chunk {number} must be uint8[{end - begin}], "
                f"got {data.dtype}{list(data.shape)}"
            )
        self._bytes[begin:end] = data
        self._missing.discard(number)

    def room(self, number: int) -> Bytes:
        """Where a chunk belongs, to be received into directly; then call `arrived`.

        Args:
            number: Its number.

        Returns:
            [size] uint8, writable.
        """
        begin, end = _span(self.manifest, number)
        return self._bytes[begin:end]

    def arrived(self, number: int) -> None:
        """Note that `room` was filled.

        Args:
            number: Of the chunk.
        """
        self._missing.discard(number)

    def image(self) -> Image:
        """The whole.

        Returns:
            The image, equal to the senders'.

        Raises:
            UsageError: a chunk is missing, or the bytes are not those of the manifest.
        """
        if self._missing:
            raise UsageError(
                f"{len(self._missing)} of {self.manifest.count} chunks are missing, "
                f"the first is {min(self._missing)}"
            )
        image = Image.from_bytes(self._bytes)
        found = image.digest()
        if found != self.manifest.digest:
            raise UsageError(f"the state has digest {found}, not {self.manifest.digest}")
        return image


def _span(manifest: Manifest, number: int) -> tuple[int, int]:
    if not 0 <= number < manifest.count:
        raise UsageError(f"chunk must be in [0, {manifest.count}), got {number}")
    begin = number * manifest.chunk_bytes
    return begin, min(begin + manifest.chunk_bytes, manifest.total_bytes)
