"""What is simulated: a TOML file as frozen, checked values. No clock, no randomness.

Every key has its unit in its name and its rule beside it; ``docs/simulator.md`` lists them.
"""

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfcore.errors import UsageError
from kfcore.faults import FaultPlan, parse_faults
from kfsim.cluster import Cluster
from kfsim.computing import Straggler, Workload, check_fits
from kfsim.fields import field, read
from kfsim.replayed import read_times
from kfsim.systems import System, read_system
from kfsim.workload import load_model

__all__ = [
    "Capacity",
    "Cluster",
    "Interference",
    "NoiseLaw",
    "ResizeEvent",
    "Run",
    "Scenario",
    "Straggler",
    "TaskSource",
    "Workload",
    "load",
    "parse",
]


@dataclass(frozen=True)
class Run:
    """How long, and from which seed."""

    name: str = field("", doc="what this scenario shows")
    steps: int = field(20, doc="training steps", at_least=1)
    warmup_steps: int = field(0, doc="steps left out of the summary", at_least=0)
    seed: int = field(0, doc="all random draws follow from it", at_least=0)
    repeats: int = field(
        1, doc="independent repetitions, each with draws of its own", at_least=1
    )
    precision: float = field(
        0.0,
        doc="no further repetition once the throughput's 95 % half-width is below this share "
        "of its mean (of three or more); 0: all of them",
        at_least=0,
        below=1,
    )


@dataclass(frozen=True)
class NoiseLaw:
    """Gradient norms without gradients: a noise scale that follows training progress."""

    epochs: tuple[float, ...] = field(doc="positions, increasing", unit="epochs", at_least=0)
    noise_scale: tuple[float, ...] = field(
        doc="tr(Sigma) / |G|^2 at each position; log-linear between", unit="samples", above=0
    )
    grad_sq_norm: float = field(1.0, doc="|G|^2 of the true gradient", above=0)
    spread_sigma: float = field(
        0.0, doc="sigma of the lognormal factor on each measured norm", at_least=0, at_most=10
    )

    def __post_init__(self) -> None:
        if len(self.epochs) != len(self.noise_scale) or not self.epochs:
            raise UsageError(
                "noise: epochs and noise_scale must be as many and not empty, got "
                f"{len(self.epochs)} and {len(self.noise_scale)}"
            )
        if any(b <= a for a, b in zip(self.epochs, self.epochs[1:], strict=False)):
            raise UsageError(f"noise: epochs must increase, got {list(self.epochs)}")


@dataclass(frozen=True)
class TaskSource:
    """A real model that the simulated workers train."""

    factory: str = field(doc="FILE.py:NAME of what makes a kfcore.task.Task")
    arguments: dict[str, Any] = field({}, doc="keyword arguments for it")  # noqa: RUF009 - copied per object
    seed: int = field(0, doc="of the order of samples, as in Job.batches", at_least=0)


@dataclass(frozen=True)
class Interference:
    """Greedy connections of somebody else on one host's network card."""

    host: int = field(doc="whose card", at_least=0)
    flows: int = field(doc="connections at once", at_least=1)
    direction: str = field("in", doc="which way", choices=("in", "out", "both"))
    start_step: int = field(1, doc="first disturbed step", at_least=1)
    stop_step: int | None = field(None, doc="first step without it", at_least=1)


@dataclass(frozen=True)
class Capacity:
    """A host's card that has less, or more, than its rate for a while."""

    host: int = field(doc="whose card", at_least=0)
    share: float = field(doc="times its rate, both ways", above=0)
    start_step: int = field(1, doc="first step", at_least=1)
    stop_step: int | None = field(None, doc="first step that is normal again", at_least=1)


@dataclass(frozen=True)
class ResizeEvent:
    """A change of the number of workers that the cluster imposes."""

    step: int = field(doc="after which step", at_least=1)
    workers: int = field(doc="from then on", at_least=1)


@dataclass(frozen=True)
class ResizeCost:
    """What a change of the number of workers costs all of them."""

    join_s: float = field(
        0.0,
        doc="start of a worker and state transfer; beside training with a fault plan",
        unit="s",
        at_least=0,
    )
    leave_s: float = field(0.0, doc="barrier and new plan", unit="s", at_least=0)
    state_s: float = field(
        0.0,
        doc="pause of all when a worker is taken in, with a fault plan",
        unit="s",
        at_least=0,
    )
    detect_s: float = field(
        0.005, doc="from a worker's death until all know", unit="s", at_least=0
    )
    reopen_s: float = field(
        0.005, doc="from then until the next view is open", unit="s", at_least=0
    )
    heartbeat_s: float = field(
        3.0, doc="a worker stopped for twice as long is given up", unit="s", above=0
    )


@dataclass(frozen=True)
class Scenario:
    """One checked scenario file."""

    path: str
    run: Run
    cluster: Cluster
    workload: Workload
    system: System
    policies: tuple[str, ...] = ()
    noise: NoiseLaw | None = None
    task: TaskSource | None = None
    interference: tuple[Interference, ...] = ()
    capacity: tuple[Capacity, ...] = ()
    events: tuple[ResizeEvent, ...] = ()
    resize: ResizeCost = ResizeCost()
    faults: FaultPlan = FaultPlan()  # noqa: RUF009 - immutable
    raw: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    @property
    def world_size(self) -> int:
        """Workers at the start."""
        return self.cluster.hosts * self.cluster.ranks_per_host

    def with_values(self, values: Mapping[str, Any]) -> "Scenario":
        """The same scenario with some keys replaced, checked again.

        Args:
            values: By dotted key, e.g. ``{"cluster.hosts": 64}``.

        Returns:
            A new scenario.

        Raises:
            UsageError: a key that does not exist, or a value against its rule.
        """
        raw = _copy(self.raw)
        for dotted, value in values.items():
            *tables, key = dotted.split(".")
            table = raw
            for name in tables:
                table = table.setdefault(name, {})
                if not isinstance(table, dict):
                    raise UsageError(f"{self.path}: {dotted}: {name!r} is not a table")
            table[key] = value
        return parse(raw, self.path)


