"""One training job in simulated time: the same Controller as on real processes."""

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import simpy
from numpy.typing import NDArray

from kfcore.compression import parse as parse_compression
from kfcore.configuration import DEFAULT_BUCKET_BYTES
from kfcore.controller import Controller, LocalStep
from kfcore.elastic_controller import ElasticController
from kfcore.errors import UsageError
from kfcore.events import Change, event
from kfcore.monitors import Undefined
from kfcore.policy.actions import Resize
from kfcore.policy.base import Policy
from kfcore.sync_mode import SyncMode
from kfsim.computing import Computing
from kfsim.draws import RankNormals
from kfsim.members import SimMembers
from kfsim.network import Links
from kfsim.norms import Gradients
from kfsim.recall import Recall
from kfsim.replayed import read_times
from kfsim.scenario import Scenario
from kfsim.systems import Exchange, StepWork
from kfsim.systems.kf import Kf
from kfsim.timeline import Timeline
from kfsim.workload import load_model

__all__ = ["SimJob", "seconds"]

Times = NDArray[np.float64]
Row = dict[str, Any]

_NS = 1_000_000_000
_LONGEST_S = 9e9  # nanoseconds fit 63 bits; 285 years


def seconds(time_ns: int) -> float:
    """Simulated nanoseconds as seconds, correctly rounded."""
    return time_ns / _NS


