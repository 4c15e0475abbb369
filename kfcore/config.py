"""What one worker process is told about its job. The only reader of the environment.

Precedence: explicit argument > ``KF_*`` (set by ``kf run``) > another launcher's variables
(`kfcore.environments`) > one process on its own. A variable that is set but malformed is an
error, never silently a default.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kfcore.environments import adopt, integer
from kfcore.errors import UsageError

__all__ = [
    "POLICY_SEPARATOR",
    "Config",
    "adopt_environment",
    "child_environment",
    "environment_elsewhere",
    "environment_with",
]

# Between the entries of KF_POLICIES; a path may hold ":" and ",", hardly ever ";".
POLICY_SEPARATOR = ";"
DEFAULT_TIMEOUT_S = 60.0
_PATHS = ("PATH", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH")


@dataclass(frozen=True)
class Config:
    """One worker's place in its job and how it reaches the others.

    Attributes:
        rank: this worker, in [0, world_size). ``KF_RANK``.
        world_size: number of workers at the start. ``KF_WORLD_SIZE``.
        local_rank: this worker among those of its host, from 0. ``KF_LOCAL_RANK``.
        store_address: ``host:port`` (IPv6: ``[host]:port``) where the job's workers meet;
            ``etcd://host:port/job`` on etcd; ``note:NAME`` or ``pmi:FD`` where rank 0 chooses
            it and tells the others (`kfcore.store.meeting`); None for a single process.
            ``KF_STORE``.
        hosts_store: True when this worker has to start the store at store_address itself, as
            no launcher did: rank 0 under torchrun and others. Never read from ``KF_*``.
        job_id: tells this job's connections from another's. ``KF_JOB_ID``.
        job_secret: text that proves membership; empty = no proof asked. ``KF_JOB_SECRET``.
        timeout_s: default deadline of a blocking operation, seconds, > 0. ``KF_TIMEOUT_S``.
        policies: ``FILE:CLASS`` of policies added from outside. ``KF_POLICIES``, separated by
            ``;``.
        interface: network interface to advertise, by name; None = the one that routes to the
            store. ``KF_INTERFACE``.
        log_dir: folder for per-rank files, or None. ``KF_LOG_DIR``.
        simd: vector instructions of the reductions, ``portable``, ``avx2``, ``avx512``; None:
            the best that this machine has. A matter of speed only. ``KF_SIMD``.
        faults: file with a plan of what goes wrong (`kfcore.faults`), or None. ``KF_FAULTS``.
        record: jobs log what policies saw too, for ``kf policy replay``. ``KF_RECORD=1``.
        member_id: this worker's id for its life, chosen by the launcher; None: chosen by the
            worker. ``KF_MEMBER_ID``.
        local_world_size: workers of this host at the start, >= 1; None: not known.
            ``KF_LOCAL_WORLD_SIZE``.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    store_address: str | None = None
    hosts_store: bool = False
    job_id: str = "local"
    job_secret: str = ""
    timeout_s: float = DEFAULT_TIMEOUT_S
    policies: tuple[str, ...] = ()
    interface: str | None = None
    log_dir: str | None = None
    simd: str | None = None
    local_world_size: int | None = None
    faults: str | None = None
    member_id: str | None = None
    record: bool = False

    def __post_init__(self) -> None:
        """Refuse a place that cannot exist."""
        if self.world_size < 1:
            raise UsageError(f"world_size must be >= 1, got {self.world_size}")
        if not 0 <= self.rank < self.world_size:
            raise UsageError(f"rank must be in [0, {self.world_size}), got {self.rank}")
        if self.local_rank < 0:
            raise UsageError(f"local_rank must be >= 0, got {self.local_rank}")
        if self.local_world_size is not None and self.local_world_size < 1:
            raise UsageError(f"local_world_size must be >= 1, got {self.local_world_size}")
        if not 0 < self.timeout_s < float("inf"):
            raise UsageError(f"timeout_s must be finite and > 0, got {self.timeout_s}")
        if self.world_size > 1 and self.store_address is None:
            raise UsageError(
                f"world_size {self.world_size} needs a store where the workers meet; "
                "KF_STORE is not set (start the job with 'kf run' or torchrun)"
            )

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None, **explicit: Any) -> "Config":
        """Read the configuration of this process.

        Args:
            env: variables to read; the process environment when None.
            **explicit: fields given by the caller, which win over any variable.

        Returns:
            The validated configuration.

        Raises:
            UsageError: a variable is malformed or out of range, or a field is unknown.
        """
        variables = os.environ if env is None else env
        unknown = sorted(set(explicit) - set(cls.__dataclass_fields__))
        if unknown:
            raise UsageError(f"unknown configuration field {unknown[0]!r}")
        fields = adopt(variables) if "KF_RANK" not in variables else {}
        fields.update(_from_kf(variables))
        fields.update(explicit)
        return cls(**fields)

    @staticmethod
    def knows_launcher() -> bool:
        """Whether ``kf run`` started this process, and no launcher below it another one."""
        return "KF_RANK" in os.environ and "MASTER_ADDR" not in os.environ

    def with_rank(self, rank: int, local_rank: int | None = None) -> "Config":
        """The same job as seen by another rank; local_rank defaults to rank."""
        return replace(self, rank=rank, local_rank=rank if local_rank is None else local_rank)

    def to_env(self) -> dict[str, str]:
        """Write the configuration as variables from which `from_env` reads it back.

        Returns:
            The ``KF_*`` variables, without those that are empty.

        Raises:
            UsageError: a policy entry holds the separator ``;``.
        """
        for policy in self.policies:
            if POLICY_SEPARATOR in policy:
                raise UsageError(f"policy {policy!r} must not contain {POLICY_SEPARATOR!r}")
        values = {
            "KF_RANK": str(self.rank),
            "KF_WORLD_SIZE": str(self.world_size),
            "KF_LOCAL_RANK": str(self.local_rank),
            "KF_LOCAL_WORLD_SIZE": self.local_world_size and str(self.local_world_size),
            "KF_STORE": self.store_address,
            "KF_JOB_ID": self.job_id,
            "KF_JOB_SECRET": self.job_secret,
            "KF_TIMEOUT_S": repr(self.timeout_s),
            "KF_POLICIES": POLICY_SEPARATOR.join(self.policies),
            "KF_INTERFACE": self.interface,
            "KF_LOG_DIR": self.log_dir,
            "KF_SIMD": self.simd,
            "KF_FAULTS": self.faults,
            "KF_MEMBER_ID": self.member_id,
            "KF_RECORD": "1" if self.record else None,
        }
        return {name: value for name, value in values.items() if value}


