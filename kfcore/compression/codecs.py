"""How float32 numbers become fewer bytes and come back. Pure functions over NumPy arrays.

A codec works on rows of equal length, so that a rank's chunks for all its peers are coded at
once. What is not finite stays so: a step that must be skipped is skipped with compression too.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["CODECS", "RowCodec", "largest", "scatter_sum"]

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

_BLOCK = 1024  # elements that share a scale in int8


@dataclass(frozen=True)
class RowCodec:
    """One way of coding rows.

    Attributes:
        encode: [rows, n] float32 to [rows, m] uint8; n is a multiple of ``multiple``.
        decode: The way back; values differ from the coded ones by the rounding.
        multiple: What row lengths must be a multiple of.
    """

    encode: Callable[[Floats], Bytes]
    decode: Callable[[Bytes], Floats]
    multiple: int


def _f16_encode(rows: Floats) -> Bytes:
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(rows.astype(np.float16)).view(np.uint8)


def _f16_decode(coded: Bytes) -> Floats:
    return coded.view(np.float16).astype(np.float32)


def _bf16_encode(rows: Floats) -> Bytes:
    bits = np.ascontiguousarray(rows).view(np.uint32)
    half = (bits >> 16) & 1
    half += 0x7FFF  # rounds to nearest, ties to even
    coded = ((bits + half) >> 16).astype(np.uint16)
    nan = np.isnan(rows)
    if nan.any():
        coded[nan] = 0x7FC0  # rounding up must not turn a NaN into a number
    return coded.view(np.uint8)


def _bf16_decode(coded: Bytes) -> Floats:
    return (coded.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _int8_encode(rows: Floats) -> Bytes:
    count = len(rows)
    blocks = rows.reshape(count, -1, _BLOCK)
    scales = np.abs(blocks).max(axis=2) / np.float32(127)
    with np.errstate(divide="ignore", invalid="ignore"):
        levels = blocks / scales[..., None]
    finite = np.isfinite(scales) & (scales > 0)
    levels[~finite] = 0
    codes = np.rint(levels).astype(np.int8).reshape(count, -1)
    return np.concatenate(
        [codes.view(np.uint8), np.ascontiguousarray(scales).view(np.uint8)], axis=1
    )


def _int8_decode(coded: Bytes) -> Floats:
    count, length = coded.shape
    blocks = length // (_BLOCK + 4)
    codes = coded[:, : blocks * _BLOCK].view(np.int8).astype(np.float32)
    scales = np.ascontiguousarray(coded[:, blocks * _BLOCK :]).view(np.float32)
    values: Floats = codes.reshape(count, blocks, _BLOCK)
    finite = np.isfinite(scales)
    values *= np.where(finite, scales, np.float32(1))[..., None]
    values[~finite] = np.nan  # whichever element it was, the step is lost
    return values.reshape(count, -1)


CODECS = {
    "f16": RowCodec(_f16_encode, _f16_decode, 2),
    "bf16": RowCodec(_bf16_encode, _bf16_decode, 2),
    "int8": RowCodec(_int8_encode, _int8_decode, _BLOCK),
}


def largest(values: Floats, fraction: float) -> Bytes:
    """The elements of largest magnitude, with their places.

    Args:
        values: [n] float32, n >= 1. What is not finite counts as largest.
        fraction: Of n that is kept, in (0, 1]; at least one element.

    Returns:
        [8 k] bytes: k places as uint32, then k values as float32, in order of place.
    """
    kept = min(len(values), max(1, round(len(values) * fraction)))
    size = np.abs(values)
    places = np.sort(np.argpartition(size, len(values) - kept)[len(values) - kept :])
    return np.concatenate(
        [places.astype(np.uint32).view(np.uint8), values[places].view(np.uint8)]
    )


def scatter_sum(coded: Bytes, out: Floats) -> None:
    """Add what `largest` kept to a dense array, rank after rank.

    Args:
        coded: [ranks, 8 k].
        out: [n] float32, changed in place.
    """
    half = coded.shape[1] // 2
    for row in coded:
        places = np.ascontiguousarray(row[:half]).view(np.uint32)
        out[places] += np.ascontiguousarray(row[half:]).view(np.float32)
