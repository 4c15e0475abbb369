"""How each contender is started, where it is looked for, and how to get it."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kfcore.compare.places import Place

__all__ = ["CONTENDERS", "Contender", "Start", "find_python", "missing_reason", "starts"]

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
# stopped while it is not its turn, it would take its 30 s of silence for a dead peer
_PATIENT = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "3600", "HOROVOD_STALL_CHECK_DISABLE": "1"}
_MPI = "tools/install_mpi.sh"
_ALL = (
    Contender("kf", "kf", "kf", "kfcore", None, "pip install ."),
    Contender("kf-registered", "kf-registered", "kf", "kfcore", None, "pip install ."),
    Contender("gloo", "gloo", "env", "torch.distributed", None, "pip install torch"),
    Contender(
        "horovod",
        "horovod",
        "horovodrun",
        "horovod.torch",
        ".venv-horovod",
        _HOROVOD,
        _PATIENT,
    ),
    Contender(
        "horovod-tuned",
        "horovod",
        "horovodrun",
        "horovod.torch",
        ".venv-horovod",
        _HOROVOD,
        {"HOROVOD_CYCLE_TIME": "0.1", **_PATIENT},
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


@dataclass(frozen=True)
class Start:
    """A program to start.

    Attributes:
        host: On which host of the place.
        words: The command.
        variables: Environment variables to add.
    """

    host: int
    words: list[str]
    variables: dict[str, str]


def _free_port() -> int:
    # torch.distributed wants a port before it runs; a collision shows as an error
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def starts(
    contender: Contender,
    python: str,
    place: Place,
    ranks_per_host: int,
    controller: tuple[str, str],
) -> list[Start]:
    """The programs to start for a contender.

    Args:
        contender: One of `CONTENDERS`.
        python: Its interpreter.
        place: Where its ranks run; ranks of a host in a row.
        ranks_per_host: Ranks on each host.
        controller: Socket and token for the worker.

    Returns:
        One a rank, or one launcher for all, on host 0.
    """
    worker = [python, str(WORKER), contender.backend, *controller]
    variables = {"OMP_NUM_THREADS": "1", **contender.variables}
    folder = Path(python).parent
    world_size = place.count * ranks_per_host
    if contender.launcher == "mpiexec":
        run = [str(folder / "mpiexec"), "-n", str(world_size)]
        given = mpi_options(contender, place, ranks_per_host, Path(controller[0]).parent)
        return [Start(0, [*run, *given, *worker], variables | _MPI_ROOT | _with_path(folder))]
    if place.count > 1 or contender.launcher == "env":
        return _ranks(contender, place, ranks_per_host, worker, variables)
    if contender.launcher == "kf":
        run = [python, "-m", "kfcore", "run", "-n", str(world_size), "--no-prefix", "--"]
        return [Start(0, [*run, *worker], variables)]
    run = [str(folder / "horovodrun"), "-np", str(world_size), "--gloo"]
    hosts = ["-H", f"localhost:{world_size}"]
    return [Start(0, [*run, *hosts, *worker], variables | _with_path(folder))]


_MPI_ROOT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


def mpi_options(
    contender: Contender, place: Place, ranks_per_host: int, folder: Path
) -> list[str]:
    """Options of mpiexec for several hosts, and a program with which it reaches them.

    Args:
        contender: One of the MPIs.
        place: The hosts.
        ranks_per_host: Ranks on each.
        folder: Where the program may be written.

    Returns:
        Words for the command line.
    """
    openmpi = contender.backend == "openmpi"
    if place.count == 1:
        return (["--oversubscribe"] if openmpi else []) + list(contender.options)
    addresses = [place.address(host) for host in range(place.count)]
    cases = "".join(
        f"  {address}) space={place.namespace(host)}; name=kfhost{host};;\n"
        for host, address in enumerate(addresses)
    )
    agent = folder / "agent.sh"
    agent.write_text(
        "#!/bin/sh\n# stands in for ssh: options, a host, a command\n"
        'while [ "${1#-}" != "$1" ]; do shift; done\nhost=$1; shift\n'
        f"case $host in\n{cases}esac\n"
        'exec ip netns exec "$space" unshare --uts sh -c "hostname $name; $*"\n'
    )
    agent.chmod(0o755)
    if openmpi:
        slots = ",".join(f"{address}:{ranks_per_host}" for address in addresses)
        mapping = f"ppr:{ranks_per_host}:node:oversubscribe"
        reach = ["--prtemca", "plm_ssh_agent", str(agent)]
        return ["--host", slots, "--map-by", mapping, *reach]
    slots = ",".join(f"{address}:{ranks_per_host}" for address in addresses)
    return ["-hosts", slots, "-launcher", "ssh", "-launcher-exec", str(agent), "-iface", "eth0"]


def _ranks(
    contender: Contender,
    place: Place,
    ranks_per_host: int,
    worker: list[str],
    variables: dict[str, str],
) -> list[Start]:
    """A program a rank, which finds its place in the environment."""
    port = str(_free_port())
    size = place.count * ranks_per_host
    network = {"GLOO_SOCKET_IFNAME": place.interface} if place.interface else {}
    starts = []
    for rank in range(size):
        host, local = divmod(rank, ranks_per_host)
        names = {
            "RANK": rank,
            "LOCAL_RANK": local,
            "WORLD_SIZE": size,
            "LOCAL_WORLD_SIZE": ranks_per_host,
        }
        own = {name: str(value) for name, value in names.items()}
        own |= {"MASTER_ADDR": place.address(0), "MASTER_PORT": port}
        if contender.launcher == "horovodrun":
            own |= _horovod(place, rank, ranks_per_host)
        starts.append(Start(host, worker, variables | network | own))
    return starts


def _horovod(place: Place, rank: int, ranks_per_host: int) -> dict[str, str]:
    """What horovodrun would set, but for the port; worker.py starts the server it is of."""
    host, local = divmod(rank, ranks_per_host)
    slots = ",".join(f"{place.address(h)}:{ranks_per_host}" for h in range(place.count))
    return {
        "HOROVOD_HOSTNAME": place.address(host),
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(place.count * ranks_per_host),
        "HOROVOD_LOCAL_RANK": str(local),
        "HOROVOD_LOCAL_SIZE": str(ranks_per_host),
        "HOROVOD_CROSS_RANK": str(host),
        "HOROVOD_CROSS_SIZE": str(place.count),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": place.interface or "lo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": place.address(0),
        "KF_BENCH_HOROVOD_HOSTS": slots,
    }


def _with_path(folder: Path) -> dict[str, str]:
    return {"PATH": f"{folder}{os.pathsep}/usr/sbin{os.pathsep}/sbin{os.pathsep}{os.defpath}"}