def child_environment(
    config: Config, defaults: Mapping[str, str], wins: Mapping[str, str]
) -> dict[str, str]:
    """Build the environment of a worker that this process starts.

    Args:
        config: the worker's configuration; variables of an outer job are not passed on, but
            for ``KF_SIMD``, which is about the machine.
        defaults: variables set unless the environment has them already.
        wins: variables set whatever the environment has.

    Returns:
        The whole environment.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name[:3] != "KF_" or name == "KF_SIMD"
    }
    return {**defaults, **inherited, **config.to_env(), **wins}


def environment_elsewhere(
    config: Config, names: Iterable[str], wins: Mapping[str, str]
) -> dict[str, str]:
    """Build what a worker on another host has set beside that host's own environment.

    Args:
        config: the worker's configuration.
        names: variables of this process to hand over as they are.
        wins: variables set whatever else is.

    Returns:
        The variables: those that find programs and modules, those named, and ``KF_*``.
    """
    wanted = {name: os.environ[name] for name in (*_PATHS, *names) if name in os.environ}
    return {**wanted, **config.to_env(), **wins}


def adopt_environment(variables: Mapping[str, str]) -> None:
    """Change this process's environment: in a worker that another system started.

    Args:
        variables: Values by name.
    """
    os.environ.update(variables)


def environment_with(variables: Mapping[str, str]) -> dict[str, str]:
    """Build the environment of a program that is not a worker of this job.

    Args:
        variables: added to what this process has, or replacing it.

    Returns:
        The whole environment.
    """
    return {**os.environ, **variables}


def _from_kf(variables: Mapping[str, str]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, field in (
        ("KF_RANK", "rank"),
        ("KF_WORLD_SIZE", "world_size"),
        ("KF_LOCAL_RANK", "local_rank"),
        ("KF_LOCAL_WORLD_SIZE", "local_world_size"),
    ):
        if name in variables:
            fields[field] = integer(variables, name)
    if "rank" in fields:
        fields.setdefault("local_rank", fields["rank"])
    for name, field in (
        ("KF_STORE", "store_address"),
        ("KF_JOB_ID", "job_id"),
        ("KF_JOB_SECRET", "job_secret"),
        ("KF_INTERFACE", "interface"),
        ("KF_LOG_DIR", "log_dir"),
        ("KF_SIMD", "simd"),
        ("KF_FAULTS", "faults"),
        ("KF_MEMBER_ID", "member_id"),
    ):
        if variables.get(name):
            fields[field] = variables[name]
    if variables.get("KF_RECORD"):
        if variables["KF_RECORD"] not in ("0", "1"):
            raise UsageError(f"KF_RECORD must be 0 or 1, got {variables['KF_RECORD']!r}")
        fields["record"] = variables["KF_RECORD"] == "1"
    if "KF_TIMEOUT_S" in variables:
        text = variables["KF_TIMEOUT_S"]
        try:
            fields["timeout_s"] = float(text)
        except ValueError:
            raise UsageError(f"KF_TIMEOUT_S must be seconds, got {text!r}") from None
    if variables.get("KF_POLICIES"):
        entries = variables["KF_POLICIES"].split(POLICY_SEPARATOR)
        fields["policies"] = tuple(entry.strip() for entry in entries if entry.strip())
    return fields
