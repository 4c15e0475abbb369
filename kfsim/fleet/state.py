"""What is true of hosts and jobs at one moment of a fleet's run."""

import math
import zlib
from dataclasses import dataclass, field

import numpy as np

from kfcore.errors import InternalError
from kfsim.draws import stream
from kfsim.fleet.config import FleetJob, HostPool

__all__ = ["Hosts", "LiveJob", "key_of"]

_NS = 1_000_000_000


def key_of(name: str) -> int:
    """A number for a name, so that its draws depend on nothing else."""
    return zlib.crc32(name.encode())


@dataclass
class LiveJob:
    """A job that has arrived and not ended.

    Attributes:
        config: As submitted.
        left: Useful samples to do.
        workers: The host of each worker; empty: it waits.
        ready_ns: When its workers have started.
        began_ns: When it first had workers, or None.
        worker_ns: Sum of its workers' time.
        cost: Its share of its hosts' price.
        restarts: Interruptions and changes of the number of workers.
        run_ns: Productive time since it last started, for checkpoints.
    """

    config: FleetJob
    left: float
    workers: list[str] = field(default_factory=list)
    ready_ns: int = 0
    began_ns: int | None = None
    worker_ns: int = 0
    cost: float = 0.0
    restarts: int = 0
    run_ns: int = 0

    def advance(self, begin_ns: int, end_ns: int) -> None:
        """Works from one time to another, once its workers have started."""
        self.worker_ns += len(self.workers) * (end_ns - begin_ns)
        busy_ns = end_ns - max(begin_ns, self.ready_ns)
        if self.workers and busy_ns > 0:
            self.run_ns += busy_ns
            self.left -= self.config.goodput(len(self.workers)) * busy_ns / _NS

    def done_ns(self, now_ns: int) -> int | None:
        """When it will be done as things are, rounded up to the nanosecond; None: it waits."""
        if not self.workers:
            return None
        need_ns = max(0.0, self.left) / self.config.goodput(len(self.workers)) * _NS
        return max(now_ns, self.ready_ns) + int(np.ceil(need_ns))

    def lose(self) -> float:
        """Forgets what was done since the last checkpoint.

        Returns:
            Samples lost.
        """
        every_ns = round(self.config.checkpoint_s * _NS)
        lost_ns = self.run_ns % every_ns if every_ns else 0
        lost = self.config.goodput(max(1, len(self.workers))) * lost_ns / _NS
        lost = min(lost, self.config.samples - self.left)
        self.left += lost
        self.run_ns = 0
        return lost


class Hosts:
    """Hosts that are up, and their free slots.

    Args:
        pool: The fleet's.
        seed: Of the run.
    """

    def __init__(self, pool: HostPool, seed: int) -> None:
        self._pool, self._seed = pool, seed
        self._free: dict[str, int] = {}  # in order of coming up
        self._lives: dict[str, int] = {}

    def __len__(self) -> int:
        """Hosts that are up."""
        return len(self._free)

    def __contains__(self, host: str) -> bool:
        """Whether it is up."""
        return host in self._free

    @property
    def slots(self) -> int:
        """Workers that all hosts together can hold."""
        return len(self._free) * self._pool.slots

    def up(self, host: str) -> None:
        """A host comes."""
        self._free[host] = self._pool.slots
        self._lives[host] = self._lives.get(host, 0) + 1

    def down(self, host: str) -> None:
        """A host goes; its jobs must have been told before."""
        del self._free[host]

    def fails_in_ns(self, host: str) -> int | None:
        """Time to the failure of a host that just came up; None: it does not fail."""
        pool = self._pool
        if pool.mtbf_h is None:
            return None
        draw = stream(self._seed, "host failure", key_of(host), self._lives[host])
        scale_h = pool.mtbf_h / math.gamma(1.0 + 1.0 / pool.failure_shape)
        return max(1, round(scale_h * float(draw.weibull(pool.failure_shape)) * 3600 * _NS))

    def start_ns(self, job: LiveJob, count: int) -> int:
        """How long the slowest of some new workers takes to start."""
        pool = self._pool
        if count == 0 or pool.start_median_s == 0:
            return 0
        draw = stream(self._seed, "start-up", key_of(job.config.name), job.restarts)
        factors = np.exp(pool.start_sigma * draw.standard_normal(count))
        return round(pool.start_median_s * float(factors.max()) * _NS)

    def take(self, count: int) -> list[str]:
        """Takes free slots, oldest hosts first.

        Args:
            count: How many.

        Returns:
            The host of each.

        Raises:
            InternalError: there are fewer.
        """
        taken: list[str] = []
        for host, free in self._free.items():
            used = min(free, count - len(taken))
            taken += [host] * used
            self._free[host] -= used
        if len(taken) < count:
            raise InternalError(f"{count} slots were promised, {len(taken)} are free")
        return taken

    def give_back(self, hosts: list[str]) -> None:
        """Frees slots."""
        for host in hosts:
            if host in self._free:
                self._free[host] += 1
                if self._free[host] > self._pool.slots:
                    raise InternalError(f"{host} has more free slots than slots")
