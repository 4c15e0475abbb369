"""Training of a torch model whose workers may die, leave and come."""

import functools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kfcore.controller import StepOutcome
from kfcore.elastic.checkpoint import CheckpointFolder
from kfcore.elastic.parts import Value
from kfcore.elastic.sampler import ElasticSampler
from kfcore.elastic.state import ElasticState
from kfcore.elastic_job import ElasticJob
from kfcore.errors import UsageError
from kfcore.membership import Member, join
from kfcore.session import Session
from kfcore.torch.feed import Feed
from kfcore.torch.memory import Flat, parameters_of
from kfcore.torch.rates import scale_rates

__all__ = ["Elastic"]


class Elastic:
    """A training loop that goes on when workers die, leave or come. A context manager.

    A step is taken by all workers that are left, or by none; a lost worker's samples come
    next. A worker that comes late receives model, optimizer, scheduler, position in the data
    and `generators`, and begins where the others are; so ask for passes with ``while
    elastic.epoch < epochs``. How members change: `docs/membership.md`.

    Args:
        model: Of torch, on the CPU; those who begin the job get rank 0's values.
        optimizer: Over its parameters. Its learning rate is the job's: a policy that changes
            it scales the rates of all groups.
        sampler: Hands out the data; with a ``global_batch`` the run does not depend on the
            number of workers.
        scheduler: Of torch; its ``step`` is called after each update.
        member: From `kfcore.join`, which the caller closes; None: joins here.
        local_batch: Samples a worker and step, >= 1; needed where the sampler has no
            ``global_batch``.
        generators: Generators (torch, NumPy, `random`) that all workers use alike. Torch's own
            generator is every worker's own.
        scheduler_per: ``step``, or ``epoch``: its ``step`` is called after each pass.
        **more: As for `kfcore.ElasticJob`, such as ``policies`` and ``log``.

    Attributes:
        job: The job underneath: settings, metrics, proposals.
        member: This worker's membership: `leave`, `resize`.
        state: What newcomers receive; `add` your own parts to it before the first batch.

    Raises:
        UsageError: an argument is out of range, or the optimizer holds no parameters.
        TransportError: the others could not be reached.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        sampler: ElasticSampler,
        scheduler: Any = None,
        *,
        member: Member | None = None,
        local_batch: int | None = None,
        generators: Mapping[str, Any] | None = None,
        scheduler_per: str = "step",
        **more: Any,
    ) -> None:
        if local_batch is None and sampler.global_batch is None:
            raise UsageError("give the sampler a global_batch or the job a local_batch")
        if scheduler_per not in ("step", "epoch"):
            raise UsageError(f"scheduler_per must be step or epoch, got {scheduler_per!r}")
        self._model, self._optimizer, self._scheduler = model, optimizer, scheduler
        self._sampler, self._scheduler_per = sampler, scheduler_per
        self._trained = parameters_of(optimizer)
        self._rate = float(optimizer.param_groups[0]["lr"])
        parts: dict[str, Any] = {
            "model": model,
            "optimizer": optimizer,
            "rate": Value(lambda: self._rate, self._take_rate),
            "generators": dict(generators or {}),
        }
        if scheduler is not None:
            parts["scheduler"] = _scheduler_part(scheduler)
        self.state = ElasticState(**parts)
        self._joined = None if member is not None else join()
        self.member: Member = member or self._joined  # type: ignore[assignment]
        try:
            if local_batch is None:
                local_batch = max(1, (sampler.global_batch or 1) // self.member.world_size)
            self.job = ElasticJob(
                self.member,
                self.state,
                local_batch=local_batch,
                learning_rate=self._rate,
                **more,
            )
            self._begin_alike()
        except BaseException:
            self._leave()
            raise
        self._saved = ElasticState(**parts, sampler=sampler, job=self.job)
        self._feeds: dict[int, tuple[Any, Feed]] = {}
        self._in_step = False  # a batch was handed out, and not trained on yet

    # ---- the loop -----------------------------------------------------------------------

    def batches(self) -> Iterator[NDArray[np.int64]]:
        """This worker's batches, to the end of the pass; `step` must follow each.

        Yields:
            [batch] int64 indices.

        Raises:
            UsageError: `step` was not called for a batch.
            LeftError: this worker left.
            ExpelledError: the others went on without this worker.
            NoQuorumError: too few workers are left.
            TransportError: the workers cannot agree on how to go on.
        """
        for indices in self.job.batches(self._sampler):
            self._in_step = True
            yield indices
        if self._scheduler is not None and self._scheduler_per == "epoch":
            self._scheduler.step()

    def load(self, dataset: Any, **options: Any) -> Iterator[Any]:
        """As `batches`, with the samples themselves, loaded ahead.

        Args:
            dataset: Has ``__getitem__``.
            **options: Of `torch.utils.data.DataLoader`, such as ``num_workers``,
                ``persistent_workers`` and ``multiprocessing_context``; the first call for a
                data set decides.

        Yields:
            Collated batches.

        Raises:
            UsageError: as `batches`, or an option would choose the samples.
        """
        key = id(dataset)
        if key not in self._feeds:
            self._feeds[key] = (dataset, Feed(dataset, **options))
        feed = self._feeds[key][1]
        for indices in self.batches():
            yield feed.take(indices, self._foresee)

    def step(self, loss: Any = math.nan, *, clip_norm: float | None = None) -> StepOutcome:
        """Average the gradients over all workers, update the model and the schedule.

        A parameter that has no gradient here counts as one with a gradient of zeros.

        Args:
            loss: Of this worker's batch, a number or a tensor with one; for the metrics.
            clip_norm: Norm to which the averaged gradients are clipped, > 0.

        Returns:
            What happened; nothing was updated if it says ``skipped``.

        Raises:
            UsageError: a gradient is sparse, or as `kfcore.Job.step`.
            ConflictingProposals: as `kfcore.Job.step`.
            ExpelledError: the others went on without this worker.
            NoQuorumError: too few workers are left.
            TransportError: the workers cannot agree on how to go on.
        """
        if isinstance(loss, torch.Tensor):
            loss = loss.detach()
        outcome = self.job.step(self._gradients(), loss=float(loss))
        self._in_step = False
        if outcome.skipped:
            self._follow_rate()
            return outcome
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._trained, clip_norm)
        with self.state.changing():
            self._optimizer.step()
            if self._scheduler is not None and self._scheduler_per == "step":
                self._scheduler.step()
            self._follow_rate()
        return outcome

    @property
    def epoch(self) -> int:
        """Passes over the data finished."""
        return self.job.epoch

    @property
    def steps(self) -> int:
        """Steps finished by the job, also before this worker came."""
        return self.job.steps

    @property
    def rank(self) -> int:
        """This worker, in the members of now."""
        return self.job.rank

    @property
    def world_size(self) -> int:
        """Members of now."""
        return self.job.world_size

    @property
    def stopped(self) -> bool:
        """Whether a policy ended training."""
        return self.job.stopped

    # ---- checkpoints --------------------------------------------------------------------

    def save(self, folder: str | Path, note: Mapping[str, Any] | None = None) -> Path | None:
        """Write a checkpoint that loads at any number of workers; rank 0 writes.

        Args:
            folder: Shared by the workers, or this worker's.
            note: Plain JSON values to be kept with it.

        Returns:
            The file, on rank 0.

        Raises:
            UsageError: it cannot be written, or a batch was handed out and `step` not called.
        """
        if self._in_step:
            raise UsageError(
                "save after `step`: a batch is under way, whose samples would be lost"
            )
        if self.rank != 0:
            return None
        self._saved.commit(self.steps)
        return CheckpointFolder(folder).save(self._saved, note)

    def resume(self, folder: str | Path) -> bool:
        """Go on from the newest checkpoint; all workers that begin the job call it.

        Args:
            folder: As for `save`.

        Returns:
            Whether there was one.

        Raises:
            UsageError: there are checkpoints, and none fits.
        """
        if self.member.waiting:  # it gets the state of those that are there
            return False
        return CheckpointFolder(folder).load(self._saved) is not None

    # ---- the end ------------------------------------------------------------------------

    def close(self) -> None:
        """End the job once all workers have everything."""
        try:
            self.job.close()
        finally:
            self._leave()

    def __enter__(self) -> "Elastic":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.job.__exit__(kind, error, trace)
        finally:
            self._leave()

    def _leave(self) -> None:
        self._feeds = {}  # ends the loaders' processes
        if self._joined is not None:
            self._joined.close()

    # ---- inside -------------------------------------------------------------------------

    def _begin_alike(self) -> None:
        if self.member.waiting or self.member.world_size == 1:
            return
        tensors = [*self._model.parameters(), *self._model.buffers(), *self._trained]
        for flat in Flat.by_type(tensor.detach() for tensor in tensors):
            self.member.running(functools.partial(_broadcast, flat.pack()))
            flat.unpack()

    def _gradients(self) -> list[torch.Tensor]:
        for parameter in self._trained:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            elif parameter.grad.is_sparse:
                raise UsageError("sparse gradients cannot be averaged: make sparse=False")
        return [parameter.grad for parameter in self._trained]  # type: ignore[misc]

    def _foresee(self) -> Iterator[NDArray[np.int64]]:
        job = self.job
        return self._sampler.foresee(job.rank, job.world_size, job.global_batch)

    def _follow_rate(self) -> None:
        """Scale the groups' rates as a policy has scaled the job's."""
        factor = self.job.learning_rate / self._rate if self._rate else 1.0
        if factor == 1.0:
            return
        self._rate = self.job.learning_rate
        schedulers = () if self._scheduler is None else (self._scheduler,)
        scale_rates(self._optimizer, factor, schedulers)

    def _take_rate(self, rate: float) -> None:
        self._rate = rate


def _broadcast(row: torch.Tensor, session: Session) -> None:
    session.broadcast(row)


def _scheduler_part(scheduler: Any) -> Value:
    def restore(tree: Any) -> None:
        for name, value in tree.items():
            if isinstance(getattr(scheduler, name, None), Counter):
                tree[name] = Counter(value)  # comes back as a plain dict
        scheduler.load_state_dict(tree)

    return Value(scheduler.state_dict, restore)
