"""Runs a fleet on a SimPy clock of whole nanoseconds: one process, no waiting claims to leak.

At one instant, jobs that are done end first, then hosts go, hosts come, owners cancel, jobs
arrive, and last the scheduler looks at what is left. Memory depends on the live jobs only: what
happened is handed to the callbacks.
"""

import heapq
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import simpy

from kfcore.errors import InternalError, UsageError
from kfsim.fleet.config import FleetConfig, FleetJob
from kfsim.fleet.schedulers import JobView, Scheduler, find_scheduler
from kfsim.fleet.state import Hosts, LiveJob
from kfsim.fleet.traces import PriceHistory, read_prices, read_trace

__all__ = ["FleetResult", "run_fleet"]

Row = dict[str, Any]
_NS = 1_000_000_000
_DOWN, _UP = 0, 1  # order at one instant


@dataclass(frozen=True)
class FleetResult:
    """Figures of a run.

    Attributes:
        summary: Jobs done and cancelled, mean and largest completion time (s), makespan (s),
            host-hours, worker-hours, utilisation, cost of all hosts.
        starved: Jobs that could not end, each with the reason.
    """

    summary: Row
    starved: dict[str, str]


def _ignore(_what: Row) -> None:
    pass


def run_fleet(
    config: FleetConfig,
    jobs: Iterable[FleetJob] | None = None,
    *,
    scheduler: Scheduler | None = None,
    on_event: Callable[[Row], None] = _ignore,
    on_row: Callable[[Row], None] = _ignore,
) -> FleetResult:
    """Runs a fleet until all jobs have ended, nothing can happen any more, or the horizon.

    Args:
        config: The fleet.
        jobs: Instead of the configured ones; in order of arrival, taken one by one.
        scheduler: Instead of the configured one.
        on_event: Receives each event, in time order.
        on_row: Receives a row for each job that ends.

    Returns:
        Summary, and the jobs that starved.

    Raises:
        UsageError: a trace is bad, jobs are not in order, or the scheduler breaks a rule.
    """
    ordered = sorted(config.jobs, key=lambda job: job.arrival_s) if jobs is None else jobs
    engine = _Engine(config, iter(ordered), scheduler, on_event, on_row)
    env = simpy.Environment(initial_time=0)
    env.process(engine.run(env))
    env.run()
    return engine.result()


