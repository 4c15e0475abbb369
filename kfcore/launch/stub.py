"""Runs one worker on another host, for a launcher at the far end of standard input.

Started there over ssh by file name, with the standard library only. The first line of standard
input is a JSON object with ``cwd``, ``env`` (set), ``defaults`` (set unless set), ``share``
(workers of this host, for the default of OMP_NUM_THREADS) and ``command``. Later lines are
numbers of signals for the worker's process group. The end of the input, which is the launcher's
or the connection's death, stops the group. Exit code: the worker's, 128 + number for a signal.
"""

import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from typing import Any

GRACE_S = 1.0
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_prctl = ctypes.CDLL(None).prctl


class Guard:
    """A process that outlives this one if it is killed, and stops the worker's group then."""

    def __init__(self) -> None:
        read_end, self._pipe = os.pipe()
        if os.fork() == 0:
            os.setsid()
            os.close(self._pipe)
            for fd in range(3):  # or the far end would wait for this process too
                os.close(fd)
            self._watch(read_end)
            os._exit(0)
        os.close(read_end)

    def tell(self, text: str) -> None:
        """Name the group to stop, or say ``done`` when there is none left."""
        with contextlib.suppress(OSError):
            os.write(self._pipe, text.encode() + b"\n")

    @staticmethod
    def _watch(read_end: int) -> None:
        said = b""
        while data := os.read(read_end, 64):
            said += data
        group, *rest = said.split() or (b"0", b"done")
        if not rest:
            for number, pause_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, 0.0)):
                with contextlib.suppress(OSError):
                    os.killpg(int(group), number)
                    time.sleep(pause_s)


def start(order: dict[str, Any]) -> "subprocess.Popen[bytes]":
    """Start the worker as the launcher asks."""
    threads = str(max(1, len(os.sched_getaffinity(0)) // int(order["share"])))
    env = {"OMP_NUM_THREADS": threads, **order["defaults"], **os.environ, **order["env"]}
    return subprocess.Popen(  # noqa: S603 - running the user's program is the job
        order["command"],
        cwd=order["cwd"],
        env=env,
        stdin=subprocess.DEVNULL,
        process_group=0,
        preexec_fn=lambda: _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509 - one system call
    )


def follow(worker: "subprocess.Popen[bytes]") -> None:
    """Pass signals on until the worker ends; stop it when the input does."""
    ended = os.pidfd_open(worker.pid)
    kill_at: float | None = None
    unread = b""
    with selectors.DefaultSelector() as selector:
        selector.register(ended, selectors.EVENT_READ)
        selector.register(0, selectors.EVENT_READ)
        while True:
            wait_s = None if kill_at is None else max(0.0, kill_at - time.monotonic())
            ready = {key.fd for key, _ in selector.select(wait_s)}
            if ended in ready:
                return
            if kill_at is not None and time.monotonic() >= kill_at:
                tell(worker, signal.SIGKILL)
                return
            if 0 not in ready:
                continue
            data = os.read(0, 4096)
            if not data:
                selector.unregister(0)
                tell(worker, signal.SIGTERM)
                kill_at = time.monotonic() + GRACE_S
            *lines, unread = (unread + data).split(b"\n")
            for line in lines:
                tell(worker, int(line))


def tell(worker: "subprocess.Popen[bytes]", number: int) -> None:
    """Send a signal to the worker's group; it may have gone."""
    with contextlib.suppress(OSError):
        os.killpg(worker.pid, number)


def main() -> int:
    """Run one worker to its end."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    order = json.loads(_first_line())
    guard = Guard()
    try:
        worker = start(order)
    except OSError as error:
        print(f"kf: cannot run {order['command'][0]!r} here: {error}", file=sys.stderr)  # noqa: T201 - a program of its own
        guard.tell("0 done")
        return 127
    guard.tell(str(worker.pid))
    follow(worker)
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    tell(worker, signal.SIGKILL)  # what it left behind, while it still holds its number
    guard.tell("done")
    code = worker.wait()
    return code if code >= 0 else 128 - code


def _first_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)  # no more: what follows is read by `follow`
        if not byte:
            break
        line += byte
    return line


if __name__ == "__main__":
    sys.exit(main())