_SECTIONS = {
    "run": Run,
    "cluster": Cluster,
    "workload": Workload,
    "noise": NoiseLaw,
    "task": TaskSource,
    "resize": ResizeCost,
}
_LISTS = {"interference": Interference, "capacity": Capacity, "events": ResizeEvent}
_REQUIRED = ("cluster", "workload", "system")


def load(path: str | Path) -> Scenario:
    """Reads a scenario file. ``extends = "other.toml"`` takes another file's keys as defaults.

    Args:
        path: TOML file.

    Returns:
        The checked scenario.

    Raises:
        UsageError: the file cannot be read, is not TOML, or breaks a rule; the text names file,
            key and rule.
    """
    return parse(_read_toml(Path(path), ()), str(path))


def parse(raw: Mapping[str, Any], path: str = "scenario") -> Scenario:
    """Checks an already parsed scenario.

    Args:
        raw: Tables as TOML gives them.
        path: Name for messages.

    Returns:
        The checked scenario.

    Raises:
        UsageError: as `load`.
    """
    known = {*_SECTIONS, *_LISTS, "system", "policies", "source", "fault"}
    for key in raw:
        if key not in known:
            raise UsageError(
                f"{path}: unknown table {key!r}; there are: {', '.join(sorted(known))}"
            )
    for key in _REQUIRED:
        if key not in raw:
            raise UsageError(f"{path}: table [{key}] is required")
    values: dict[str, Any] = {"path": path, "raw": _copy(raw)}
    values["run"] = read(Run, raw.get("run", {}), f"{path}: run")
    for key, cls in _SECTIONS.items():
        if key in raw:
            values[key] = read(cls, raw[key], f"{path}: {key}")
    for key, item_cls in _LISTS.items():
        items = raw.get(key, [])
        if not isinstance(items, list):
            raise UsageError(f"{path}: {key} must be a list of tables ([[{key}]])")
        values[key] = tuple(
            read(item_cls, item, f"{path}: {key}[{place}]") for place, item in enumerate(items)
        )
    values["faults"] = FaultPlan(parse_faults(raw.get("fault", []), f"{path}: fault"), path)
    values["system"] = read_system(raw["system"], f"{path}: system")
    policies = raw.get("policies", [])
    if not isinstance(policies, list) or not all(isinstance(item, str) for item in policies):
        raise UsageError(f"{path}: policies must be a list of FILE.py:CLASS, got {policies!r}")
    values["policies"] = tuple(policies)
    scenario = Scenario(**values)
    _check_together(scenario)
    return scenario


def _check_together(scenario: Scenario) -> None:
    """Rules that span tables."""
    path, world_size = scenario.path, scenario.world_size
    try:
        load_model(scenario.workload.model)
    except UsageError as error:
        raise UsageError(f"{path}: workload: {error}") from error
    for place, slow in enumerate(scenario.workload.stragglers):
        if slow.rank >= world_size:
            raise UsageError(
                f"{path}: workload: stragglers[{place}]: rank must be < {world_size} "
                f"(hosts * ranks_per_host), got {slow.rank}"
            )
    try:
        _check_computing(scenario)
    except UsageError as error:
        raise UsageError(f"{path}: workload: {error}") from error
    for place, change in enumerate(scenario.capacity):
        if change.host >= scenario.cluster.hosts:
            raise UsageError(
                f"{path}: capacity[{place}]: host must be < {scenario.cluster.hosts} "
                f"(cluster.hosts), got {change.host}"
            )
    for place, other in enumerate(scenario.interference):
        if other.host >= scenario.cluster.hosts:
            raise UsageError(
                f"{path}: interference[{place}]: host must be < {scenario.cluster.hosts} "
                f"(cluster.hosts), got {other.host}"
            )
    if scenario.noise is not None and scenario.task is not None:
        raise UsageError(
            f"{path}: give noise or task, not both: each decides the gradient norms"
        )
    if scenario.run.warmup_steps >= scenario.run.steps:
        raise UsageError(
            f"{path}: run: warmup_steps must be < steps = {scenario.run.steps}, "
            f"got {scenario.run.warmup_steps}"
        )


def _check_computing(scenario: Scenario) -> None:
    workload = scenario.workload
    check_fits(workload, scenario.world_size, scenario.cluster.ranks_per_host)
    if not workload.times:
        return
    table = read_times(workload.times, scenario.path, workload.times_are)
    if len(table) < scenario.run.steps:
        raise UsageError(
            f"times: {workload.times} has {len(table)} steps, run.steps is {scenario.run.steps}"
        )
    if table.shape[1] < scenario.world_size:
        raise UsageError(
            f"times: {workload.times} has {table.shape[1]} ranks, the job starts with "
            f"{scenario.world_size}"
        )


def _read_toml(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    if "\0" in str(path):
        raise UsageError(f"{path!r}: a file name cannot hold a zero byte")
    if path.resolve() in seen:
        raise UsageError(f"{path}: extends itself")
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # also: nested too deep, a number too long
        raise UsageError(f"{path}: not TOML: {error}") from error
    base = raw.pop("extends", None)
    if base is None:
        return raw
    if not isinstance(base, str):
        raise UsageError(f"{path}: extends must be a file name, got {base!r}")
    return _merge(_read_toml(path.parent / base, (*seen, path.resolve())), raw)


def _merge(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(base)
    for key, value in over.items():
        old = out.get(key)
        out[key] = (
            _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
        )
    return out


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value
