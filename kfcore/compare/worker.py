"""One rank of one contender in ``kf bench --against``. Runs under the contender's own Python.

It imports NumPy and its back end and nothing else, so that it works in an environment without
this package. It connects to the controller, then obeys one JSON command a line:
``{"case", "count", "iterations", "warmup"}`` is answered by ``{"times_s": [...]}``; waiting for
a command blocks in the kernel, so a contender that is not measured uses no CPU.

    python worker.py BACKEND SOCKET TOKEN
"""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Buffer = Any  # a float32 array
PR_SET_PDEATHSIG = 1

# Parameters of torchvision's ResNet-50, forward order: 161 tensors, 25,557,032 elements.
# Source: He et al., "Deep residual learning for image recognition", CVPR 2016, table 1.
RESNET50_BLOCKS = ((64, 3), (128, 4), (256, 6), (512, 3))


def resnet50_sizes() -> list[int]:
    """Element counts of ResNet-50's gradients, in the order in which backward makes them."""
    sizes = [3 * 64 * 49, 64, 64]
    inputs = 64
    for width, blocks in RESNET50_BLOCKS:
        for block in range(blocks):
            sizes += [inputs * width, width, width, 9 * width * width, width, width]
            sizes += [4 * width * width, 4 * width, 4 * width]
            if block == 0:
                sizes += [inputs * 4 * width, 4 * width, 4 * width]
            inputs = 4 * width
    return [*sizes, inputs * 1000, 1000][::-1]


class Backend(ABC):
    """What the worker asks of a system; opening it joins the job."""

    rank: int
    world_size: int

    def allocate(self, count: int) -> Buffer:
        """Memory for ``count`` float32 elements, as a user of the system would get it."""
        return np.ones(count, np.float32)

    @abstractmethod
    def all_reduce(self, buffer: Buffer) -> None:
        """Sum over all ranks, in place."""

    def all_reduce_many(self, buffers: Sequence[Buffer]) -> None:
        """Sum several buffers over all ranks, in place, in the system's best way."""
        for buffer in buffers:
            self.all_reduce(buffer)

    @abstractmethod
    def barrier(self) -> None:
        """Return when all ranks have called it."""


class Kf(Backend):
    """This package, with memory of the caller's own."""

    def __init__(self) -> None:
        import kfcore

        self.session = kfcore.init(schedule="auto")
        self.rank, self.world_size = self.session.rank, self.session.world_size

    def all_reduce(self, buffer: Buffer) -> None:
        self.session.all_reduce(buffer)

    def all_reduce_many(self, buffers: Sequence[Buffer]) -> None:
        self.session.grouped_all_reduce(buffers)

    def barrier(self) -> None:
        self.session.barrier()


class KfRegistered(Kf):
    """This package, with memory that the peers can read."""

    def allocate(self, count: int) -> Buffer:
        import kfcore

        buffer = kfcore.empty(count, np.float32)
        buffer.fill(1)
        return buffer


class Gloo(Backend):
    """torch.distributed over Gloo."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        self.torch, self.dist = torch, dist
        dist.init_process_group("gloo")
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

    def _tensor(self, buffer: Buffer) -> Any:
        return self.torch.from_numpy(buffer)

    def all_reduce(self, buffer: Buffer) -> None:
        self.dist.all_reduce(self._tensor(buffer))

    def all_reduce_many(self, buffers: Sequence[Buffer]) -> None:
        for work in [self.dist.all_reduce(self._tensor(b), async_op=True) for b in buffers]:
            work.wait()

    def barrier(self) -> None:
        self.dist.barrier()


HOROVOD_SERVER = """
import ctypes, os, sys, time
ctypes.CDLL(None).prctl(1, 9)  # ends with its rank
from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousServer
note, hosts, size = sys.argv[1:]
server = RendezvousServer()
port = server.start()
server.init(get_host_assignments(parse_hosts(hosts), int(size)))
with open(note + ".new", "w") as file:
    file.write(str(port))
