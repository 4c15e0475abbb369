"""Who gets how many workers: pure functions of the waiting and running jobs.

``fifo``: in order of arrival, as many as a job wants; nobody is shrunk, and a job that does not
fit holds back those behind it. ``fair``: equal shares, within each job's bounds. ``goodput``:
each further worker goes where it raises the sum of relative goodputs most (Qiao et al.,
"Pollux", OSDI 2021, with speed-up over one worker in place of its genetic search).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kfcore.errors import UsageError

__all__ = ["SCHEDULERS", "JobView", "Scheduler", "find_scheduler"]


@dataclass(frozen=True)
class JobView:
    """What a scheduler sees of a job.

    Attributes:
        name: Of the job.
        workers: That it has now; 0: it waits.
        min_workers: Fewest it can run on.
        max_workers: Most it can use.
        goodput: Useful samples per second on n workers, for n in 1..max_workers.
    """

    name: str
    workers: int
    min_workers: int
    max_workers: int
    goodput: Callable[[int], float]


# jobs in order of arrival, slots in all -> workers by name; missing: 0
Scheduler = Callable[[Sequence[JobView], int], Mapping[str, int]]


def fifo(jobs: Sequence[JobView], slots: int) -> dict[str, int]:
    """First come, first served."""
    given = {job.name: min(job.workers, job.max_workers) for job in jobs if job.workers}
    free = slots - sum(given.values())
    for job in jobs:
        if job.name in given:
            continue
        count = min(job.max_workers, free)
        if count < job.min_workers:
            break
        given[job.name] = count
        free -= count
    return given


def _admit(jobs: Sequence[JobView], slots: int) -> tuple[dict[str, int], int]:
    """The least for as many as fit, in order of arrival."""
    given: dict[str, int] = {}
    for job in jobs:
        if job.min_workers <= slots:
            given[job.name] = job.min_workers
            slots -= job.min_workers
    return given, slots


def fair(jobs: Sequence[JobView], slots: int) -> dict[str, int]:
    """Equal shares."""
    given, free = _admit(jobs, slots)
    growing = [job for job in jobs if job.name in given]
    while free > 0:
        growing = [job for job in growing if given[job.name] < job.max_workers]
        if not growing:
            break
        smallest = min(growing, key=lambda job: given[job.name])  # the first of equals
        given[smallest.name] += 1
        free -= 1
    return given


def goodput(jobs: Sequence[JobView], slots: int) -> dict[str, int]:
    """Where a worker helps most."""
    given, free = _admit(jobs, slots)
    running = [job for job in jobs if job.name in given]
    while free > 0:
        best, gain = None, 0.0
        for job in running:
            n = given[job.name]
            if n >= job.max_workers:
                continue
            more = (job.goodput(n + 1) - job.goodput(n)) / job.goodput(1)
            if more > gain:
                best, gain = job.name, more
        if best is None:
            break
        given[best] += 1
        free -= 1
    return given


SCHEDULERS: dict[str, Scheduler] = {"fifo": fifo, "fair": fair, "goodput": goodput}


def find_scheduler(name: str) -> Scheduler:
    """A built-in scheduler.

    Args:
        name: One of `SCHEDULERS`.

    Returns:
        The scheduler.

    Raises:
        UsageError: there is no such scheduler.
    """
    if name not in SCHEDULERS:
        raise UsageError(f"scheduler must be one of {', '.join(SCHEDULERS)}, got {name!r}")
    return SCHEDULERS[name]
