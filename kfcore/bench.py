"""Times all-reduces of one session; run as a program, it is one worker of ``kf bench``.

Method: verify each size against closed-form values, warm up, then time every operation on every
rank. An operation takes as long as its slowest rank.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from kfcore.errors import InternalError, UsageError
from kfcore.session import Session
from kfcore.world import init

__all__ = ["Row", "all_reduce_rows", "iterations_for", "parse_bytes"]

ITEM_BYTES = 4  # float32
_SUFFIXES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True)
class Row:
    """What one buffer size took.

    Attributes:
        buffer_bytes: Size of the whole buffer on each rank.
        iterations: Timed operations.
        min_s: Shortest operation, in seconds.
        p50_s: Median operation, in seconds.
        p95_s: 95th percentile, in seconds.
        algbw_gb_per_s: ``buffer_bytes / p50_s``, in 1e9 bytes a second.
        busbw_gb_per_s: ``algbw * 2 (n - 1) / n``: what each link must at least carry.
    """

    buffer_bytes: int
    iterations: int
    min_s: float
    p50_s: float
    p95_s: float
    algbw_gb_per_s: float
    busbw_gb_per_s: float


def parse_bytes(text: str) -> int:
    """Read a size such as ``4096``, ``64K``, ``1M`` or ``1G`` (powers of 1024).

    Args:
        text: A positive integer with an optional suffix.

    Returns:
        The size in bytes, rounded up to whole float32 elements.

    Raises:
        UsageError: Anything else.
    """
    body = text.strip().lower().removesuffix("b").removesuffix("i")
    factor = _SUFFIXES.get(body[-1:], 1)
    digits = body[:-1] if factor > 1 else body
    if not digits.isdecimal() or int(digits) == 0:
        raise UsageError(
            f"a size is a positive number of bytes such as 64K or 1M, got {text!r}"
        )
    return -(-int(digits) * factor // ITEM_BYTES) * ITEM_BYTES


def iterations_for(buffer_bytes: int, wanted: int | None) -> int:
    """Operations to time: as many as asked for, else fewer for larger buffers.

    Args:
        buffer_bytes: Size of the buffer.
        wanted: Number asked for, >= 1, or None.

    Returns:
        The number, in ``[5, 200]`` unless asked for.
    """
    return wanted if wanted is not None else min(200, max(5, (64 << 20) // buffer_bytes))


def all_reduce_rows(
    session: Session,
    sizes: Sequence[int],
    *,
    iterations: int | None = None,
    on_size: Callable[[int], None] | None = None,
) -> list[Row]:
    """Time in-place float32 sum all-reduces; call it on every rank.

    Args:
        session: An open session.
        sizes: Buffer sizes, in bytes, multiples of 4.
        iterations: Timed operations a size; None: fewer for larger buffers.
        on_size: Told each size before it is measured.

    Returns:
        One row a size, the same on every rank.

    Raises:
        InternalError: A result was wrong.
    """
    rows = []
    for buffer_bytes in sizes:
        if on_size is not None:
            on_size(buffer_bytes)
        buffer = np.empty(buffer_bytes // ITEM_BYTES, np.float32)
        _verify(session, buffer)
        count = iterations_for(buffer_bytes, iterations)
        samples = np.empty(count)
        for i in range(-max(2, count // 10), count):  # the negative ones warm up
            buffer.fill(1.0)
            session.barrier()
            start = time.perf_counter()
            session.all_reduce(buffer)
            if i >= 0:
                samples[i] = time.perf_counter() - start
        session.all_reduce(samples, "max")
        rows.append(_row(buffer_bytes, samples, session.world_size))
    return rows


def _verify(session: Session, buffer: np.ndarray[tuple[int], np.dtype[np.float32]]) -> None:
    world_size = session.world_size
    ramp = np.arange(buffer.size, dtype=np.float32) % 1024
    np.add(ramp * world_size, session.rank, out=buffer)
    session.all_reduce(buffer)
    expected = ramp * world_size**2 + world_size * (world_size - 1) / 2
    if not np.array_equal(buffer, expected):
        wrong = int(np.argmax(buffer != expected))
        raise InternalError(
            f"all_reduce of {buffer.nbytes} bytes is wrong on rank {session.rank}: element "
            f"{wrong} is {buffer[wrong]}, not {expected[wrong]}"
        )


def _row(
    buffer_bytes: int, samples: np.ndarray[tuple[int], np.dtype[np.float64]], world_size: int
) -> Row:
    p50_s, p95_s = (float(q) for q in np.percentile(samples, [50, 95]))
    algbw = buffer_bytes / p50_s / 1e9
    busbw = algbw * 2 * (world_size - 1) / world_size
    return Row(buffer_bytes, samples.size, float(samples.min()), p50_s, p95_s, algbw, busbw)


def main() -> None:
    """Run as a worker: ``python -m kfcore.bench SCHEDULE ITERATIONS|- SIZE...``."""
    schedule, iterations, *sizes = sys.argv[1:]
    with init(schedule=schedule) as session:
        rows = all_reduce_rows(
            session,
            [int(size) for size in sizes],
            iterations=None if iterations == "-" else int(iterations),
        )
        if session.rank == 0:
            sys.stdout.write(json.dumps([asdict(row) for row in rows]) + "\n")


if __name__ == "__main__":
    main()
