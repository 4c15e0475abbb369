"""A fleet file: hosts, jobs, scheduler. Checked values, no randomness."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfcore.errors import UsageError
from kfsim.fields import field, read
from kfsim.fleet.schedulers import SCHEDULERS

__all__ = ["FleetConfig", "FleetJob", "FleetRun", "HostPool", "load_fleet", "parse_fleet"]


@dataclass(frozen=True)
class FleetRun:
    """How the fleet is run."""

    name: str = field("", doc="what this fleet shows")
    seed: int = field(0, doc="all random draws follow from it", at_least=0)
    scheduler: str = field("fifo", doc="who gets workers", choices=tuple(SCHEDULERS))
    interval_s: float = field(60.0, doc="the scheduler also runs this often", unit="s", above=0)
    horizon_h: float = field(
        1000.0, doc="the end; what happens at it still counts", unit="h", above=0, at_most=1e5
    )


@dataclass(frozen=True)
class HostPool:
    """The hosts."""

    count: int = field(0, doc="hosts that are up from the start", at_least=0, at_most=8192)
    slots: int = field(1, doc="workers on one host", at_least=1)
    trace: str = field("", doc="file of hosts coming and going (Bamboo CSV, SkyPilot JSON)")
    price_per_host_hour: float = field(0.0, doc="any currency", unit="1/h", at_least=0)
    prices: str = field("", doc="AWS spot price history, JSON; replaces price_per_host_hour")
    instance_type: str = field("", doc="in that history")
    zone: str = field("", doc="in that history; empty: its only one")
    mtbf_h: float | None = field(
        None, doc="mean time to a host's failure; absent: none fails", unit="h", above=0
    )
    failure_shape: float = field(
        1.0,
        doc="Weibull shape: 1 exponential, below 1 early failures, above 1 wear",
        above=0,
    )
    repair_h: float = field(1.0, doc="until a failed host is back", unit="h", above=0)
    start_median_s: float = field(0.0, doc="start-up of a worker, median", unit="s", at_least=0)
    start_sigma: float = field(
        0.0, doc="sigma of the lognormal start-up time", at_least=0, at_most=5
    )


@dataclass(frozen=True)
class FleetJob:
    """One training job."""

    name: str = field(doc="unique")
    samples: float = field(doc="useful samples until it is done", above=0)
    samples_per_s: float = field(doc="of one worker", above=0)
    arrival_s: float = field(0.0, doc="when it is submitted", unit="s", at_least=0)
    cancel_s: float | None = field(
        None, doc="when its owner gives up, unless done", unit="s", at_least=0
    )
    min_workers: int = field(1, doc="fewest it can run on", at_least=1)
    max_workers: int = field(1, doc="most it can use", at_least=1, at_most=8192)
    scaling_loss: float = field(
        0.0,
        doc="n workers do n / (1 + this * (n - 1)) times the work of one",
        at_least=0,
    )
    local_batch: int = field(32, doc="samples a worker and step", at_least=1)
    noise_scale: float | None = field(
        None,
        doc="phi: of a batch B only (phi + b) / (phi + B) is progress; absent: all",
        unit="samples",
        above=0,
    )
    checkpoint_s: float = field(
        0.0,
        doc="work lost at an interruption is what was done since the last multiple of this; 0: "
        "none is lost",
        unit="s",
        at_least=0,
    )

    def __post_init__(self) -> None:
        if self.min_workers > self.max_workers:
            raise UsageError(
                f"job {self.name}: min_workers must be <= max_workers = {self.max_workers}, "
                f"got {self.min_workers}"
            )

    def goodput(self, workers: int) -> float:
        """Useful samples per second.

        Args:
            workers: >= 1.

        Returns:
            Throughput times statistical efficiency (Pollux, OSDI 2021, equation 7, relative to
            one worker's batch).
        """
        rate = self.samples_per_s * workers / (1.0 + self.scaling_loss * (workers - 1))
        if self.noise_scale is None:
            return rate
        batch = self.local_batch
        return rate * (self.noise_scale + batch) / (self.noise_scale + batch * workers)


@dataclass(frozen=True)
class FleetConfig:
    """One checked fleet file."""

    path: str
    run: FleetRun
    hosts: HostPool
    jobs: tuple[FleetJob, ...]


def load_fleet(path: str | Path) -> FleetConfig:
    """Reads a fleet file.

    Args:
        path: TOML file.

    Returns:
        The checked fleet.

    Raises:
        UsageError: the file cannot be read or breaks a rule; the text names file, key and rule.
    """
    try:
        raw = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error
    return parse_fleet(raw, str(path))


def parse_fleet(raw: Mapping[str, Any], path: str = "fleet") -> FleetConfig:
    """Checks an already parsed fleet.

    Args:
        raw: Tables as TOML gives them: ``run``, ``hosts``, list ``jobs``.
        path: Name for messages.

    Returns:
        The checked fleet.

    Raises:
        UsageError: as `load_fleet`.
    """
    for key in raw:
        if key not in ("run", "hosts", "jobs", "source"):
            raise UsageError(f"{path}: unknown table {key!r}; there are: run, hosts, jobs")
    tables = raw.get("jobs", [])
    if not isinstance(tables, list) or not tables:
        raise UsageError(f"{path}: jobs must be a list of tables ([[jobs]]), at least one")
    jobs = tuple(
        read(FleetJob, table, f"{path}: jobs[{place}]") for place, table in enumerate(tables)
    )
    names = [job.name for job in jobs]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{path}: jobs: name {name!r} is given twice")
    hosts = read(HostPool, raw.get("hosts", {}), f"{path}: hosts")
    if (hosts.count > 0) == bool(hosts.trace):
        raise UsageError(f"{path}: hosts: give count or trace, one of them")
    run = read(FleetRun, raw.get("run", {}), f"{path}: run")
    return FleetConfig(path, run, hosts, jobs)
