"""A training job on real processes: a `Controller` driven over a `Session`.

The loop stays the user's; a `Job` carries what may change while it runs.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from kfcore import _native, progress
from kfcore.accumulation import MicroNorms
from kfcore.config import Config
from kfcore.control import Vector
from kfcore.controller import Controller, LocalStep, StepOutcome
from kfcore.elastic.rates import Rate
from kfcore.elastic.sampler import ElasticSampler
from kfcore.errors import UsageError
from kfcore.events import Change, EventLog
from kfcore.faults import read_faults
from kfcore.gradients import float_view, scale
from kfcore.in_force import InForce
from kfcore.injection import Injector
from kfcore.job_session import Alone, JobSession, tell_all, view_version
from kfcore.monitors import Monitor
from kfcore.norms import StepNorms
from kfcore.policy.base import Policy
from kfcore.policy.load import load_policy
from kfcore.sampling import DataPass
from kfcore.synchronizer import Synchronizer
from kfcore.task import Task

__all__ = ["Job", "JobSession"]


_FIXED = {
    "world_size": "the number of real processes cannot change during a job; Resize works in "
    "the simulator"
}


class Job(InForce):
    """Training with a batch size, learning rate and schedule that policies may change.

    A context manager; leaving it ends training and closes the log.

    Args:
        session: Open session; None: a single process on its own.
        local_batch: Samples a rank and step at the start, >= 1.
        learning_rate: At the start, >= 0; or a rate keyed to samples (`kfcore.elastic.rates`),
            of which policies see and change the peak.
        policies: Deciders; those of the configuration (``kf run --policy``) are added.
        hyper: Other numbers that policies may change, by name.
        monitors: Monitors wanted beside those of the policies.
        parameters: The model's arrays, which sync modes other than ``allreduce`` average.
        on_checkpoint: Saves; called after the update of the step that a policy's `Checkpoint`
            named.
        log: File for rank 0's events, one JSON object a line; None: ``events.jsonl`` in the
            configuration's log folder, if it has one.
        record: Also log what policies saw, for ``kf policy replay``; so does the
            configuration (``kf run --record``).
        config: This process's configuration; None: from the environment.
        clock: Monotonic seconds.

    Raises:
        UsageError: a value out of range, a policy that cannot be loaded, a name used twice.
    """

    _controller_class = Controller

    def __init__(
        self,
        session: JobSession | None = None,
        *,
        local_batch: int,
        learning_rate: float | Rate,
        policies: Sequence[Policy] = (),
        hyper: Mapping[str, float] | None = None,
        monitors: Sequence[Monitor] = (),
        parameters: Sequence[Any] | None = None,
        on_checkpoint: Callable[["Job"], None] | None = None,
        log: str | Path | None = None,
        record: bool = False,
        config: Config | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        config = Config.from_env() if config is None else config
        self._session = Alone() if session is None else session
        if log is None and config.log_dir is not None:
            log = Path(config.log_dir) / "events.jsonl"
        self._log = EventLog(log) if log is not None and self._session.rank == 0 else None
        self._clock = clock
        self._sync = Synchronizer(self._session, parameters)
        self._on_checkpoint = on_checkpoint
        self._checkpoint_due = False
        fixed = {**_FIXED, **self._sync.refuse_unknown()}
        if on_checkpoint is None:
            fixed["checkpoint"] = "give the job an `on_checkpoint` that saves"
        controller = self._controller_class(
            world_size=self._session.world_size,
            local_batch=local_batch,
            learning_rate=learning_rate.peak if callable(learning_rate) else learning_rate,
            schedule=self._session.schedule,
            hyper=hyper,
            policies=[*policies, *(load_policy(spec) for spec in config.policies)],
            view_version=view_version(self._session),
            rank=self._session.rank,
            on_event=self._log,
            monitors=monitors,
            fixed=fixed,
            carry_out=self._carry_out,
            record=record or config.record,
        )
        self._faults = None if config.faults is None else Injector(read_faults(config.faults))
        rate = learning_rate if callable(learning_rate) else None
        super().__init__(controller, self._session.rank, rate)
        self._begun = False
        self._ended = False
        self._handed: int | None = None  # samples of the batch handed out last
        self._share = 1.0  # this rank's weight in the mean; 1 unless batches are uneven
        self._step_end_s = self._entered_s = 0.0
        self._times = LocalStep()
        self._notice_until_s = math.nan

    def batches(
        self, n_samples: int | ElasticSampler, *, seed: int = 0, shuffle: bool = True
    ) -> Iterator[NDArray[np.int64]]:
        """This rank's batches of one pass over the data; `step` must follow each.

        A batch has `local_batch` samples, fewer at the end of the pass; `step` weighs the ranks
        so that the mean stays exact when their batches differ. A rank for which nothing is left
        in the last step gets one stand-in sample of weight 0. See `kfcore.sampling.DataPass`.
        The pass ends early when a policy stops the job.

        Args:
            n_samples: Of the data set, >= 1; or a sampler, whose pass goes on from where it
                is and which may fix the global batch.
            seed: Of the order; the same on every rank. A sampler has its own.
            shuffle: False: in order of index. Likewise.

        Yields:
            [batch] int64 indices in [0, n_samples), other ones on each rank.

        Raises:
            UsageError: too few samples, or `step` was not called for a batch.
        """
        if isinstance(n_samples, ElasticSampler):
            source: ElasticSampler | DataPass = n_samples
        elif n_samples >= 1:
            source = DataPass(n_samples, seed=seed, epoch=self.epoch, shuffle=shuffle)
        else:
            raise UsageError(f"n_samples must be >= 1, got {n_samples}")
        self._begin()
        while not self.stopped:
            taken = source.take(self.world_size, self.global_batch)
            if taken is None:
                break
            self._handed, self._share = len(taken.of(self.rank)), taken.weight(self.rank)
            yield taken.batch(self.rank)
            self._check_stepped()
            self.settle()
        if not self.stopped:
            if isinstance(source, ElasticSampler):
                source.next_epoch()
            self.controller.epoch_done()

    def step(
        self,
        grads: Sequence[Any],
        *,
        loss: float = math.nan,
        micro: MicroNorms | None = None,
        loss_scale: float = 1.0,
    ) -> StepOutcome:
        """Average gradients over all ranks in place, measure, agree, install what was agreed.

        Args:
            grads: Gradients of this rank's mean loss: writable float arrays (NumPy, torch on
                the CPU, anything with DLPack), the same shapes and types on every rank.
            loss: This rank's mean loss, for the agreed ``loss`` metric; NaN: not measured.
            micro: Norms of the micro-batches that were accumulated (`kfcore.accumulation`).
            loss_scale: Factor that the gradients were computed with, > 0 (mixed precision);
                monitors see them without it, the arrays keep it.

        Returns:
            What happened; do not apply the gradients if it says ``skipped``.

        Raises:
            UsageError: gradients are not float arrays, or a policy asked for what cannot be.
            ConflictingProposals: ranks or policies proposed different changes; none was made.
            TransportError: the session failed.
        """
        self._begin()
        self._suffer_faults()
        views = [float_view(grad) for grad in grads]
        apart = self._sync.mode.averages_models  # each rank applies its own gradient
        if self._share != 1.0 and not (apart and self._share > 0):
            scale(grads, self._share)
        norms = StepNorms(
            views,
            inside=self._sync.measures and not self.controller.signals_read_norm,
            local=(self.controller.wants_norms or apart) and self._share > 0,
            divisor=loss_scale**2,
            share=1.0 if apart else self._share,
            micro=micro,
        )
        times = self._times
        sums, maxes = self.controller.fill(
            LocalStep(
                step_s=times.step_s,
                compute_s=times.compute_s,
                comm_s=times.comm_s,
                comm_bytes=times.comm_bytes,
                loss=float(loss),
                grad_sq_norm=norms.local,
                samples=math.nan if self._handed is None else float(self._handed),
                notice_s=self._notice_until_s - self._clock(),
            )
        )
        begin_s = self._clock()
        self._sync.average(grads, views, sums, maxes, norms.inside(sums))
        comm_s = self._clock() - begin_s
        mean_sq = math.nan if apart else norms.mean()
        outcome = self._end_step(sums, maxes, mean_sq, micro)
        self._handed, self._share = None, 1.0
        if outcome.conflict:
            self._explain_conflict()
        self._measure(comm_s, sum(view.nbytes for view in views))
        return outcome

    def give_notice(self, seconds: float) -> None:
        """Tell the policies of all ranks, with the next step, that this worker must leave.

        Args:
            seconds: Until then, >= 0.

        Raises:
            UsageError: ``seconds`` is negative or not a number.
        """
        if not 0 <= seconds < math.inf:
            raise UsageError(f"seconds must be >= 0, got {seconds!r}")
        self._notice_until_s = self._clock() + seconds

    def settle(self) -> None:
        """What is due after the step's update: models are averaged, a checkpoint is saved.

        `batches` and `train` call it; a loop of your own calls it after each update when the
        sync mode may be another than ``allreduce`` or policies may ask for a `Checkpoint`.

        Raises:
            TransportError: the session failed.
        """
        self._sync.settle()
        if self._checkpoint_due and self._on_checkpoint is not None:
            self._checkpoint_due = False
            self._on_checkpoint(self)

    def train(
        self,
        task: Task,
        *,
        epochs: int,
        max_steps: int | None = None,
        seed: int = 0,
        on_step: Callable[["Job", float], None] | None = None,
    ) -> dict[str, float]:
        """The whole loop for a `Task`.

        Args:
            task: This rank's copy.
            epochs: Passes over its data, >= 0.
            max_steps: Steps after which to end, in the middle of a pass if need be.
            seed: Of the order of samples.
            on_step: Called after each step with the job and this rank's loss.

        Returns:
            What `Task.evaluate` says at the end.

        Raises:
            KfError: as `step` and `batches`.
        """
        last = self.epoch + epochs  # a worker that comes late begins in a later epoch
        while self.epoch < last:
            for indices in self.batches(task.n_samples, seed=seed):
                loss, grads = task.gradients(indices)
                if not self.step(grads, loss=loss).skipped:
                    task.apply(self.learning_rate)
                if on_step is not None:
                    on_step(self, loss)
                if max_steps is not None and self.steps >= max_steps:
                    self.settle()
                    return task.evaluate()
            if self.stopped:
                break
        return task.evaluate()

    def capture(self) -> dict[str, Any]:
        """How far this job is: makes it a part of `kfcore.elastic.ElasticState`."""
        return progress.capture(self.controller)

    def restore(self, tree: Any) -> None:
        """Go on from there, at any world size.

        Args:
            tree: What `capture` gave.

        Raises:
            UsageError: it is of another job.
        """
        progress.restore(self.controller, tree)

    def close(self) -> None:
        """End training: run ``after_train``, close the log. The session stays open."""
        if self._ended:
            return
        self._ended = True
        try:
            if self._begun:
                self.controller.train_end()
        finally:
            if self._log is not None:
                self._log.close()

    def __enter__(self) -> "Job":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:  # training did not end, it broke off
            self._begun = False
        self.close()

    def _suffer_faults(self) -> None:
        """Let happen what a fault plan has for this worker in the coming step."""
        if self._faults is not None:
            version = self.controller.view_version
            self._faults.enter(self.steps + 1, self._session, version, self._log)
        self._entered_s = self._clock()

    def _begin(self) -> None:
        if self._ended:
            raise UsageError("this job was closed; make another")
        if not self._begun:
            self._begun = True
            self._step_end_s = self._clock()
            self.controller.train_begin()

    def _check_stepped(self) -> None:
        if self._handed is not None:
            raise UsageError("job.step was not called for the batch before this one")

    def _end_step(
        self, sums: Vector, maxes: Vector, mean_sq: float, micro: MicroNorms | None
    ) -> StepOutcome:
        # First what the step owes under the mode it ran in, then what its boundary changes.
        self._sync.end_step(self.steps + 1)
        outcome = self.controller.step_done(
            sums,
            maxes,
            grad_sq_norm=mean_sq,
            micro_steps=1 if micro is None else micro.count,
        )
        self._sync.keep(skipped=outcome.skipped)
        return outcome

    def _carry_out(self, change: Change) -> float:
        """Put an installed change into practice; milliseconds that it took."""
        begin_s = self._clock()
        if change.what == "checkpoint":
            self._checkpoint_due = True
        self._sync.change(change.what, change.new, change.step)
        return 1e3 * (self._clock() - begin_s)

    def _measure(self, comm_s: float, comm_bytes: int) -> None:
        now_s = self._clock()
        step_s = now_s - self._step_end_s
        self._step_end_s = now_s
        self.tally.add(step_s, comm_s, now_s - self._entered_s - comm_s)
        self._times = LocalStep(
            step_s=step_s,
            compute_s=step_s - comm_s,
            comm_s=comm_s,
            comm_bytes=float(comm_bytes),
        )

    def _explain_conflict(self) -> NoReturn:
        """One exchange of what each rank proposed, and the error that says so everywhere."""
        texts = tell_all(
            self._session, self.controller.proposal_text, _native.Engine.TEXT_BYTES
        )
        self.controller.raise_conflict(texts)
