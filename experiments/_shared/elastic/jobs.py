"""Starts a job of one of the systems, follows what its workers note, and ends it."""

import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kfcore.errors import KfError

__all__ = ["SYSTEMS", "ElasticJobRun", "missing", "running"]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
SYSTEMS = ("kf", "torchrun", "horovod")
LIMIT_S = 60.0
STEP_S = 0.02
_LOOK_S = 0.02
_GRACE_S = 10.0
_HOROVOD = Path(".venv-horovod") / "bin"


def missing(system: str) -> str | None:
    """Why a system cannot run here, or None."""
    if system == "horovod" and not (_HOROVOD / "horovodrun").exists():
        return "horovod: tools/install_horovod.sh makes .venv-horovod, which is not here"
    return None


@dataclass
class ElasticJobRun:
    """A running job.

    Attributes:
        system: One of `SYSTEMS`.
        folder: Where its workers note what they do.
        plan: See notes.py.
        processes: Launchers.
    """

    system: str
    folder: Path
    plan: dict[str, Any]
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, words: list[str], **env: str) -> None:
        """Start a launcher; its output goes to a file."""
        with (self.folder / f"launcher{time.monotonic()}.log").open("wb") as log:
            self.processes.append(
                subprocess.Popen(
                    words,
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                    env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **env},
                )
            )

    def resize(self, workers: int) -> float:
        """Ask for another number of workers: of the roster, or of Horovod's discovery script.

        Args:
            workers: Wanted.

        Returns:
            When it was asked, host's monotonic seconds.
        """
        asked_s = time.monotonic()
        if self.system == "kf":
            self._write("wanted", str(workers))
        else:
            self._write("slots", _slots(workers))
        return asked_s

    def _write(self, name: str, text: str) -> None:
        part = self.folder / f"{name}.part"
        part.write_text(text)
        part.replace(self.folder / name)

    def end(self) -> None:
        """End whatever still runs; torchrun's workers are in sessions that only it knows of."""
        for process in self.processes:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    @property
    def worker(self) -> list[str]:
        """Program and arguments of a worker."""
        program = str(HERE / f"{self.system}_worker.py")
        return [program, str(self.folder), json.dumps(self.plan)]

    @property
    def steps(self) -> list[tuple[float, int, int]]:
        """Time of its end, number and workers of each finished step, by time."""
        found = []
        for path in self.folder.glob("*.steps"):
            for line in path.read_text().split("\n")[:-1]:
                step, end, workers = line.split()
                found.append((float(end), int(step), int(workers)))
        return sorted(found)

    @property
    def decided_s(self) -> float:
        """When the victim died."""
        return float((self.folder / "decided").read_text())

    def until(self, what: str, found: Callable[[], Any]) -> Any:
        """Wait until something is found and return it.

        Raises:
            KfError: the job ended, or it took longer than `LIMIT_S`.
        """
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            value = found()
            if value:
                return value
            if any(process.poll() is not None for process in self.processes):
                break
            time.sleep(_LOOK_S)
        logs = [
            path.read_text(errors="replace")[-800:]
            for path in sorted(self.folder.glob("launcher*.log"))
        ]
        raise KfError(f"{self.system}: never {what}:\n" + "\n".join(logs))

    def first_after(self, begin_s: float, workers: int = 0) -> float:
        """Wait for the first step that ended after a time, on so many workers (0: any)."""

        def found() -> float:
            ends = (end for end, _, n in self.steps if end > begin_s and workers in (0, n))
            return min(ends, default=0.0)

        return float(self.until(f"a step on {workers or 'the remaining'} workers", found))

    def took(self, asked_s: float, end_s: float) -> dict[str, float]:
        """Latency of a change, and the pause of training in it, seconds."""
        return {"latency_s": end_s - asked_s, "pause_s": self.pause_s(asked_s, end_s)}

    def pause_s(self, begin_s: float, end_s: float) -> float:
        """Longest time without a finished step between two times, less a usual step."""
        gaps = self._gaps([end for end, _, _ in self.steps])
        usual = statistics.median(b - a for a, b in gaps)
        return max(b - a for a, b in gaps if b > begin_s and a < end_s) - usual

    def _gaps(self, ends: list[float]) -> list[tuple[float, float]]:
        """Neighbouring ends; those of one step on several workers are one."""
        apart = [end for i, end in enumerate(ends) if i == 0 or end - ends[i - 1] > STEP_S / 4]
        return list(itertools.pairwise(apart))


@contextlib.contextmanager
def running(
    system: str, folder: Path, founders: int, most: int, plan: dict[str, Any]
) -> Iterator[ElasticJobRun]:
    """A job of ``founders`` workers that may have ``most``; ended afterwards whatever happens.

    Args:
        system: One of `SYSTEMS`.
        folder: Empty; for notes.
        founders: Workers at the start.
        most: Workers at most.
        plan: See notes.py; ``step_s`` and ``state_bytes`` have defaults.

    Yields:
        The running job.
    """
    job = ElasticJobRun(system, folder, {"step_s": STEP_S, "state_bytes": 8000, **plan})
    kills = "kill" in plan
    if system == "kf":
        least = founders - 1 if kills else 1
        words = [sys.executable, "-m", "kfcore", "run", "-n", str(founders)]
        words += ["--elastic", f"{least}:{most}", "--cooldown-s", "0.1", "--", *job.worker]
        job.start(words)
    elif system == "torchrun":
        words = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        words += [f"--nproc-per-node={founders}", "--max-restarts=3", *job.worker]
        job.start(words)
    else:
        _start_horovod(job, founders, most, kills=kills)
    try:
        yield job
        (folder / "enough").touch()
        deadline = time.monotonic() + _GRACE_S
        for process in job.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
    finally:
        job.end()


def _start_horovod(job: ElasticJobRun, founders: int, most: int, *, kills: bool) -> None:
    # the host of a dead worker is not used again, so the victim has one of its own
    (job.folder / "slots").write_text(_slots(founders))
    script = job.folder / "hosts.sh"
    script.write_text(f"#!/bin/sh\ncat {job.folder / 'slots'}\n")
    script.chmod(0o755)
    words = [str((_HOROVOD / "horovodrun").absolute()), "--gloo", "-np", str(founders)]
    words += ["--min-np", str(founders - 1 if kills else 1), "--max-np", str(most)]
    words += ["--host-discovery-script", str(script)]
    path = f"{_HOROVOD.absolute()}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    job.start([*words, str((_HOROVOD / "python").absolute()), *job.worker], PATH=path)


def _slots(workers: int) -> str:
    return f"localhost:{workers - 1}\n127.0.0.1:1\n"
