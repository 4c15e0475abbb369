"""The launcher's event loop: start n workers, merge their output, bring them to one end.

States of a job: *running*; *failing* (a worker failed; the others have a moment to end by
themselves); *stopping* (SIGTERM sent, SIGKILL due after the grace time).
"""

import selectors
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import BinaryIO

from kfcore.config import Config, child_environment, environment_elsewhere
from kfcore.exits import EXIT_PREEMPTED
from kfcore.launch.hosts import Place
from kfcore.launch.output import RankFiles, WorkerStream
from kfcore.launch.process import Reaper, Worker
from kfcore.launch.spec import (
    LaunchResult,
    LaunchSpec,
    default_threads,
)
from kfcore.launch.ssh import RemoteWorker, is_here

__all__ = ["RunningWorker", "Supervisor"]

TICK_S = 0.1
# How long the others may take, after the first failure seen, to end by themselves: to say whom
# they lost, to save what they have, or to turn out to be the cause.
OTHERS_WAIT_S = 1.0
# How long output is still read after all programs have ended (a daemon may hold the pipe).
DRAIN_S = 1.0


@dataclass
class RunningWorker:
    """What belongs to one worker."""

    worker: Worker
    out: WorkerStream
    err: WorkerStream
    files: RankFiles | None
    place: Place
    failed_at: float | None = None  # when it failed by its own doing, monotonic seconds


