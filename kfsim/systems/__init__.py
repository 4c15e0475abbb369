"""Systems under test: how gradients get from backward to averaged, one file each."""

from collections.abc import Mapping
from typing import Any

from kfcore.errors import UsageError
from kfsim.fields import read
from kfsim.systems.base import Exchange, StepWork, System
from kfsim.systems.ddp import Ddp
from kfsim.systems.horovod import Horovod
from kfsim.systems.ideal import Ideal
from kfsim.systems.kf import Kf
from kfsim.systems.parameter_server import ParameterServer
from kfsim.systems.priority import Priority
from kfsim.systems.wfbp import Bsp, MgWfbp, Wfbp

__all__ = [
    "Bsp",
    "Ddp",
    "Exchange",
    "Horovod",
    "Ideal",
    "Kf",
    "MgWfbp",
    "ParameterServer",
    "Priority",
    "StepWork",
    "System",
    "Wfbp",
    "read_system",
]

_KINDS: dict[str, type[Any]] = {
    "kf": Kf,
    "horovod": Horovod,
    "ideal": Ideal,
    "ddp": Ddp,
    "bsp": Bsp,
    "wfbp": Wfbp,
    "mg_wfbp": MgWfbp,
    "parameter_server": ParameterServer,
    "priority": Priority,
}


def read_system(table: Any, where: str) -> System:
    """Makes the system that a scenario's ``[system]`` table describes.

    Args:
        table: Parsed TOML with ``kind`` and that kind's own keys.
        where: File and table, for messages.

    Returns:
        The system.

    Raises:
        UsageError: an unknown kind, or a key against its rule.
    """
    if not isinstance(table, Mapping):
        raise UsageError(f"{where}: must be a table, got {table!r}")
    kind = table.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise UsageError(f"{where}: kind must be one of {', '.join(_KINDS)}, got {kind!r}")
    rest = {key: value for key, value in table.items() if key != "kind"}
    system: System = read(_KINDS[kind], rest, where)
    return system
