"""Real jobs on hosts made of network namespaces (`tools/hosts.py`), for experiments."""

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from kfcore.config import POLICY_SEPARATOR, environment_with
from kfcore.errors import UsageError

__all__ = ["job_environment", "load_hosts", "why_not"]

TOOL = Path(__file__).resolve().parents[2] / "tools" / "hosts.py"
STORE_PORT = 29_400


def load_hosts() -> ModuleType:
    """The module ``tools/hosts.py``.

    Raises:
        UsageError: it is not there (an installed package has no tools).
    """
    spec = importlib.util.spec_from_file_location("_kf_tools_hosts", TOOL)
    if spec is None or spec.loader is None or not TOOL.is_file():
        raise UsageError(f"this experiment needs {TOOL.name}: run it from a source tree")
    if spec.name not in sys.modules:
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    return sys.modules[spec.name]


def why_not() -> str | None:
    """Why hosts cannot be made here, in words; None when they can."""
    if not TOOL.is_file():
        return "tools/hosts.py is only in a source tree"
    reason: str | None = load_hosts().why_not()
    return reason


def job_environment(
    rank: int, world_size: int, root_address: str, policies: Sequence[str] = ()
) -> dict[str, str]:
    """Environment of one rank on a host of its own, as torchrun would set it.

    Args:
        rank: in [0, world_size).
        world_size: number of ranks.
        root_address: of the host of rank 0, which keeps the store.
        policies: to add, as for ``kf run --policy``.

    Returns:
        The whole environment.
    """
    variables = {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": root_address,
        "MASTER_PORT": str(STORE_PORT),
        "TORCHELASTIC_RUN_ID": "experiment",
        "OMP_NUM_THREADS": "1",
    }
    if policies:
        variables["KF_POLICIES"] = POLICY_SEPARATOR.join(policies)
    return environment_with(variables)