class Supervisor:
    """Runs the workers of one job to a common end; `launch` drives it.

    Args:
        spec: The job.
        out: Gets the workers' standard output.
        err: Gets their standard error, and what the launcher has to say.
        command: Program and arguments of every worker.
        job: What all workers are told alike.
    """

    def __init__(
        self, spec: LaunchSpec, out: BinaryIO, err: BinaryIO, command: list[str], job: Config
    ) -> None:
        self._spec, self._out, self._err = spec, out, err
        self._command, self._job = command, job
        self._ranks: list[RunningWorker] = []
        self._here: set[str] = set()  # names of this host
        self._width = 1  # of the rank in prefixes
        self._selector = selectors.DefaultSelector()
        self._reaper = Reaper()
        self._started = time.monotonic()
        self._signals: list[int] = []
        self._stop_at: float | None = None  # when to begin stopping
        self._kill_at: float | None = None  # when to send SIGKILL; set once stopping
        self._culprit: RunningWorker | None = None
        self._output_lost = False
        self._preempted = False  # a worker was told to leave, and saved its state

    def start(self, places: list[Place]) -> None:
        """Start all workers; those already started are stopped by close() on an error."""
        self._width = len(str(len(places) - 1))
        for name in {place.host for place in places}:
            if is_here(name):
                self._here.add(name)
        for place in places:
            self._start_worker(place)

    def _start_worker(self, place: Place) -> RunningWorker:
        rank, log_dir = place.rank, self._spec.log_dir
        files = None if log_dir is None else RankFiles(log_dir, rank)
        worker = self._worker(place)
        self._reaper.add(worker.group)
        prefix = f"[{rank:>{self._width}}] ".encode() if self._spec.prefix else b""
        out_file, err_file = (files.out, files.err) if files else (None, None)
        out = WorkerStream(worker.stdout_fd, prefix, self._show_out, out_file, holds=False)
        err = WorkerStream(worker.stderr_fd, prefix, self._show_err, err_file, holds=True)
        running = RunningWorker(worker, out, err, files, place)
        self._ranks.append(running)
        for stream in (out, err):
            self._selector.register(stream.fd, selectors.EVENT_READ, stream)
        self._selector.register(worker.exit_fd, selectors.EVENT_READ, running)
        return running

    def _config(self, place: Place) -> Config:
        return replace(
            self._job,
            rank=place.rank,
            world_size=max(self._job.world_size, place.rank + 1),
            local_rank=place.local_rank,
            local_world_size=place.local_world_size,
        )

    def _worker(self, place: Place) -> Worker:
        config, command = self._config(place), self._command
        # unbuffered, or nothing is seen of a worker until it ends
        defaults = {"PYTHONUNBUFFERED": "1"}
        if place.host not in self._here:
            env = environment_elsewhere(config, self._spec.passed, self._spec.env)
            return RemoteWorker(place, command, env, defaults, self._spec.ssh)
        defaults["OMP_NUM_THREADS"] = str(default_threads(place.local_world_size))
        env = child_environment(config, defaults, wins=self._spec.env)
        return Worker(place.rank, command, env)

    def interrupt(self, number: int) -> None:
        """Note a signal to pass on; called from the signal handler."""
        self._signals.append(number)

    def run(self) -> None:
        """Supervise until every worker has ended and its output is shown."""
        while self._is_going_on():
            events = self._selector.select(TICK_S)
            now = time.monotonic()
            self._handle(events, now)
            self._advance(now)
        deadline = time.monotonic() + DRAIN_S
        while any(r.out.open or r.err.open for r in self._ranks):
            if time.monotonic() > deadline:
                break
            self._handle(self._selector.select(TICK_S), time.monotonic())
        self._finish()

    def _is_going_on(self) -> bool:
        return any(rank.worker.result is None for rank in self._ranks)

    def result(self) -> LaunchResult:
        """Summarise a job whose workers have all ended."""
        workers = tuple(rank.worker.collect() for rank in self._ranks)
        culprit = None if self._culprit is None else self._culprit.worker.result
        number = self._signals[0] if self._signals else None
        exit_code = 0
        if culprit is not None:
            exit_code = culprit.exit_code
        elif self._preempted and all(r.exit_code in (0, EXIT_PREEMPTED) for r in workers):
            exit_code = EXIT_PREEMPTED
        elif number is not None:
            exit_code = 128 + number
        elif self._output_lost:
            exit_code = 128 + signal.SIGPIPE
        return LaunchResult(
            exit_code=exit_code,
            job_id=self._job.job_id,
            workers=workers,
            first_failure=culprit,
            stopped_by=None if number is None else signal.Signals(number).name,
            wall_s=time.monotonic() - self._started,
        )

    def close(self) -> None:
        """End whatever still runs and free all descriptors."""
        for rank in self._ranks:
            rank.worker.signal_group(signal.SIGKILL)
        for rank in self._ranks:
            rank.worker.collect()
            self._reaper.remove(rank.worker.group)
            rank.worker.close()
            if rank.files is not None:
                rank.files.close()
        self._reaper.close()
        self._selector.close()

    def _handle(self, events: list[tuple[selectors.SelectorKey, int]], now: float) -> None:
        # Ends first: a death seen together with other ranks' complaints about it came first.
        for key, _ in events:
            if isinstance(key.data, RunningWorker):
                self._ended(key.data, now)
        for key, _ in events:
            if isinstance(key.data, WorkerStream):
                key.data.pump()
                self._forget_if_closed(key.data)
        for rank in self._ranks:
            if rank.worker.result is None:
                rank.err.release_if_old(now)

    def _ended(self, rank: RunningWorker, now: float) -> None:
        self._selector.unregister(rank.worker.exit_fd)
        result = rank.worker.collect()
        self._reaper.remove(rank.worker.group)
        for stream in (rank.out, rank.err):
            stream.drain()
            self._forget_if_closed(stream)
        if result.exit_code == EXIT_PREEMPTED:  # an orderly end; the others have theirs
            self._preempted = True
        elif result.exit_code != 0 and self._kill_at is None:
            rank.failed_at = rank.err.held_since or now
            if self._stop_at is None:
                self._stop_at = now + OTHERS_WAIT_S

    def _forget_if_closed(self, stream: WorkerStream) -> None:
        if not stream.open:
            with suppress(KeyError):
                self._selector.unregister(stream.fd)

    def _advance(self, now: float) -> None:
        """Begin stopping, or kill, when it is time."""
        if self._kill_at is None:
            if self._signals:
                self._stop(self._signals[0], now)
            elif self._output_lost or (self._stop_at is not None and now >= self._stop_at):
                self._stop(signal.SIGTERM, now)
        elif now >= self._kill_at or len(self._signals) > 1:  # asked twice: at once
            for rank in self._ranks:
                rank.worker.signal_group(signal.SIGKILL)

    def _stop(self, number: int, now: float) -> None:
        failed = [rank for rank in self._ranks if rank.failed_at is not None]
        if failed:
            self._culprit = min(failed, key=lambda r: (r.err.is_consequence, r.failed_at))
        self._kill_at = now + self._spec.grace_s
        for rank in self._ranks:
            rank.worker.signal_group(number)

    def _finish(self) -> None:
        """Show last words, the first failure's after all others', and name it."""
        if self._culprit is None and self._stop_at is not None:  # all ended before the stop
            self._stop(signal.SIGTERM, time.monotonic())
        for rank in self._ranks:
            rank.out.finish()
            rank.err.finish()
            if rank is not self._culprit:
                rank.err.release()
        if self._culprit is not None:
            self._culprit.err.release()
            self._show_err(f"kf: {self._culprit.worker.collect().verdict}\n".encode())
        elif self._preempted:
            self._show_err(b"kf: stopped by a notice to leave\n")
        elif self._signals:
            name = signal.Signals(self._signals[0]).name
            self._show_err(f"kf: stopped by {name}\n".encode())

    def _show_out(self, lines: bytes) -> None:
        self._show(self._out, lines)

    def _show_err(self, lines: bytes) -> None:
        self._show(self._err, lines)

    def _show(self, target: BinaryIO, lines: bytes) -> None:
        try:
            target.write(lines)
            target.flush()
        except BrokenPipeError:  # nobody reads any more: stop the job, as a shell pipe does
            self._output_lost = True
