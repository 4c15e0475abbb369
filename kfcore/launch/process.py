"""Worker processes: started so that none can outlive the launcher, stopped by group."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from kfcore.errors import UsageError
from kfcore.launch import reaper
from kfcore.launch.spec import WorkerResult, worker_result

__all__ = ["Reaper", "Worker"]

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
# Bound before any fork: the child may call it, but must not look it up.
_prctl = ctypes.CDLL(None, use_errno=True).prctl


class Reaper:
    """The launcher's last will: a process that stops the listed groups when the launcher dies.

    The kernel's parent-death signal reaches a worker but not the worker's own children; this
    process reaches its whole group.
    """

    def __init__(self) -> None:
        read_end, self._pipe = os.pipe()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own script
                [sys.executable, "-I", "-S", str(Path(reaper.__file__))],
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            os.close(read_end)

    def add(self, group: int) -> None:
        """List a process group to stop."""
        self._tell(f"+{group}\n")

    def remove(self, group: int) -> None:
        """Strike a group out: it has been stopped and its number may be used again."""
        self._tell(f"-{group}\n")

    def close(self) -> None:
        """Let the reaper stop what is still listed, and end."""
        os.close(self._pipe)
        self._process.wait()

    def _tell(self, line: str) -> None:
        # Without its reaper a job still runs, and the parent-death signal still holds.
        with contextlib.suppress(OSError):
            os.write(self._pipe, line.encode())


class Worker:
    """One running worker: a process group led by the program.

    Args:
        rank: the worker's rank.
        command: program and arguments.
        env: its whole environment; None: that of the launcher.
        stdin: descriptor for standard input; empty when None.

    Raises:
        UsageError: the program cannot be executed.
    """

    def __init__(
        self,
        rank: int,
        command: Sequence[str],
        env: Mapping[str, str] | None,
        *,
        stdin: int | None = None,
    ) -> None:
        self.rank = rank
        self.result: WorkerResult | None = None
        self._started = time.monotonic()
        launcher = os.getpid()

        def tie_to_launcher() -> None:
            # Runs in the forked child. The kernel kills it when the launching thread ends;
            # if that happened before this call, the parent is another process by now.
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != launcher:
                os._exit(1)

        self.stdout_fd, child_stdout = os.pipe()
        self.stderr_fd, child_stderr = os.pipe()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - running the user's program is the job
                command,
                env=env,
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                stdout=child_stdout,
                stderr=child_stderr,
                process_group=0,
                preexec_fn=tie_to_launcher,  # noqa: PLW1509 - it only makes system calls
            )
        except OSError as error:
            os.close(self.stdout_fd)
            os.close(self.stderr_fd)
            raise UsageError(f"cannot run {command[0]!r}: {error.strerror}") from error
        finally:
            os.close(child_stdout)
            os.close(child_stderr)
        self.group = self._process.pid
        self.exit_fd = os.pidfd_open(self.group)
        """Becomes readable when the program has ended."""

    def signal_group(self, number: int) -> None:
        """Send a signal to the program and its children, unless it was collected already."""
        if self.result is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.group, number)

    def collect(self) -> WorkerResult:
        """Wait for the program's end, end what it left behind in its group, and report.

        The group is killed while the ended program still holds its number, so the signal
        cannot reach a stranger that was given the number later.
        """
        if self.result is None:
            os.waitid(os.P_PID, self.group, os.WEXITED | os.WNOWAIT)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.group, signal.SIGKILL)
            code = self._process.wait()
            self.result = worker_result(self.rank, code, time.monotonic() - self._started)
        return self.result

    def close(self) -> None:
        """Close the pipes and the exit descriptor."""
        for fd in (self.stdout_fd, self.stderr_fd, self.exit_fd):
            os.close(fd)