class SimJob:
    """Runs a scenario's job on a SimPy clock that counts whole nanoseconds.

    Each rank has a time of its own; the clock stands at the latest. A step of all ranks is a
    few vector operations, and each collective is one replay.

    Args:
        env: The clock.
        scenario: What to run.
        gradients: The statistical side.
        policies: Deciders, as on real processes.
        repeat: Number of the repetition.
        record: Also give the events that ``kf policy replay`` needs.
        on_row: Receives a row for each step.
        on_event: Receives each event of the controller, with ``time_s``.
        timeline: Receives each step's times.
        compute_s: [steps, columns] compute times to replay, instead of the scenario's.
    """

    def __init__(
        self,
        env: simpy.Environment,
        scenario: Scenario,
        gradients: Gradients,
        *,
        policies: Sequence[Policy] = (),
        repeat: int = 0,
        record: bool = False,
        on_row: Callable[[Row], None],
        on_event: Callable[[Row], None],
        timeline: Timeline | None = None,
        compute_s: Times | None = None,
    ) -> None:
        self.env, self.scenario, self._gradients = env, scenario, gradients
        self._repeat, self._on_row, self._on_event = repeat, on_row, on_event
        self._timeline = timeline
        self._model = load_model(scenario.workload.model)
        self._links = Links(scenario.cluster)
        self._recall = Recall(scenario.system)
        self._jitter = RankNormals(scenario.run.seed, "compute jitter", repeat)
        elastic = bool(scenario.faults.faults)
        self.controller = (ElasticController if elastic else Controller)(
            world_size=scenario.world_size,
            local_batch=scenario.workload.local_batch,
            learning_rate=scenario.workload.learning_rate,
            schedule=scenario.system.first_schedule(),
            policies=policies,
            on_event=self._stamp,
            fixed=_fixed(scenario),
            record=record,
        )
        self._seats: SimMembers | None = None
        if isinstance(self.controller, ElasticController):
            self._seats = SimMembers(
                scenario.world_size, scenario.faults, scenario.resize, self._stamp
            )
            self.controller.member = cast("Any", self._seats)
            self.controller.fix({})
        self._members = list(range(scenario.world_size))  # who holds each rank
        workload = scenario.workload
        if compute_s is not None:
            workload = replace(workload, times_are="seconds")
        self._computing = Computing(
            workload,
            scenario.cluster.ranks_per_host,
            _replay(scenario) if compute_s is None else compute_s,
        )
        self._micro = scenario.workload.accumulation
        self._rank_s = np.zeros(scenario.world_size)  # when each rank is free
        self._free_s = self._rank_s  # when each rank was free before the step
        self._previous = LocalStep()
        self._cost = 0.0

    @property
    def links(self) -> Links:
        """The network that it runs on."""
        return self._links

    @property
    def recall(self) -> Recall:
        """What it remembers of its steps."""
        return self._recall

    def run(self) -> Generator[simpy.Event, None, None]:
        """The job as a SimPy process."""
        job = self.controller
        job.train_begin()
        for step in range(1, self.scenario.run.steps + 1):
            if job.stopped:
                break
            yield from self._change_members()
            pause_s = self._suffer_faults(step)
            began_s, self._rank_s = self._rank_s, self._rank_s + pause_s
            norms = self._gradients.step(job)
            self._disturb(step)
            work = self._work(step, norms.samples)
            exchange = self._recall.exchange(work, self._links)
            yield self._until(exchange.finish_s)
            local = LocalStep(
                step_s=self._previous.step_s,
                compute_s=self._previous.compute_s,
                comm_s=self._previous.comm_s,
                comm_bytes=self._previous.comm_bytes,
                loss=norms.loss,
                grad_sq_norm=norms.grad_sq_norm,
                samples=norms.samples,
            )
            sums, maxes = job.fill(local)
            if self._timeline is not None:
                self._timeline.step(step, began_s, work.end_s, exchange.finish_s)
            settings = self._settings()
            mean_sq = math.nan if work.mode.averages_models else norms.mean_sq_norm
            outcome = job.step_done(sums.sum(axis=0), maxes.max(axis=0), grad_sq_norm=mean_sq)
            self._free_s, self._rank_s = self._rank_s, exchange.finish_s
            self._measure(began_s, work, exchange)
            self._write_row(step, settings, began_s, work, exchange, float(norms.samples.sum()))
            ended = self._gradients.apply(job, skipped=outcome.skipped)
            yield from self._change(step, outcome.installed)
            if ended and not job.stopped:
                job.epoch_done()
        job.train_end()

    def _change_members(self) -> Generator[simpy.Event, None, None]:
        """The boundary of a job with a fault plan: who leaves, and who is taken in."""
        if self._seats is None or not isinstance(self.controller, ElasticController):
            return
        version = self.controller.view_version
        pause_s = self._seats.boundary(float(self._rank_s.max()), self.controller)
        if self.controller.view_version != version:
            self._cost += self._price(len(self._rank_s), pause_s)
            self._seat(pause_s)
            yield self._until(self._rank_s)

    def _suffer_faults(self, step: int) -> float:
        """Let happen what the plan has for a step; seconds that it costs the survivors."""
        if self._seats is None or not isinstance(self.controller, ElasticController):
            return 0.0
        version = self.controller.view_version
        now_s = float(self._rank_s.max())
        pause_s = self._seats.enter_step(step, now_s, self.controller)
        if self.controller.view_version != version:
            self._seat(0.0)
        return pause_s

    def _seat(self, pause_s: float) -> None:
        """Go on with the members of the view under way, a pause later."""
        if self._seats is not None:
            ids = self._seats.view.members
            start_s = float(self._rank_s.max()) + pause_s
            self._rank_s = np.full(len(ids), start_s)
            self._members = [int(member.rpartition("-")[2]) for member in ids]
            self._links.resize(len(ids))
            self._previous = LocalStep()

    def _settings(self) -> Row:
        """What was in force during the step, before its boundary changes it."""
        job = self.controller
        return {
            "epoch": job.epoch,
            "world_size": job.world_size,
            "local_batch": job.local_batch,
            "global_batch": job.global_batch,
            "learning_rate": job.learning_rate,
            "schedule": job.schedule,
        }

    def _work(self, step: int, samples: Times) -> StepWork:
        workload, job = self.scenario.workload, self.controller
        sigma = workload.jitter_sigma
        factor = np.exp(sigma * self._jitter.at(step - 1, job.world_size) - sigma**2 / 2)
        micro = self._micro_batches(step, samples)
        compute_s = self._computing.seconds(step, samples, self._members, micro) * factor
        begin_s = self._rank_s
        if self._seats is not None:
            begin_s = begin_s + np.array(self._seats.delays_s(step))
        self._checked(float((begin_s + compute_s).max()))
        return StepWork(
            model=self._model,
            bytes_per_element=workload.bytes_per_element,
            begin_s=begin_s,
            compute_s=compute_s,
            forward_fraction=self._computing.forward_fraction(micro),
            control_bytes=8 * (job.sum_len + job.max_len),
            schedule=job.schedule,
            step=step,
            mode=SyncMode.parse(job.sync_mode),
            bucket_bytes=None if job.bucket_bytes == DEFAULT_BUCKET_BYTES else job.bucket_bytes,
            compression=parse_compression(job.compression),
        )

    def _micro_batches(self, step: int, samples: Times) -> int:
        """How many each rank adds up in this step; a change of it is an event."""
        try:
            count = self._computing.micro_batches(samples, self._members)
        except UsageError as error:
            self._stamp(self._memory_event(step, "out_of_memory", reason=str(error)))
            raise UsageError(f"{self.scenario.path}: step {step}: {error}") from error
        if count != self._micro:
            reason = f"{int(samples.max())} samples a rank do not fit into memory at once"
            if count < self._micro:
                reason = "the batch needs fewer"
            self._stamp(
                self._memory_event(
                    step, "micro_batches", old=self._micro, new=count, reason=reason
                )
            )
            self._micro = count
        return count

    def _memory_event(self, step: int, what: str, **more: Any) -> Row:
        return event(step - 1, self.controller.view_version, "memory", what, **more)

    def _disturb(self, step: int) -> None:
        self._links.throttle(
            tuple(
                (change.host, change.share)
                for change in self.scenario.capacity
                if _during(step, change.start_step, change.stop_step)
            )
        )
        self._links.disturb(
            tuple(
                (other.host, other.direction, other.flows)
                for other in self.scenario.interference
                if _during(step, other.start_step, other.stop_step)
            )
        )

    def _until(self, times_s: Times) -> simpy.Event:
        """The event that brings the clock to the latest of some times."""
        latest_s = self._checked(float(times_s.max()))
        latest_ns = round(latest_s * _NS)
        return self.env.timeout(max(0, latest_ns - int(self.env.now)))

    def _checked(self, time_s: float) -> float:
        if not time_s < _LONGEST_S:  # nor NaN
            raise UsageError(
                f"{self.scenario.path}: step {self.controller.step + 1} would end after "
                f"{time_s:g} s; simulated time must stay below {_LONGEST_S:g} s"
            )
        return time_s

    def _measure(self, began_s: Times, work: StepWork, exchange: Exchange) -> None:
        """What the ranks report with the next step's control block."""
        self._previous = LocalStep(
            step_s=exchange.finish_s - began_s,
            compute_s=work.compute_s + (work.begin_s - self._free_s),
            comm_s=exchange.comm_s,
            comm_bytes=np.full(len(began_s), float(exchange.comm_bytes)),
        )

    def _write_row(
        self,
        step: int,
        settings: Row,
        began_s: Times,
        work: StepWork,
        exchange: Exchange,
        samples: float,
    ) -> None:
        step_s = float(exchange.finish_s.max() - began_s.max())
        self._cost += self._price(int(settings["world_size"]), step_s)
        metrics = self.controller.metrics
        self._on_row(
            {
                "repeat": self._repeat,
                "step": step,
                "time_s": seconds(int(self.env.now)),
                **settings,
                "step_s": step_s,
                "compute_s": float(work.compute_s.mean()),
                "comm_s": float(exchange.comm_s.mean()),
                "exposed_s": float((exchange.finish_s - work.end_s).mean()),
                "samples": int(samples),
                "throughput_samples_per_s": samples / step_s,
                "bytes_sent_mean": float(exchange.bytes_sent.mean()),
                "bytes_sent_max": int(exchange.bytes_sent.max()),
                "collectives": exchange.collectives,
                "cost": self._cost,
                "loss": _number(metrics.get("loss")),
                "noise_scale": _number(metrics.get("gns")),
            }
        )

    def _price(self, workers: int, time_s: float) -> float:
        cluster = self.scenario.cluster
        hosts = -(-workers // cluster.ranks_per_host)
        return hosts * cluster.price_per_host_hour * time_s / 3600

    def _change(
        self, step: int, installed: tuple[Change, ...]
    ) -> Generator[simpy.Event, None, None]:
        """Carries out what the boundary installed, and what the cluster imposes."""
        job = self.controller
        old = len(self._rank_s)
        changed = {change.what: change.new for change in installed}
        if "excluded" in changed:
            del self._members[int(str(changed["excluded"]).split()[1])]
        joined = range(max(self._members, default=-1) + 1, 2**31)
        fresh = job.world_size - len(self._members)
        self._members = [*self._members[: job.world_size], *joined[: max(0, fresh)]]
        if "checkpoint" in changed and self.scenario.workload.checkpoint_s > 0:
            pause_s = self.scenario.workload.checkpoint_s
            self._cost += self._price(old, pause_s)
            self._rank_s = self._rank_s + pause_s
            yield self._until(self._rank_s)
        if job.world_size != old:
            costs = self.scenario.resize
            pause_s = costs.join_s if job.world_size > old else costs.leave_s
            self._cost += self._price(max(old, job.world_size), pause_s)
            start_s = float(self._rank_s.max()) + pause_s
            self._rank_s = np.full(job.world_size, start_s)
            self._links.resize(job.world_size)
            self._previous = LocalStep()
            yield self._until(self._rank_s)
        for imposed in self.scenario.events:
            if imposed.step == step and imposed.workers != job.world_size:
                job.propose(Resize(imposed.workers, reason="the scenario's event"))

    def _stamp(self, what: Row) -> None:
        self._on_event({"time_s": seconds(int(self.env.now)), "repeat": self._repeat, **what})


def _replay(scenario: Scenario) -> Times | None:
    """Times by step and rank that the scenario replays."""
    workload = scenario.workload
    if not workload.times:
        return None
    return read_times(workload.times, scenario.path, workload.times_are)


def _fixed(scenario: Scenario) -> dict[str, str]:
    """Settings that cannot change in this scenario, and why."""
    fixed: dict[str, str] = {}
    if not isinstance(scenario.system, Kf):
        rule = f"the simulated system {type(scenario.system).__name__} has nothing of the kind"
        fixed = dict.fromkeys(("sync_mode", "bucket_bytes", "compression"), rule)
    elif scenario.task is not None:
        fixed["sync_mode"] = "one replica of the [task] stands for all ranks, so all are equal"
    return fixed


def _during(step: int, start: int, stop: int | None) -> bool:
    return step >= start and (stop is None or step < stop)


def _number(value: Any) -> float:
    return math.nan if value is None or isinstance(value, Undefined) else float(value)