os.rename(note + ".new", note)
time.sleep(86400)
"""


class Horovod(Backend):
    """Horovod's torch binding; grouped calls fuse."""

    def __init__(self) -> None:
        import horovod.torch as hvd
        import torch

        torch.set_num_threads(1)
        self.torch, self.hvd = torch, hvd
        if "KF_BENCH_HOROVOD_HOSTS" in os.environ:
            self._meet(os.environ["KF_BENCH_HOROVOD_HOSTS"])
        hvd.init()
        self.rank, self.world_size = hvd.rank(), hvd.size()

    def _meet(self, hosts: str) -> None:
        """Does what horovodrun does, which reaches other hosts by ssh only."""
        note = sys.argv[2] + ".port"
        if os.environ["HOROVOD_RANK"] == "0":
            # a process of its own: this one is busy inside hvd.init() when the others ask
            words = [sys.executable, "-c", HOROVOD_SERVER, note, hosts]
            subprocess.Popen([*words, os.environ["HOROVOD_SIZE"]])
        while not os.path.exists(note):
            time.sleep(0.02)
        with open(note) as file:
            os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = file.read()

    def all_reduce(self, buffer: Buffer) -> None:
        self.hvd.allreduce_(self.torch.from_numpy(buffer), op=self.hvd.Sum, name="b")

    def all_reduce_many(self, buffers: Sequence[Buffer]) -> None:
        tensors = [self.torch.from_numpy(b) for b in buffers]
        self.hvd.grouped_allreduce_(tensors, op=self.hvd.Sum, name="g")

    def barrier(self) -> None:
        self.hvd.barrier()


class Mpi(Backend):
    """mpi4py over whichever MPI its environment holds; many tensors go one by one."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self.mpi = MPI
        self.comm = MPI.COMM_WORLD
        self.rank, self.world_size = self.comm.Get_rank(), self.comm.Get_size()

    def all_reduce(self, buffer: Buffer) -> None:
        self.comm.Allreduce(self.mpi.IN_PLACE, buffer, op=self.mpi.SUM)

    def barrier(self) -> None:
        self.comm.Barrier()


BACKENDS: dict[str, type[Backend]] = {
    "kf": Kf,
    "kf-registered": KfRegistered,
    "gloo": Gloo,
    "horovod": Horovod,
    "openmpi": Mpi,
    "mpich": Mpi,
}


def verify(backend: Backend, buffers: Sequence[Buffer], run: Callable[[], None]) -> str | None:
    """Checks one operation against its closed form and says which element is wrong."""
    n = backend.world_size
    ramps = [np.arange(b.size, dtype=np.float32) % 1024 for b in buffers]
    for buffer, ramp in zip(buffers, ramps, strict=True):
        np.add(ramp * n, backend.rank, out=buffer)
    run()
    for buffer, ramp in zip(buffers, ramps, strict=True):
        expected = ramp * n * n + n * (n - 1) / 2
        if not np.array_equal(buffer, expected):
            wrong = int(np.argmax(buffer != expected))
            return f"element {wrong} is {buffer[wrong]}, not {expected[wrong]}"
    return None


class Case:
    """The buffers of one case and how to reduce them once."""

    def __init__(self, backend: Backend, case: str, count: int) -> None:
        self.name, self.count = case, count
        sizes = resnet50_sizes() if case == "resnet50" else [count]
        self.buffers = [backend.allocate(size) for size in sizes]
        self.run: Callable[[], None] = lambda: backend.all_reduce(self.buffers[0])
        if case == "resnet50":
            self.run = lambda: backend.all_reduce_many(self.buffers)
        self.fault = verify(backend, self.buffers, self.run)


def measure(backend: Backend, case: Case, command: dict[str, Any]) -> list[float]:
    """Times operations on this rank, all ranks starting each one together."""
    times_s = []
    for i in range(-command["warmup"], command["iterations"]):
        for buffer in case.buffers:
            buffer.fill(1)
        backend.barrier()
        start = time.perf_counter()
        case.run()
        if i >= 0:
            times_s.append(time.perf_counter() - start)
    return times_s


def main() -> None:
    """Serves the controller until it closes the connection."""
    name, path, token = sys.argv[1:]
    # stopped (SIGSTOP) when its parent dies, it could not see the connection close
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    backend = BACKENDS[name]()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        stream = connection.makefile("rw")

        def answer(**fields: Any) -> None:
            stream.write(json.dumps(fields) + "\n")
            stream.flush()

        hello = {"rank": backend.rank, "world_size": backend.world_size, "pid": os.getpid()}
        answer(token=token, **hello)
        case: Case | None = None
        for line in stream:
            command = json.loads(line)
            if case is None or (case.name, case.count) != (command["case"], command["count"]):
                case = Case(backend, command["case"], command["count"])
            if case.fault is not None:
                answer(fault=case.fault)
            else:
                answer(times_s=measure(backend, case, command))


if __name__ == "__main__":
    main()
