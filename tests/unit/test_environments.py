"""Launchers whose environment is adopted: their variables in, a configuration out."""

import os
import socket
import threading

import pytest

from kfcore.config import Config
from kfcore.errors import DeadlineError, TransportError, UsageError
from kfcore.store import StoreServer, connect_store
from kfcore.store.meeting import meet

SLURM = {
    "SLURM_JOB_ID": "123",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_NTASKS": "7",
    "SLURM_STEP_NODELIST": "tux[08-09]",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "prterun-h-77@1",
}
MPICH = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
POD = {
    "PET_NNODES": "3",
    "PET_NODE_RANK": "0",
    "PET_NPROC_PER_NODE": "1",
    "PET_MASTER_ADDR": "job-worker-0",
    "PET_MASTER_PORT": "23456",
}


def test_tasks_of_srun_meet_on_the_steps_first_node():
    config = Config.from_env(SLURM)
    assert (config.rank, config.world_size, config.local_rank) == (2, 3, 0)
    assert config.local_world_size == 1
    assert config.job_id == "slurm-123.0"
    host, _, port = config.store_address.rpartition(":")
    assert host == "tux08"
    assert 20000 <= int(port) < 32000
    assert not config.hosts_store
    first = Config.from_env({**SLURM, "SLURM_PROCID": "0", "SLURM_NODEID": "0"})
    assert first.hosts_store
    assert (first.store_address, first.local_world_size) == (config.store_address, 2)
    other = Config.from_env({**SLURM, "SLURM_STEP_ID": "1"})
    assert other.store_address != config.store_address
    reserved = Config.from_env({**SLURM, "SLURM_STEP_RESV_PORTS": "12001-12004"})
    assert reserved.store_address == "tux08:12001"
    given = Config.from_env({**SLURM, "MASTER_ADDR": "m", "MASTER_PORT": "5000"})
    assert given.store_address == "m:5001"


def test_a_batch_script_itself_is_one_process():
    batch = {k: v for k, v in SLURM.items() if "STEP" not in k}
    assert Config.from_env({**batch, "SLURM_PROCID": "0"}).world_size == 1


def test_open_mpi_on_one_host_meets_by_a_note_elsewhere_needs_an_address():
    config = Config.from_env(OPEN_MPI)
    assert (config.rank, config.local_rank, config.local_world_size) == (1, 1, 4)
    assert config.store_address == "note:mpi-prterun-h-77@1"
    assert not config.hosts_store
    spread = {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    with pytest.raises(UsageError, match=r"set MASTER_ADDR and MASTER_PORT \(mpirun -x"):
        Config.from_env(spread)
    config = Config.from_env({**spread, "MASTER_ADDR": "h", "MASTER_PORT": "29500"})
    assert config.store_address == "h:29501"


def test_mpich_meets_over_its_process_manager():
    config = Config.from_env({**MPICH, "PMI_FD": "9"})
    assert (config.rank, config.world_size, config.store_address) == (3, 4, "pmi:9")
    with pytest.raises(UsageError, match="MASTER_ADDR"):
        Config.from_env(MPICH)


def test_a_pod_without_torchrun_is_a_worker():
    config = Config.from_env(POD)
    assert (config.rank, config.world_size, config.local_world_size) == (0, 3, 1)
    assert (config.store_address, config.hosts_store) == ("job-worker-0:23457", True)
    elastic = {k: v for k, v in POD.items() if "MASTER" not in k}
    config = Config.from_env({**elastic, "PET_RDZV_ENDPOINT": "job-worker-0:29400"})
    assert config.store_address == "job-worker-0:29401"
    with pytest.raises(UsageError, match="set PET_MASTER_ADDR"):
        Config.from_env(elastic)
    with pytest.raises(UsageError, match="started alone in its pod"):
        Config.from_env({**POD, "PET_NPROC_PER_NODE": "4"})
    with pytest.raises(UsageError, match="PET_NNODES must be one number here, got '1:3'"):
        Config.from_env({**POD, "PET_NNODES": "1:3"})


def test_torchrun_wins_over_what_it_runs_in():
    torchrun = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    config = Config.from_env({**SLURM, **OPEN_MPI, **MPICH, **POD, **torchrun})
    assert (config.world_size, config.local_world_size) == (1, 1)


def workers_of(env, size):
    """Connect `size` workers, each from its own environment, in threads."""
    results: list = [None] * size

    def work(rank):
        store = connect_store(Config.from_env(env(rank)))
        store.set(f"r{rank}", "here")
        results[rank] = [store.get(f"r{other}", 60) for other in range(size)]
        store.close()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    return results


def test_workers_of_open_mpi_meet(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    env = {**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}

    def of(rank):
        return {**env, "OMPI_COMM_WORLD_RANK": str(rank)}

    assert workers_of(of, 3) == [["here"] * 3] * 3


def test_a_note_of_an_earlier_job_is_not_believed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    meet("note:job", "127.0.0.1:1", 1)
    assert meet("note:job", None, 1) == "127.0.0.1:1"
    (note,) = tmp_path.glob("kf-*/*.store")
    note.write_text(note.read_text().replace(f'"pid": {os.getpid()}', '"pid": 999999999'))
    with pytest.raises(DeadlineError, match="rank 0 left no note"):
        meet("note:job", None, 0.1)


class Manager:
    """What a process manager of MPICH says over its descriptors (PMI-1)."""

    def __init__(self, size):
        self.pairs = [socket.socketpair() for _ in range(size)]
        self.keys: dict[str, str] = {}
        self.barrier = threading.Barrier(size)
        self.threads = [
            threading.Thread(target=self.serve, args=(pair[1],), daemon=True)
            for pair in self.pairs
        ]
        for thread in self.threads:
            thread.start()

    def serve(self, sock):
        with sock, sock.makefile("rwb") as lines:
            for line in lines:
                lines.write(self.answer(line.decode().split()).encode() + b"\n")
                lines.flush()

    def answer(self, words):
        said = dict(word.split("=", 1) for word in words)
        if said["cmd"] == "put":
            self.keys[said["key"]] = said["value"]
            return "cmd=put_result rc=0 msg=success"
        if said["cmd"] == "barrier_in":
            self.barrier.wait(60)
            return "cmd=barrier_out"
        if said["cmd"] == "get":
            return f"cmd=get_result rc=0 value={self.keys[said['key']]}"
        return {
            "init": "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
            "get_my_kvsname": "cmd=my_kvsname kvsname=kvs_1",
            "finalize": "cmd=finalize_ack",
        }[said["cmd"]]


def test_workers_of_mpich_meet():
    manager = Manager(3)
    env = {**MPICH, "PMI_SIZE": "3", "MPI_LOCALNRANKS": "3"}

    def of(rank):
        return {**env, "PMI_RANK": str(rank), "PMI_FD": str(manager.pairs[rank][0].fileno())}

    assert workers_of(of, 3) == [["here"] * 3] * 3


def test_a_manager_that_hangs_up_is_an_error_not_a_hang():
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, pytest.raises(TransportError, match=r"PMI answered|hung up"):
        meet(f"pmi:{ours.fileno()}", None, 5)


def test_taken_port_names_its_owner():
    with StoreServer() as taken:
        port = int(taken.address.rpartition(":")[2])
        with pytest.raises(UsageError, match=rf"{port}: .*in use.*; process {os.getpid()} \("):
            StoreServer("127.0.0.1", port)
