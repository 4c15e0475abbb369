"""What to launch, checked before anything starts, and what came of it."""

import os
import shutil
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kfcore.config import DEFAULT_TIMEOUT_S
from kfcore.errors import UsageError
from kfcore.launch.hosts import Host, Place, place

__all__ = ["LaunchResult", "LaunchSpec", "WorkerResult", "default_threads", "resolve_command"]

MAX_WORKERS = 8192  # the most that a schedule knows


@dataclass(frozen=True)
class LaunchSpec:
    """A job, on this host or several.

    Attributes:
        command: program and arguments of every worker; a ``.py`` file alone is run by the
            interpreter that runs the launcher, which is also what ``python`` means.
        world_size: number of workers, in [1, 8192].
        policies: ``FILE:CLASS`` entries handed to every worker.
        timeout_s: the workers' default deadline of a blocking operation, seconds, > 0.
        log_dir: folder for ``rank.<r>.out`` and ``rank.<r>.err``, made if missing, or None.
        prefix: put ``[rank] `` before every line shown.
        grace_s: seconds between the request to stop (SIGTERM) and SIGKILL, >= 0.
        interface: network interface the workers advertise, or None.
        env: variables added to, or overriding, the launcher's own.
        faults: file with a fault plan, or None.
        record: jobs log what policies saw too; needs ``log_dir``.
        elastic: fewest and most workers of a job that goes on when workers die, leave or come;
            None: the first failure ends the job.
        cooldown_s: seconds for which a host gets no new worker after one failed there, >= 0.
        most_restarts: workers started in the place of failed ones, at most, >= 0.
        store: ``etcd://host:port`` where the job's store is kept; None: in the launcher.
        secret: of the job; empty: a random one.
        discovery: program that prints the hosts to use, ``host:slots`` a line, or None.
        hosts: where workers run, filled in order; empty = all here.
        ssh: program and arguments that reach a host, before the host's name.
        passed: names of variables that workers elsewhere get too.
    """

    command: tuple[str, ...]
    world_size: int
    policies: tuple[str, ...] = ()
    timeout_s: float = DEFAULT_TIMEOUT_S
    log_dir: Path | None = None
    prefix: bool = True
    grace_s: float = 5.0
    interface: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    faults: Path | None = None
    record: bool = False
    elastic: tuple[int, int] | None = None
    cooldown_s: float = 5.0
    most_restarts: int = 100
    store: str | None = None
    secret: str = ""
    discovery: Path | None = None
    hosts: tuple[Host, ...] = ()
    ssh: tuple[str, ...] = ("ssh", "-o", "BatchMode=yes")
    passed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot be launched."""
        if not 1 <= self.world_size <= MAX_WORKERS:
            raise UsageError(
                f"number of workers must be in [1, {MAX_WORKERS}], got {self.world_size}"
            )
        if not 0 < self.timeout_s < float("inf"):
            raise UsageError(f"timeout_s must be finite and > 0, got {self.timeout_s}")
        if not 0 <= self.grace_s < float("inf"):
            raise UsageError(f"grace_s must be finite and >= 0, got {self.grace_s}")
        if not 0 <= self.cooldown_s < float("inf"):
            raise UsageError(f"cooldown_s must be finite and >= 0, got {self.cooldown_s}")
        if self.most_restarts < 0:
            raise UsageError(f"most_restarts must be >= 0, got {self.most_restarts}")
        if self.elastic is not None:
            fewest, most = self.elastic
            if not 1 <= fewest <= self.world_size <= most <= MAX_WORKERS:
                raise UsageError(
                    f"elastic MIN:MAX must hold the number of workers, 1 <= MIN <= "
                    f"{self.world_size} <= MAX <= {MAX_WORKERS}, got {fewest}:{most}"
                )
        elif self.discovery is not None:
            raise UsageError("a host discovery script needs elastic MIN:MAX")
        if not self.ssh:
            raise UsageError("ssh must name a program")

    def places(self) -> list[Place]:
        """Where each rank runs.

        Returns:
            One place a rank, in order.

        Raises:
            UsageError: more workers than slots.
        """
        here = (Host("localhost", self.world_size),)
        return place(self.hosts or here, self.world_size)


@dataclass(frozen=True)
class WorkerResult:
    """How one worker ended.

    Attributes:
        rank: the worker.
        exit_code: as a shell reports it: 128 + signal number for a signal.
        signal: name of the signal that ended it, such as ``SIGSEGV``, or None.
        wall_s: seconds from its start to its end.
        host: where it ran, or None for this host.
    """

    rank: int
    exit_code: int
    signal: str | None
    wall_s: float
    host: str | None = None

    @property
    def verdict(self) -> str:
        """``rank 1 exited 7`` or ``rank 1 was killed by SIGSEGV``."""
        who = f"rank {self.rank}" if self.host is None else f"rank {self.rank} on {self.host}"
        if self.signal is not None:
            return f"{who} was killed by {self.signal}"
        return f"{who} exited {self.exit_code}"


@dataclass(frozen=True)
class LaunchResult:
    """How a job ended.

    Attributes:
        exit_code: 0; or the first failing worker's; or 75 (`kfcore.exits.EXIT_PREEMPTED`) when
            workers ended so and none failed; or 128 + the signal the launcher got.
        job_id: the job's random name.
        workers: one result a rank, in order.
        first_failure: the worker whose failure ended the job, or None.
        stopped_by: name of the signal that the launcher received and passed on, or None.
        wall_s: seconds from the first start to the last end.
    """

    exit_code: int
    job_id: str
    workers: tuple[WorkerResult, ...]
    first_failure: WorkerResult | None
    stopped_by: str | None
    wall_s: float


def worker_result(rank: int, returncode: int, wall_s: float) -> WorkerResult:
    """Translate a `subprocess` return code, which is -signal for a signal."""
    if returncode >= 0:
        return WorkerResult(rank, returncode, None, wall_s)
    try:
        name = signal.Signals(-returncode).name
    except ValueError:  # a real-time signal
        name = f"signal {-returncode}"
    return WorkerResult(rank, 128 - returncode, name, wall_s)


def resolve_command(command: tuple[str, ...]) -> list[str]:
    """Find the program, so that a wrong name is one error and not one a rank.

    Args:
        command: program and arguments as typed.

    Returns:
        The command with an interpreter before a ``.py`` file and paths that exist.

    Raises:
        UsageError: there is no such script or program.
    """
    if not command:
        raise UsageError("no program to run: give one after the options")
    program, rest = command[0], list(command[1:])
    if program.endswith(".py"):
        return [sys.executable, _existing_script(program), *rest]
    if program in ("python", "python3"):
        script = next((arg for arg in rest if not arg.startswith("-")), None)
        if script is not None and script == (rest[0] if rest else None):
            _existing_script(script)
        return [sys.executable, *rest]
    found = shutil.which(program)
    if found is None:
        raise UsageError(f"no such program: {program!r}")
    return [found, *rest]


def _existing_script(path: str) -> str:
    if not Path(path).exists():
        raise UsageError(f"no such file: {path!r} (in {Path.cwd()})")
    return path


def default_threads(world_size: int) -> int:
    """Threads a worker may use so that all together fill this process's cores, >= 1."""
    return max(1, len(os.sched_getaffinity(0)) // world_size)
