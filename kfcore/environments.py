"""Environments of other launchers, as fields of `kfcore.config.Config`. Pure.

torchrun and Kubeflow's PyTorchJob, Slurm (``srun``), Open MPI, MPICH and its kin. Each function
gets the variables and returns {} where they are not its launcher's.
"""

from collections.abc import Mapping
from typing import Any
from zlib import crc32

from kfcore.errors import UsageError
from kfcore.nodelist import expand_counts, expand_nodelist

__all__ = ["adopt", "integer"]

_MAX_PORT = 65535
# Where a job's store listens that was given no port: below the usual range for outgoing
# connections (32768-60999), so that the system does not hand the port to somebody by chance.
_FIRST_PORT, _PORTS = 20000, 12000

Fields = dict[str, Any]


def adopt(variables: Mapping[str, str]) -> Fields:
    """Find out which launcher started this process.

    Args:
        variables: The process environment.

    Returns:
        Fields of `Config`; {} for a process started by hand. First match wins: torchrun,
        PyTorchJob, ``srun``, Open MPI, MPICH.

    Raises:
        UsageError: A variable is malformed, or says too little to meet the other workers.
    """
    for read in (_torchrun, _pytorchjob, _slurm, _open_mpi, _mpich):
        fields = read(variables)
        if fields:
            return fields
    return {}


def integer(variables: Mapping[str, str], name: str) -> int:
    """A variable's value as a whole number.

    Args:
        variables: The process environment.
        name: A variable that is set.

    Returns:
        The number.

    Raises:
        UsageError: It is none.
    """
    text = variables[name]
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{name} must be an integer, got {text!r}") from None


def _store(host: str, port: int, rank: int) -> Fields:
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return {"store_address": address, "hosts_store": rank == 0}


def _beside_master(variables: Mapping[str, str], rank: int, prefix: str = "") -> Fields:
    """The store beside torch's own, which has MASTER_PORT; {} when no address is given."""
    host, name = variables.get(f"{prefix}MASTER_ADDR"), f"{prefix}MASTER_PORT"
    if not host or not variables.get(name):
        return {}
    port = integer(variables, name) + 1
    if not 1 < port <= _MAX_PORT:
        raise UsageError(f"{name} must be in [1, {_MAX_PORT - 1}], got {port - 1}")
    return _store(host, port, rank)


def _place(
    variables: Mapping[str, str], rank: str, size: str, local: str, local_size: str
) -> Fields:
    fields: Fields = {
        "rank": integer(variables, rank),
        "world_size": integer(variables, size),
    }
    fields["local_rank"] = integer(variables, local) if local in variables else fields["rank"]
    if local_size in variables:
        fields["local_world_size"] = integer(variables, local_size)
    return fields


