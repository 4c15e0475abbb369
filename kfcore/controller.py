"""One job's policies, engine and monitors: the part that real and simulated jobs share.

A `Controller` has no I/O, no clock and no randomness. Its driver (`kfcore.Job` over a session,
or the simulator) carries the control vectors and says when steps and epochs end.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from kfcore import _native
from kfcore.configuration import (
    check_schedule,
    first_settings,
    installed_changes,
    plain,
    with_values,
)
from kfcore.control import ControlBlock, Vector
from kfcore.deciders import Deciders
from kfcore.errors import UsageError
from kfcore.events import Change, event
from kfcore.monitors import Monitor, MonitorSet, StepView, Undefined
from kfcore.outcome import StepOutcome
from kfcore.policy.actions import Action, Note
from kfcore.policy.base import Policy
from kfcore.policy.observation import LocalStep, Observation

__all__ = ["Controller", "LocalStep", "StepOutcome"]


class Controller:
    """Drives policies from measurements to agreed changes.

    Args:
        world_size: Workers, >= 1.
        local_batch: Samples a rank and step, >= 1.
        learning_rate: Finite, >= 0.
        schedule: Spec of the all-reduce schedule.
        hyper: Other numbers that policies may change, by name.
        policies: Deciders; each name once.
        view_version: Of the workers at the start.
        rank: This worker; only used in messages.
        on_event: Receives each event: step, view_version, kind, what, old, new, reason, policy.
        monitors: Monitors wanted beside those of the policies.
        record: Also emit an ``observed`` event for each hook, for ``kf policy replay``.
        fixed: Settings that cannot change here, and why: asking for it is an error.
        carry_out: Puts an installed change into practice; returns milliseconds that it took.

    Attributes:
        step: Steps finished.
        epoch: Passes over the data finished.
        metrics: Current metrics by name; see `Observation.metrics`.

    Raises:
        UsageError: a value out of range, a name used twice, an unknown schedule.
    """

    def __init__(
        self,
        *,
        world_size: int,
        local_batch: int,
        learning_rate: float,
        schedule: str = "ring",
        hyper: Mapping[str, float] | None = None,
        policies: Sequence[Policy] = (),
        view_version: int = 1,
        rank: int = 0,
        on_event: Callable[[dict[str, Any]], None] | None = None,
        monitors: Sequence[Monitor] = (),
        record: bool = False,
        fixed: Mapping[str, str] | None = None,
        carry_out: Callable[[Change], float] | None = None,
    ) -> None:
        self._deciders = Deciders(policies)
        self._engine = _native.Engine(
            first_settings(world_size, local_batch, learning_rate, schedule, hyper or {}),
            view_version,
        )
        self._monitors = MonitorSet(
            [
                *(("the caller", monitor) for monitor in monitors),
                *((policy.name, monitor) for policy in policies for monitor in policy.monitors),
            ],
            self._report_undefined,
        )
        self._block = ControlBlock(policies, world_size, rank)
        self._rank = rank
        self._on_event = on_event
        self._fixed = dict(fixed or {})
        self._carry_out = carry_out
        self._record = record and on_event is not None
        self._hyper_names = tuple(sorted(hyper or {}))
        self._wanted: dict[str, float | str] = {}
        self.epoch_begun = False  # whether the pass under way has had its `before_epoch`
        self.step = 0
        self.epoch = 0
        self.samples = 0
        self.signals: dict[str, Any] = {}
        self._read_settings()
        self.metrics = self._monitors.first()

    # What is in force now. `_read_settings` refreshes these after each install.
    world_size: int
    local_batch: int
    global_batch: int
    learning_rate: float
    schedule: str
    hyper: dict[str, float]
    view_version: int
    stopped: bool
    sync_mode: str
    bucket_bytes: int
    compression: str

    @property
    def sum_len(self) -> int:
        """Words of the control vector that is sum-reduced."""
        return self._block.sum_len

    @property
    def max_len(self) -> int:
        """Words of the control vector that is max-reduced."""
        return self._block.max_len

    @property
    def wants_norms(self) -> bool:
        """Whether a monitor will use the local gradient's norm of the coming step."""
        return self._monitors.wants_norms(self.step + 1)

    @property
    def signals_read_norm(self) -> bool:
        """Whether policies hand in signals made of the local gradient's norm."""
        return self._block.reads_norm

    @property
    def proposal_text(self) -> str:
        """This rank's step, configuration and proposal, for the message about a conflict."""
        return self._engine.proposal_text()

    def train_begin(self) -> None:
        """Run ``before_train``. Its proposals ride in the first step."""
        self._run("before_train")

    def fill(self, local: LocalStep) -> tuple[Vector, Vector]:
        """This rank's control vectors for the coming step.

        Args:
            local: What this rank measured; arrays [world_size] stand for all ranks at once.

        Returns:
            Sums [sum_len] and maxes [max_len], float64, to be reduced over all ranks by sum and
            by max; with array fields one row a rank.

        Raises:
            UsageError: an array has another shape, or a policy misbehaves.
            ConflictingProposals: two policies' ``before_epoch`` want different things.
        """
        if not self.epoch_begun:
            self.epoch_begun = True
            self._run("before_epoch")
        return self._block.encode(local, self._engine.digest_words(), self.local_batch)

    def step_done(
        self,
        sums: Vector,
        maxes: Vector,
        *,
        grad_sq_norm: float = math.nan,
        micro_steps: int = 1,
    ) -> StepOutcome:
        """End a step: measure, install what was agreed, ask the policies.

        Args:
            sums: The sum vector, reduced over all ranks.
            maxes: The max vector, reduced over all ranks.
            grad_sq_norm: |G|^2 of the averaged gradient; NaN: not measured; +inf: not finite.
            micro_steps: Gradients that each rank accumulated; its |g_i|^2 is their mean.

        Returns:
            What happened. On a conflict the policies were not asked.

        Raises:
            UsageError: a vector of another length, or a policy asked for what cannot be.
            ConflictingProposals: two policies want different values for one setting.
        """
        cluster, self.signals = self._block.decode(sums, maxes)
        decision = self._engine.decide(float(maxes[0]), float(maxes[1]))
        self.step += 1
        self._wanted.clear()
        skipped = cluster.nonfinite_ranks > 0 or math.isinf(grad_sq_norm)
        if skipped:
            self._emit("skipped", "step", reason="a gradient was not finite")
        else:
            self.samples += round(cluster.samples)
        view = StepView.of(self.step, self.world_size, cluster, grad_sq_norm, micro_steps)
        self.metrics = self._monitors.step(cluster, None if skipped else view)
        if decision.verdict == _native.Verdict.conflict:
            return StepOutcome(skipped=skipped, conflict=True)
        installed = self._install(decision.installed) if decision.installed else ()
        if installed:
            self._run("on_change", installed)
        self._run("after_step", installed)
        return StepOutcome(installed=installed, skipped=skipped)

    def raise_conflict(self, text_by_rank: Sequence[str]) -> NoReturn:
        """Drop this rank's proposal and say what each rank proposed.

        Args:
            text_by_rank: Each rank's `proposal_text`.

        Raises:
            ConflictingProposals: always.
        """
        try:
            self._engine.raise_conflict(list(text_by_rank))
        except UsageError as error:
            self._emit("conflict", "proposal", reason=str(error))
            raise
        raise AssertionError("raise_conflict returned")

    def epoch_done(self) -> None:
        """Run ``after_epoch``. Its proposals ride in the next step."""
        self.epoch += 1
        self.epoch_begun = False
        self._run("after_epoch")

    def train_end(self) -> None:
        """Run ``after_train``."""
        self._run("after_train")

    def propose(self, action: Action, *, policy: str = "") -> None:
        """Propose a change for the coming step; every rank must do so alike.

        Args:
            action: What should change.
            policy: Who asks; empty for the caller.

        Raises:
            UsageError: it cannot be installed; the proposal is as before.
            ConflictingProposals: another policy wants a different value; all is dropped.
        """
        changes = action.to_changes(policy, step=self.step, world_size=self.world_size)
        for change in changes:
            rule = self._fixed.get(change.name)
            if rule is not None and change.value != self._engine.value(change.name):
                raise UsageError(
                    f"{policy or 'the caller'} asked for {change.name} "
                    f"{plain(change.name, change.value)}: {rule}"
                )
        self._engine.propose(list(changes))
        for change in changes:
            old = self._engine.value(change.name)
            if change.value == old or self._wanted.get(change.name) == change.value:
                continue
            self._wanted[change.name] = change.value
            self._emit(
                "proposed", change.name, old, change.value, reason=change.reason, policy=policy
            )

    def policy_states(self) -> dict[str, dict[str, Any]]:
        """State of each policy by name, to be saved or handed to a joiner."""
        return self._deciders.states()

    def load_policy_states(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over what `policy_states` gave.

        Args:
            states: By policy name; policies that are not in it keep their state.

        Raises:
            UsageError: a policy is not in this job, or does not know its state.
        """
        self._deciders.load_states(states)

    def resume(
        self,
        *,
        step: int,
        epoch: int,
        samples: int,
        epoch_begun: bool,
        settings: Mapping[str, float],
    ) -> None:
        """Go on from another run's counts and settings; see `kfcore.progress`.

        Settings that are in force already are left alone, with what is proposed.

        Args:
            step: Steps finished.
            epoch: Passes finished.
            samples: Trained on so far, all ranks together.
            epoch_begun: Whether the pass under way has begun.
            settings: ``local_batch``, ``learning_rate`` and each hyper-parameter.

        Raises:
            UsageError: a setting is out of its range.
        """
        if any(self._engine.value(name) != value for name, value in settings.items()):
            self._engine = _native.Engine(
                with_values(self._engine.settings(), settings), self.view_version
            )
            self._wanted.clear()
            self._read_settings()
        self.step, self.epoch, self.samples = step, epoch, samples
        self.epoch_begun = epoch_begun

    def observe(self, changes: tuple[Change, ...] = ()) -> Observation:
        """What the policies would see now."""
        return Observation(
            step=self.step,
            epoch=self.epoch,
            world_size=self.world_size,
            local_batch=self.local_batch,
            global_batch=self.global_batch,
            learning_rate=self.learning_rate,
            schedule=self.schedule,
            view_version=self.view_version,
            samples=self.samples,
            hyper=self.hyper,
            metrics=self.metrics,
            signals=self.signals,
            changes=changes,
            sync_mode=self.sync_mode,
            bucket_bytes=self.bucket_bytes,
            compression=self.compression,
        )

    def _run(self, hook: str, changes: tuple[Change, ...] = ()) -> None:
        if not self._record and not self._deciders.listen(hook):
            return
        seen = self.observe(changes)
        if self._record:
            self._emit("observed", hook, new=seen.to_json())
        for policy, action in self._deciders.ask(hook, seen):
            if isinstance(action, Note):
                facts = dict(action.facts)
                self._emit("note", hook, new=facts, reason=action.reason, policy=policy.name)
            else:
                self.propose(action, policy=policy.name)
        self._check_schedule()

    def _check_schedule(self) -> None:
        """Refuse a schedule that does not exist for the world it is meant for."""
        if not self._wanted.keys() & {"schedule", "world_size"}:
            return
        spec = str(self._wanted.get("schedule", self.schedule))
        world_size = int(self._wanted.get("world_size", self.world_size))
        try:
            check_schedule(spec, world_size)
        except UsageError:
            self._engine.withdraw()
            self._wanted.clear()
            raise

    def _install(self, entries: Sequence[_native.Installed]) -> tuple[Change, ...]:
        self._read_settings()
        self._block.resize(self.world_size)
        if any(entry.name in ("local_batch", "world_size") for entry in entries):
            self._monitors.reset()
        changes = installed_changes(entries)
        for change in changes:
            took_ms = 0.0 if self._carry_out is None else self._carry_out(change)
            self._emit(
                "installed",
                change.what,
                change.old,
                change.new,
                reason=change.reason,
                policy=change.policy,
                ms=took_ms,
            )
        return changes

    def _report_undefined(self, name: str, value: Undefined) -> None:
        self._emit("undefined", name, reason=value.reason)
        warnings.warn(f"metric {name} is {value!r}", UserWarning, stacklevel=4)

    def _read_settings(self) -> None:
        value = self._engine.value
        self.world_size = int(value("world_size"))
        self.local_batch = int(value("local_batch"))
        self.global_batch = self.world_size * self.local_batch
        self.learning_rate = float(value("learning_rate"))
        self.schedule = str(value("schedule"))
        self.hyper = {name: float(value(name)) for name in self._hyper_names}
        self.stopped = bool(value("stopped"))
        self.sync_mode = str(value("sync_mode"))
        self.bucket_bytes = int(value("bucket_bytes"))
        self.compression = str(value("compression"))
        self.view_version = self._engine.view_version

    def _emit(
        self, kind: str, what: str, old: Any = None, new: Any = None, **more: Any
    ) -> None:
        if self._on_event is not None:
            values = {"old": plain(what, old), "new": plain(what, new)}
            self._on_event(event(self.step, self.view_version, kind, what, **values, **more))