class _Engine:
    def __init__(
        self,
        config: FleetConfig,
        jobs: Iterator[FleetJob],
        scheduler: Scheduler | None,
        on_event: Callable[[Row], None],
        on_row: Callable[[Row], None],
    ) -> None:
        self._config, self._jobs = config, jobs
        self._schedule = scheduler or find_scheduler(config.run.scheduler)
        self._on_event, self._on_row = on_event, on_row
        pool = config.hosts
        self._hosts = Hosts(pool, config.run.seed)
        self._prices = (
            read_prices(pool.prices, pool.instance_type, pool.zone)
            if pool.prices
            else PriceHistory([0.0], [pool.price_per_host_hour])
        )
        self._changes: list[tuple[int, int, int, str]] = []  # time, kind, serial, host
        self._serial = 0
        self._now = 0
        self._live: dict[str, LiveJob] = {}
        self._coming: FleetJob | None = None
        self._horizon_ns = round(config.run.horizon_h * 3600 * _NS)
        self._interval_ns = max(1, round(config.run.interval_s * _NS))
        self._sum: dict[str, float] = dict.fromkeys(
            ("done", "cancelled", "jct_s", "longest_s", "last_s", "host_ns", "busy_ns", "cost"),
            0.0,
        )
        self.scheduled = 0

    def run(self, env: simpy.Environment) -> Generator[simpy.Event, None, None]:
        """The whole fleet as one SimPy process."""
        for number in range(self._config.hosts.count):
            self._post(0, _UP, f"host{number}")
        if self._config.hosts.trace:
            for event in read_trace(self._config.hosts.trace):
                self._post(event.time_ns, _UP if event.up else _DOWN, event.host)
        self._next_job()
        while (at_ns := self._next_ns()) is not None and at_ns <= self._horizon_ns:
            yield env.timeout(at_ns - self._now)
            self._advance(at_ns)
            self._end_done()
            self._change_hosts()
            self._cancel()
            self._arrive()
            self._reschedule()

    def _post(self, time_ns: int, kind: int, host: str) -> None:
        self._serial += 1
        heapq.heappush(self._changes, (time_ns, kind, self._serial, host))

    def _next_job(self) -> None:
        before = self._coming
        self._coming = next(self._jobs, None)
        if before and self._coming and self._coming.arrival_s < before.arrival_s:
            raise UsageError(f"job {self._coming.name} arrives before job {before.name}")

    def _next_ns(self) -> int | None:
        """The next instant at which something happens; None: nothing ever will."""
        if not self._live and self._coming is None:
            return None
        times = [t for job in self._live.values() if (t := job.done_ns(self._now)) is not None]
        if times:  # something runs: the scheduler may look again
            times.append((self._now // self._interval_ns + 1) * self._interval_ns)
        times += [_ns(j.config.cancel_s) for j in self._live.values() if j.config.cancel_s]
        if self._changes:
            times.append(self._changes[0][0])
        if self._coming is not None:
            times.append(_ns(self._coming.arrival_s))
        return max(self._now, min(times)) if times else None

    def _advance(self, to_ns: int) -> None:
        if to_ns < self._now:
            raise InternalError(f"time would go back from {self._now} to {to_ns} ns")
        price = self._prices.cost(self._now / _NS, to_ns / _NS) if to_ns > self._now else 0.0
        slots = self._config.hosts.slots
        for job in self._live.values():
            job.advance(self._now, to_ns)
            job.cost += price * len(job.workers) / slots
            self._sum["busy_ns"] += len(job.workers) * (to_ns - self._now)
        self._sum["host_ns"] += len(self._hosts) * (to_ns - self._now)
        self._sum["cost"] += price * len(self._hosts)
        self._now = to_ns

    def _end_done(self) -> None:
        for job in list(self._live.values()):
            if job.done_ns(self._now) == self._now and job.ready_ns <= self._now:
                self._end(job, "done")

    def _end(self, job: LiveJob, how: str) -> None:
        config = job.config
        del self._live[config.name]
        self._hosts.give_back(job.workers)
        took_s = (self._now - _ns(config.arrival_s)) / _NS
        self._sum[how] += 1
        self._sum["last_s"] = self._now / _NS
        if how == "done":
            self._sum["jct_s"] += took_s
            self._sum["longest_s"] = max(self._sum["longest_s"], took_s)
        began = None if job.began_ns is None else job.began_ns / _NS
        self._say(how, job=config.name)
        self._on_row(
            {
                "job": config.name,
                "ended": how,
                "arrival_s": config.arrival_s,
                "began_s": began,
                "end_s": self._now / _NS,
                "completion_s": took_s,
                "worker_hours": job.worker_ns / _NS / 3600,
                "restarts": job.restarts,
                "cost": job.cost,
            }
        )

    def _change_hosts(self) -> None:
        while self._changes and self._changes[0][0] <= self._now:
            _, kind, _, host = heapq.heappop(self._changes)
            if kind == _UP and host not in self._hosts:
                self._hosts.up(host)
                self._say("host_up", host=host)
                fails_ns = self._hosts.fails_in_ns(host)
                if fails_ns is not None:
                    self._post(self._now + fails_ns, _DOWN, host)
                    repair_ns = _ns(self._config.hosts.repair_h * 3600)
                    self._post(self._now + fails_ns + repair_ns, _UP, host)
            elif kind == _DOWN and host in self._hosts:
                self._say("host_down", host=host)
                for job in self._live.values():
                    if host in job.workers:
                        self._interrupt(job, host)
                self._hosts.down(host)

    def _interrupt(self, job: LiveJob, host: str) -> None:
        """Takes a job off a host that goes; too few left: all its workers wait again."""
        lost = job.lose()
        kept = [other for other in job.workers if other != host]
        if len(kept) < job.config.min_workers:
            self._hosts.give_back(kept)
            kept = []
        job.workers = kept
        job.restarts += 1
        self._say("interrupted", job=job.config.name, host=host, workers=len(kept), lost=lost)

    def _cancel(self) -> None:
        for job in list(self._live.values()):
            at_s = job.config.cancel_s
            if at_s and _ns(at_s) <= self._now:
                self._end(job, "cancelled")

    def _arrive(self) -> None:
        while self._coming is not None and _ns(self._coming.arrival_s) <= self._now:
            if self._coming.name in self._live:
                raise UsageError(f"two live jobs are called {self._coming.name}")
            self._live[self._coming.name] = LiveJob(self._coming, self._coming.samples)
            self._say("arrived", job=self._coming.name)
            self._next_job()

    def _reschedule(self) -> None:
        self.scheduled += 1
        views = [
            JobView(
                name,
                len(job.workers),
                job.config.min_workers,
                job.config.max_workers,
                job.config.goodput,
            )
            for name, job in self._live.items()
        ]
        given = dict(self._schedule(views, self._hosts.slots)) if views else {}
        self._check(given)
        changed = [
            (job, given.get(name, 0))
            for name, job in self._live.items()
            if given.get(name, 0) != len(job.workers)
        ]
        for job, count in changed:  # first who gives
            if count < len(job.workers):
                self._hosts.give_back(job.workers[count:])
                job.workers = job.workers[:count]
                job.run_ns = 0
                job.restarts += 1
                self._say("resized", job=job.config.name, workers=count)
        for job, count in changed:
            if count > len(job.workers):
                self._grow(job, count)

    def _grow(self, job: LiveJob, count: int) -> None:
        more = count - len(job.workers)
        if job.began_ns is None:
            job.began_ns = self._now
        else:
            job.restarts += 1
        job.workers += self._hosts.take(more)
        job.ready_ns = self._now + self._hosts.start_ns(job, more)
        self._say("resized", job=job.config.name, workers=count)

    def _check(self, given: dict[str, int]) -> None:
        for name, count in given.items():
            if name not in self._live:
                raise UsageError(f"the scheduler gave workers to {name!r}, no live job")
            job = self._live[name].config
            if count != 0 and not job.min_workers <= count <= job.max_workers:
                raise UsageError(
                    f"the scheduler gave {name} {count} workers; must be 0 or in "
                    f"[{job.min_workers}, {job.max_workers}]"
                )
        if sum(given.values()) > self._hosts.slots:
            raise UsageError(
                f"the scheduler gave {sum(given.values())} workers, there are "
                f"{self._hosts.slots} slots"
            )

    def _say(self, kind: str, **what: Any) -> None:
        self._on_event({"time_s": self._now / _NS, "kind": kind, **what})

    def result(self) -> FleetResult:
        """The figures, once the process has ended."""
        total, slots = self._sum, self._hosts.slots
        starved = {
            name: f"waits for {job.config.min_workers} workers, {slots} slots are up"
            if not job.workers
            else f"still runs at the horizon, {job.left:.6g} samples to do"
            for name, job in self._live.items()
        }
        if self._coming is not None:
            starved[self._coming.name] = "arrives after the horizon"
        held = total["host_ns"] * self._config.hosts.slots
        return FleetResult(
            {
                "fleet": self._config.run.name or self._config.path,
                "done": int(total["done"]),
                "cancelled": int(total["cancelled"]),
                "mean_completion_s": total["jct_s"] / total["done"] if total["done"] else None,
                "longest_completion_s": total["longest_s"] if total["done"] else None,
                "makespan_s": total["last_s"],
                "host_hours": total["host_ns"] / _NS / 3600,
                "worker_hours": total["busy_ns"] / _NS / 3600,
                "utilisation": total["busy_ns"] / held if held else None,
                "cost": total["cost"],
                "scheduled": self.scheduled,
            },
            starved,
        )


def _ns(time_s: float) -> int:
    return round(time_s * _NS)