def _torchrun(variables: Mapping[str, str]) -> Fields:
    """torchrun, and whoever sets its variables (names: ``torchrun --help``, torch 2.13)."""
    if "RANK" not in variables or "WORLD_SIZE" not in variables:
        return {}
    fields = _place(variables, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    if variables.get("TORCHELASTIC_RUN_ID"):
        fields["job_id"] = variables["TORCHELASTIC_RUN_ID"]
    if fields["world_size"] > 1:
        fields.update(_beside_master(variables, fields["rank"]))
    return fields


def _pytorchjob(variables: Mapping[str, str]) -> Fields:
    """One process a pod, started without torchrun: PET_* are torchrun's options."""
    if "PET_NNODES" not in variables or "PET_NODE_RANK" not in variables:
        return {}
    per_pod = variables.get("PET_NPROC_PER_NODE") or "1"
    if per_pod not in ("1", "auto"):
        raise UsageError(
            f"PET_NPROC_PER_NODE is {per_pod}, but this process was started alone in its pod; "
            "start it with torchrun, or ask for one process a pod"
        )
    if not variables["PET_NNODES"].isdecimal():
        raise UsageError(
            f"PET_NNODES must be one number here, got {variables['PET_NNODES']!r}; "
            "a range is for torchrun, which picks the number"
        )
    rank, world_size = integer(variables, "PET_NODE_RANK"), integer(variables, "PET_NNODES")
    fields: Fields = {"rank": rank, "world_size": world_size}
    fields.update(local_rank=0, local_world_size=1)
    if world_size > 1:
        fields.update(_beside_master(variables, rank, "PET_"))
        if "store_address" not in fields and variables.get("PET_RDZV_ENDPOINT"):
            host, _, port = variables["PET_RDZV_ENDPOINT"].rpartition(":")
            fields.update(_beside_master({"MASTER_ADDR": host, "MASTER_PORT": port}, rank))
        _must_meet(fields, "PET_MASTER_ADDR and PET_MASTER_PORT")
    return fields


def _slurm(variables: Mapping[str, str]) -> Fields:
    """A task of ``srun``. A batch script's own processes are not: they run once, alone."""
    if "SLURM_PROCID" not in variables or "SLURM_STEP_ID" not in variables:
        return {}
    size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in variables else "SLURM_NTASKS"
    if size not in variables:
        return {}
    fields = _place(variables, "SLURM_PROCID", size, "SLURM_LOCALID", "")
    job = f"{variables.get('SLURM_JOB_ID', '')}.{variables['SLURM_STEP_ID']}"
    fields["job_id"] = f"slurm-{job}"
    if fields["world_size"] == 1:
        return fields
    counts = variables.get("SLURM_STEP_TASKS_PER_NODE", "")
    if counts and "SLURM_NODEID" in variables:
        per_node, node = expand_counts(counts), integer(variables, "SLURM_NODEID")
        if 0 <= node < len(per_node):
            fields["local_world_size"] = per_node[node]
    given = _beside_master(variables, fields["rank"])
    if given:
        return {**fields, **given}
    names = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_JOB_NODELIST", "")
    nodes = expand_nodelist(names)
    if nodes:
        reserved = variables.get("SLURM_STEP_RESV_PORTS", "").split(",")[0].split("-")[0]
        port = int(reserved) if reserved.isdecimal() else _job_port(job)
        fields.update(_store(nodes[0], port, fields["rank"]))
    _must_meet(fields, "SLURM_STEP_NODELIST, or MASTER_ADDR and MASTER_PORT")
    return fields


def _open_mpi(variables: Mapping[str, str]) -> Fields:
    if "OMPI_COMM_WORLD_RANK" not in variables or "OMPI_COMM_WORLD_SIZE" not in variables:
        return {}
    of = "OMPI_COMM_WORLD_"
    fields = _place(variables, f"{of}RANK", f"{of}SIZE", f"{of}LOCAL_RANK", f"{of}LOCAL_SIZE")
    job = variables.get("PMIX_NAMESPACE") or variables.get("OMPI_MCA_ess_base_jobid", "")
    return _mpi(fields, variables, job, "mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500")


def _mpich(variables: Mapping[str, str]) -> Fields:
    """MPICH, Intel MPI and others that speak PMI."""
    if "PMI_RANK" not in variables or "PMI_SIZE" not in variables:
        return {}
    fields = _place(variables, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    if fields["world_size"] > 1 and variables.get("PMI_FD", "").isdecimal():
        fields["store_address"] = f"pmi:{variables['PMI_FD']}"
        fields["hosts_store"] = fields["rank"] == 0
    return _mpi(fields, variables, "", "mpiexec -env MASTER_ADDR HOST -env MASTER_PORT 29500")


def _mpi(fields: Fields, variables: Mapping[str, str], job: str, option: str) -> Fields:
    if job:
        fields["job_id"] = f"mpi-{job}"
    if fields["world_size"] == 1:
        return fields
    fields.update(_beside_master(variables, fields["rank"]))
    # All on one host and the job has a name: rank 0 leaves a note with its address.
    on_one_host = fields.get("local_world_size") == fields["world_size"]
    if "store_address" not in fields and on_one_host and job:
        fields.update(store_address=f"note:{fields['job_id']}", hosts_store=fields["rank"] == 0)
    _must_meet(fields, f"MASTER_ADDR and MASTER_PORT ({option})")
    return fields


def _job_port(job: str) -> int:
    """A port that every worker of a job computes alike."""
    return _FIRST_PORT + crc32(job.encode()) % _PORTS


def _must_meet(fields: Fields, wanted: str) -> None:
    if "store_address" not in fields:
        raise UsageError(
            f"{fields['world_size']} workers were started, but nothing says where they meet: "
            f"set {wanted}"
        )
