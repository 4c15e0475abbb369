"""What workers print: merged by whole lines, prefixed, copied to files, bytes unchanged.

A worker's last words are treated apart: from a line that begins a traceback on, its standard
error is held until the worker ends (at most HOLD_S while it lives), so that the launcher can
show the traceback of the first failure last, below the errors it caused in other ranks.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from kfcore.errors import UsageError

__all__ = ["RankFiles", "WorkerStream"]

# A longer line is shown in pieces of this size; log files keep it whole.
LINE_BYTES = 1 << 20
READ_BYTES = 1 << 16
HOLD_S = 2.0
HOLD_LINES = 2000
_LAST_WORDS = (b"Traceback (most recent call last):", b"Fatal Python error:")
# A worker that ends on one of these was told of another's failure.
_CONSEQUENCES = (
    b"PeerLostError",
    b"DeadlineError",
    b"AbortedError",
    b"TransportError",
    b"ConnectionResetError",
    b"BrokenPipeError",
)


class RankFiles:
    """The raw output files of one rank: ``rank.<r>.out`` and ``rank.<r>.err``.

    Args:
        folder: where; made if missing.
        rank: whose.

    Raises:
        UsageError: the folder cannot be written.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.out: BinaryIO = (folder / f"rank.{rank}.out").open("wb", buffering=0)
            self.err: BinaryIO = (folder / f"rank.{rank}.err").open("wb", buffering=0)
        except OSError as error:
            raise UsageError(f"cannot write logs to {folder}: {error.strerror}") from error

    def close(self) -> None:
        """Close both files."""
        self.out.close()
        self.err.close()


class WorkerStream:
    """One pipe of one worker, cut into lines.

    Args:
        fd: read end; owned by the worker.
        prefix: put before each line shown.
        show: called with one or more whole prefixed lines.
        copy: gets the bytes exactly as read, or None.
        holds: whether last words are held back (standard error).
    """

    def __init__(
        self,
        fd: int,
        prefix: bytes,
        show: Callable[[bytes], None],
        copy: BinaryIO | None,
        *,
        holds: bool,
    ) -> None:
        self.fd = fd
        self.open = True
        self.held: list[bytes] = []
        self.held_since: float | None = None
        self._prefix, self._show, self._copy, self._holds = prefix, show, copy, holds
        self._partial = b""
        os.set_blocking(fd, False)

    def pump(self) -> bool:
        """Read once and pass on what is complete.

        Returns:
            Whether there was something to read.
        """
        try:
            data = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self.finish()
            return False
        if self._copy is not None:
            self._copy.write(data)
        *lines, self._partial = (self._partial + data).split(b"\n")
        while len(self._partial) > LINE_BYTES:
            lines.append(self._partial[:LINE_BYTES])
            self._partial = self._partial[LINE_BYTES:]
        self._pass_on(lines)
        return True

    def drain(self) -> None:
        """Pass on everything that can be read without waiting."""
        while self.open and self.pump():
            pass

    def finish(self) -> None:
        """Pass on a last line without a newline; the stream is closed from here on."""
        if self.open:
            self.open = False
            if self._partial:
                self._pass_on([self._partial])
                self._partial = b""

    def release(self) -> None:
        """Show what was held back."""
        held, self.held, self.held_since = self.held, [], None
        if held:
            self._show(b"".join(held))

    def release_if_old(self, now: float) -> None:
        """Show what was held back when the worker lives on all the same."""
        if self.held_since is not None and now - self.held_since > HOLD_S:
            self.release()

    @property
    def is_consequence(self) -> bool:
        """Whether the held last words blame another rank."""
        last = self.held[-1] if self.held else b""
        return any(name in last for name in _CONSEQUENCES)

    def _pass_on(self, lines: list[bytes]) -> None:
        ready: list[bytes] = []
        for line in lines:
            shown = self._prefix + line + b"\n"
            if self._holds and self.held_since is None and any(m in line for m in _LAST_WORDS):
                self.held_since = time.monotonic()
            if self.held_since is None:
                ready.append(shown)
            else:
                self.held.append(shown)
        if ready:
            self._show(b"".join(ready))
        if len(self.held) > HOLD_LINES:
            self.release()
