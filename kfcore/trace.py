"""A record of operations that Chrome's and Perfetto's trace viewers read.

The file is a valid JSON document at every moment, also when the process is killed: events go
into room that already ends with the closing brackets, one write within one page at a time, and
when the room is used up a larger file takes the old one's place in one step.
"""

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from kfcore.errors import UsageError

__all__ = ["Trace"]

_PAGE = 4096
_FIRST_ROOM = 64 * 1024
_TAIL = b"]}\n"


class Trace:
    """A trace file that is being written.

    Times are in microseconds since the trace began, on the clock of this process; the metadata
    say when that was in seconds since 1970, so that traces of several ranks can be laid side by
    side.

    Args:
        path: File to write; one that exists is replaced.
        rank: Shown as the process of all events.
        about: What else the metadata shall say.
    """

    def __init__(self, path: str | os.PathLike[str], rank: int, about: dict[str, Any]) -> None:
        self._path = Path(path)
        self._rank = rank
        self._start_s = time.monotonic()
        self._lock = threading.Lock()
        metadata = {"epoch_s": time.time(), "rank": rank, **about}
        head = json.dumps({"displayTimeUnit": "ms", "otherData": metadata}, allow_nan=False)
        name = {
            "ph": "M",
            "name": "process_name",
            "pid": rank,
            "args": {"name": f"rank {rank}"},
        }
        first = f'{head[:-1]},"traceEvents":[\n{json.dumps(name)}'.encode()
        self._fd = -1
        self._used = 0  # bytes before the room
        self._end = 0  # where the tail begins
        try:
            self._grow(first)
        except OSError as error:
            raise UsageError(f"cannot write a trace to {self._path}: {error}") from error

    def add(self, name: str, begin_s: float, end_s: float, **args: Any) -> None:
        """Append one operation.

        Args:
            name: What it is.
            begin_s: When it began, on the monotonic clock, in seconds.
            end_s: When it was done, likewise.
            **args: Further facts that the viewer shows.
        """
        event = {
            "ph": "X",
            "name": name,
            "pid": self._rank,
            "tid": 0,
            "ts": round(max(0.0, begin_s - self._start_s) * 1e6, 3),
            "dur": round(max(0.0, end_s - begin_s) * 1e6, 3),
            "args": args,
        }
        line = f",\n{json.dumps(event)}".encode()
        with self._lock:
            if self._fd < 0:
                return
            try:
                self._append(line)
            except OSError:  # a full disk must not end a training job
                self._shut()

    def close(self) -> None:
        """Cut off the room that is left; harmless when called again."""
        with self._lock:
            if self._fd < 0:
                return
            try:
                self._replace(self._content(), 0)
            finally:
                self._shut()

    def _append(self, line: bytes) -> None:
        """A write that crosses pages could be cut in two by SIGKILL; so it never does."""
        if len(line) > _PAGE:
            return
        at = self._used
        if at // _PAGE != (at + len(line) - 1) // _PAGE:
            at = (at // _PAGE + 1) * _PAGE  # spaces stay between the events
        if at + len(line) > self._end:
            self._grow(line)
            return
        os.pwrite(self._fd, line, at)
        self._used = at + len(line)

    def _grow(self, more: bytes) -> None:
        content = (self._content() if self._fd >= 0 else b"") + more
        self._replace(content, max(_FIRST_ROOM, len(content)))

    def _content(self) -> bytes:
        return os.pread(self._fd, self._used, 0)

    def _replace(self, content: bytes, room: int) -> None:
        beside = self._path.with_name(self._path.name + ".part")
        fd = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            with os.fdopen(os.dup(fd), "wb") as file:
                file.write(content + b" " * room + _TAIL)
            os.replace(beside, self._path)
        except BaseException:
            os.close(fd)
            raise
        self._shut()
        self._fd = fd
        self._used = len(content)
        self._end = len(content) + room

    def _shut(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
