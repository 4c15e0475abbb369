"""A training job whose workers may die, leave and come while it runs.

A step is committed by all workers that go on, or by none; see `docs/membership.md`.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from kfcore.accumulation import MicroNorms
from kfcore.config import Config
from kfcore.controller import StepOutcome
from kfcore.elastic.image import Image
from kfcore.elastic.sampler import ElasticSampler, pass_over
from kfcore.elastic.state import ElasticState
from kfcore.elastic_controller import ElasticController
from kfcore.errors import InternalError, TransportError, UsageError
from kfcore.events import EventLog
from kfcore.gradients import float_view
from kfcore.job import Job
from kfcore.membership.ending import wait_for_all
from kfcore.membership.handover import give_state, pack_job, pass_result, take_state
from kfcore.membership.member import FAILURES, Member
from kfcore.membership.opening import Opened
from kfcore.membership.results import StepBuffers
from kfcore.norms import StepNorms
from kfcore.sampling import StepSamples
from kfcore.session import Session

__all__ = ["ElasticJob"]

_FINISHED = "the job finished"
_FIXED = dict.fromkeys(
    ("sync_mode", "compression"), "an elastic job averages gradients, and sends them whole"
)


class ElasticJob(Job):
    """A `Job` that goes on when workers die, leave or come. A context manager.

    Loops look as with `Job`. Where it differs:

    * When a worker is lost, `step` repeats the step by itself with the gradients of those that
      are left; the samples of the lost one come next. A step that some survivor has completed
      is not repeated: the others get its result.
    * A worker that comes late waits in `batches`, which gives it the others' state; so ask for
      passes with ``while job.epoch < epochs``, not by counting.
    * Members change between two steps, when `batches` is asked for the next batch; a loop of
      your own calls `boundary` before each.

    Args:
        member: From `kfcore.join`.
        state: Everything that the optimizer's step changes; what late workers receive.
        local_batch: As for `Job`.
        learning_rate: As for `Job`.
        log: As for `Job`; the log goes on when another worker becomes rank 0.
        record: As for `Job`.
        config: This process's configuration; None: the member's.
        **more: As for `Job`.

    Raises:
        UsageError: as for `Job`.
    """

    _controller_class = ElasticController

    def __init__(
        self,
        member: Member,
        state: ElasticState,
        *,
        local_batch: int,
        learning_rate: Any,
        log: str | Path | None = None,
        record: bool = False,
        config: Config | None = None,
        **more: Any,
    ) -> None:
        config = member.config if config is None else config
        super().__init__(
            member,
            local_batch=local_batch,
            learning_rate=learning_rate,
            config=dataclasses.replace(config, log_dir=None),
            **more,
        )
        self._elastic = cast("ElasticController", self.controller)
        self._elastic.member = self._member = member
        self._elastic.fix(_FIXED)
        self._state = state
        self._steps = StepBuffers()
        if log is None and config.log_dir is not None:
            log = Path(config.log_dir) / "events.jsonl"
        self._log_path, self._record = log, record or config.record
        self._ids: Sequence[str] = member.view.members  # of the view that was entered last
        self._source: ElasticSampler | None = None
        self._own_source: ElasticSampler | None = None
        self._parts: dict[str, NDArray[np.int64]] = {}  # of the batch under way, by member
        self._due = False  # all know that the members change before the next step
        self._pending: Opened | None = None  # a view to be entered when the step is over
        self._images: tuple[Image, Image] | None = None  # for newcomers, at a boundary
        if not member.waiting:
            self._open_log(append=False)

    def batches(
        self, n_samples: int | ElasticSampler, *, seed: int = 0, shuffle: bool = True
    ) -> Iterator[NDArray[np.int64]]:
        """As `Job.batches`; members change between two of them.

        Args:
            n_samples: Of the data set, or a sampler.
            seed: Of the order.
            shuffle: False: in order of index.

        Yields:
            [batch] int64 indices.

        Raises:
            UsageError: as `Job.batches`.
            LeftError: this worker left.
            ExpelledError: the others went on without this worker.
            NoQuorumError: too few workers are left.
            TransportError: the workers cannot agree on how to go on.
        """
        if isinstance(n_samples, ElasticSampler):
            source = n_samples
        else:
            source = self._own_source = pass_over(
                n_samples, seed, shuffle, self.epoch, self._own_source
            )
        self._source = source
        self._enter_if_new()
        self._begin()
        while not self.stopped:
            self.boundary()
            taken = source.take(self.world_size, self.global_batch)
            if taken is None:
                break
            self._deal(taken)
            own = self._parts[self._member.id]
            self._handed = len(own)
            yield own if len(own) else taken.indices[:1]
            self._check_stepped()
            self.settle()
        if not self.stopped:
            source.next_epoch()
            self.controller.epoch_done()

    def boundary(self) -> None:
        """Change the members, if all know that they should change; between two steps.

        `batches` calls it before each batch; a loop of your own does, with the state as the
        last step left it. Raises as `step`, and `LeftError` when this worker has left.
        """
        self._enter_if_new()
        due, self._due = self._due, False
        if self._pending is not None:
            if due or not self._source:  # the others changed view here too
                self._enter(self._pending)
            return
        if not due:
            return
        self._state.commit(self.steps)
        image = self._state.image()
        self._images = (pack_job(self._tree(), image), image)
        try:
            self._member.install()
            opened = self._to_next_view()
        finally:
            self._images = None
        self._enter(opened)

    def step(
        self,
        grads: Sequence[Any],
        *,
        loss: float = math.nan,
        micro: MicroNorms | None = None,
        loss_scale: float = 1.0,
    ) -> StepOutcome:
        """As `Job.step`, repeated until it is committed by all workers that go on.

        Args:
            grads: As for `Job.step`.
            loss: This rank's mean loss.
            micro: As for `Job.step`.
            loss_scale: As for `Job.step`.

        Returns:
            What happened; do not apply the gradients if it says ``skipped``.

        Raises:
            UsageError: as `Job.step`.
            ConflictingProposals: as `Job.step`.
            ExpelledError: the others went on without this worker.
            NoQuorumError: too few workers are left.
            TransportError: the workers cannot agree on how to go on.
        """
        if self._member.waiting:
            raise UsageError("this worker waits to be taken in: ask `batches` or `boundary`")
        self._begin()
        if self._pending is not None:  # a loop of its own, without batches
            self._enter(self._pending)
        self._suffer_faults()
        views = [float_view(grad) for grad in grads]
        begin_s = self._clock()
        sums, maxes, due = self._reduce(views, loss, loss_scale, micro)
        comm_s = self._clock() - begin_s
        outcome = self._end_step(sums, maxes, float(due[1]), micro)
        if self._handed is not None and not any(len(part) for part in self._parts.values()):
            outcome = dataclasses.replace(outcome, skipped=True)  # all its samples were lost
        self._due = bool(due[0])
        self._handed, self._parts = None, {}
        if outcome.conflict:
            self._explain_conflict()
        self._measure(comm_s, sum(view.nbytes for view in views))
        return outcome

    def close(self) -> None:
        """As `Job.close`, once all workers have everything; the job is over then."""
        if not self._ended and self._begun and not self._member.waiting:
            wait_for_all(self._member, self._to_next_view)
            self._member.finish(_FINISHED)
        super().close()

    # ---- a step -------------------------------------------------------------------------

    def _reduce(
        self,
        views: list[NDArray[Any]],
        loss: float,
        loss_scale: float,
        micro: MicroNorms | None,
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Reduce gradients and control vectors, in as many views as it takes."""
        step = self.steps + 1
        while True:
            share = self._share_now()
            self._steps.take_in(step, views, share)
            norms = StepNorms(
                self._steps.gradients(step),
                inside=not self.controller.signals_read_norm,
                local=self.controller.wants_norms and share > 0,
                divisor=loss_scale**2,
                share=share,
                micro=micro,
            )
            samples = math.nan if self._handed is None else float(self._handed)
            local = dataclasses.replace(
                self._times, loss=float(loss), grad_sq_norm=norms.local, samples=samples
            )
            sums, maxes = self.controller.fill(local)
            due = np.array([float(self._member.change_wanted), 0.0])
            self._steps.control(step, sums, maxes, due)
            pieces = self._steps.pieces(step, self.controller.bucket_bytes)
            try:
                self._member.grouped_all_reduce(
                    [*pieces, sums, maxes, due],
                    op=[*["avg"] * len(pieces), "sum", "max", "max"],
                    fusion_bytes=self.controller.bucket_bytes,
                    norms=norms.inside(sums),
                )
                due[1] = norms.mean()  # for those that get this step's result from others
            except FAILURES as error:
                if not self._recover(error):
                    continue
            break
        self._steps.completed = step
        self._member.stepped()
        self._steps.give_out(step, views)
        return sums, maxes, due

    def _share_now(self) -> float:
        """Weight of this worker's gradient in the mean over those that are left."""
        if not self._parts:
            return 1.0
        total = sum(len(part) for part in self._parts.values())
        own = len(self._parts[self._member.id])
        return own * self.world_size / total if total else 0.0

    def _recover(self, error: BaseException) -> bool:
        """Go to the next view after a failure; whether it brought the step's result."""
        self._member.failed(error)
        opened = self._to_next_view()
        if opened.rank in opened.standing.laggards:
            # the view is entered where the others entered it: after the next batch was dealt
            self._pending = opened
            return True
        self._enter(opened)
        return False

    def _deal(self, taken: StepSamples) -> None:
        self._parts = {member: taken.of(rank) for rank, member in enumerate(self._ids)}
        if self._pending is not None:
            self._enter(self._pending)

    # ---- views --------------------------------------------------------------------------

    def _to_next_view(self) -> Opened:
        """The next view in which everybody got what it needs."""
        while True:
            sizes = [float(image.size) for image in self._images or ()] or [0.0, 0.0]
            opened = self._member.advance(
                self._steps.completed, (self._elastic.configuration, *sizes)
            )
            try:
                self._member.running(functools.partial(self._hand_over, opened))
            except FAILURES as error:
                self._member.failed(error)
                continue
            return opened

    def _hand_over(self, opened: Opened, session: Session) -> None:
        """Give those that are behind what they need, or get it."""
        standing, rank = opened.standing, opened.rank
        pass_result(session, standing, rank, self._steps.arrays(standing.committed))
        if standing.newcomers and rank in standing.sources:
            if self._images is None:
                raise InternalError("a newcomer was taken in away from a boundary")
            give_state(session, standing, rank, *self._images, opened.words[:, 2])

    def _enter(self, opened: Opened) -> None:
        """Go on in a view: drop what belonged to lost workers, tell controller and log."""
        self._pending = None
        before = self._ids if opened.old_members else ()
        members = [member.id for member in opened.roster.members]
        lost = [part for member, part in self._parts.items() if member not in members]
        self._parts = {m: part for m, part in self._parts.items() if m in members}
        if lost and self._source is not None:
            self._source.give_back(np.concatenate(lost))
        configuration = int(opened.words[:, 0].max())
        self._elastic.enter_view(
            opened.roster.version, len(members), opened.rank, configuration
        )
        self._rank, self._ids = opened.rank, members
        self._member.set_schedule(self.schedule)
        if self._member.schedule != self.schedule:
            self._elastic.use_schedule(self._member.schedule)
        if self._rank == 0 and self._log is None:
            self._open_log(append=True)
        self._elastic.note_view(
            before,
            members,
            opened.roster.reason,
            {
                "agree": 1e3 * (opened.agreed_s - opened.began_s),
                "open": 1e3 * (opened.ready_s - opened.agreed_s),
                "total": 1e3 * (time.monotonic() - opened.began_s),
            },
        )

    def _enter_if_new(self) -> None:
        """Wait to be taken in, and take the state over."""
        if not self._member.waiting:
            return
        self._state.warm()
        self._member.enter()
        while True:
            opened = self._member.advance(-1, (0.0, 0.0, 0.0))
            try:
                tree, image = self._member.running(
                    functools.partial(take_state, opened, self._state)
                )
            except FAILURES as error:
                self._member.failed(error)
                continue
            self._take_over(tree, image)
            if self._member.settled():
                break
            self._member.failed(TransportError("the view ended before this worker had settled"))
        self._begun = True
        self._step_end_s = self._clock()
        self._enter(opened)

    def _tree(self) -> dict[str, Any]:
        return {
            "controller": self._elastic.capture(),
            "sampler": None if self._source is None else self._source.state_dict(),
        }

    def _take_over(self, tree: dict[str, Any], image: Image) -> None:
        self._elastic.restore(tree["controller"])
        self._member.set_schedule(self.schedule)
        self._state.load(image, self.steps, copy=False)
        if self._source is not None and tree["sampler"] is not None:
            self._source.load_state_dict(tree["sampler"])
        self._steps.completed = self.steps

    def _open_log(self, *, append: bool) -> None:
        if self._log_path is None or self._rank != 0:
            return
        self._log = EventLog(self._log_path, append=append)
        self._elastic.log_to(self._log, record=self._record)
