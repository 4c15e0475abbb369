"""A simulator of training clusters that runs the schedules, engine and policies of kfcore.

Names are loaded when they are first used, so that a program may name the simulator before it
pays for it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kfsim.result import Result
    from kfsim.scenario import Scenario, load
    from kfsim.simulation import simulate

__all__ = ["Result", "Scenario", "load", "simulate"]

# Where a name lives.
_PLACES = {
    "Result": "kfsim.result",
    "Scenario": "kfsim.scenario",
    "load": "kfsim.scenario",
    "simulate": "kfsim.simulation",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'kfsim' has no attribute {name!r}")
    value = getattr(import_module(_PLACES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
