"""How workers learn where their store is when no launcher told them its address.

``note:NAME``: all are on one host; rank 0 leaves the address in a file of this user's.
``pmi:FD``: MPICH's process manager keeps a key for them (PMI-1, text lines over descriptor FD).
Both let the system choose a free port, which a port agreed beforehand cannot.
"""

import json
import os
import socket
import tempfile
import time
from pathlib import Path
from typing import BinaryIO, cast

from kfcore.errors import DeadlineError, TransportError, UsageError

__all__ = ["is_meeting", "meet"]

_LOOK_S = 0.02
_KEY = "kf_store"
_LINE_BYTES = 1 << 16


def is_meeting(address: str) -> bool:
    """Whether a store address still has to be learnt by `meet`."""
    return address.startswith(("note:", "pmi:"))


def meet(place: str, own_address: str | None, timeout_s: float) -> str:
    """Tell the others where the store is, or learn it.

    Args:
        place: ``note:NAME`` or ``pmi:FD``; the same kind on every rank.
        own_address: Of the store that this worker serves (rank 0), or None to learn it.
        timeout_s: Longest time to wait for rank 0, seconds.

    Returns:
        The store's ``host:port``.

    Raises:
        DeadlineError: Rank 0 did not tell in time.
        TransportError: The process manager does not answer as it should.
        UsageError: The folder of notes belongs to somebody else.
    """
    kind, _, rest = place.partition(":")
    if kind == "pmi":
        return _over_pmi(int(rest), own_address, timeout_s)
    path = _note_path(rest)
    if own_address is not None:
        _leave_note(path, own_address)
        return own_address
    return _read_note(path, timeout_s)


def _note_path(name: str) -> Path:
    folder = Path(tempfile.gettempdir()) / f"kf-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise UsageError(f"{folder} belongs to another user; set TMPDIR to a folder of yours")
    return folder / ("".join(c if c.isalnum() else "_" for c in name) + ".store")


def _leave_note(path: Path, address: str) -> None:
    text = json.dumps({"address": address, "pid": os.getpid(), "began": _began(os.getpid())})
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)  # seen whole or not at all


def _read_note(path: Path, timeout_s: float) -> str:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            note = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            note = None
        # a note whose writer has gone is of an earlier job
        if note is not None and _began(note["pid"]) == note["began"]:
            return str(note["address"])
        if time.monotonic() > deadline:
            raise DeadlineError(f"rank 0 left no note at {path} within {timeout_s:g} s")
        time.sleep(_LOOK_S)


def _began(pid: int) -> str | None:
    """When a process started, in clock ticks since boot: tells it from a later one."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()[19]


def _over_pmi(fd: int, own_address: str | None, timeout_s: float) -> str:
    """One put, one barrier, one get; then the connection is handed back to the manager."""
    with socket.socket(fileno=os.dup(fd)) as sock:
        sock.settimeout(timeout_s)
        try:
            with sock.makefile("rwb") as lines:
                return _ask(cast("BinaryIO", lines), own_address)
        except TimeoutError:
            raise DeadlineError(f"no answer over PMI within {timeout_s:g} s") from None
        except OSError as error:
            raise TransportError(f"the process manager hung up: {error}") from error


def _ask(lines: BinaryIO, own_address: str | None) -> str:
    def say(text: str) -> dict[str, str]:
        lines.write(f"cmd={text}\n".encode())
        lines.flush()
        line = lines.readline(_LINE_BYTES).decode()
        answer = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if answer.get("rc", "0") != "0" or not answer:
            raise TransportError(f"PMI answered {text.partition(' ')[0]!r} with {line!r}")
        return answer

    say("init pmi_version=1 pmi_subversion=1")
    space = say("get_my_kvsname").get("kvsname", "")
    if own_address is not None:
        say(f"put kvsname={space} key={_KEY} value={own_address}")
    say("barrier_in")
    address = own_address or say(f"get kvsname={space} key={_KEY}").get("value", "")
    say("finalize")
    return address
