"""Monitors, policies and agreement for DistributedDataParallel over any back end.

Gradients go through whatever process group the model has (NCCL, gloo, kf); the engine, its
monitors and its policies stay ours. Norms are taken from buckets as they pass.
"""

import math
import time
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import torch
import torch._C._distributed_c10d as torch_c10d
import torch.distributed as dist

from kfcore.configuration import DEFAULT_BUCKET_BYTES
from kfcore.controller import LocalStep
from kfcore.errors import UsageError
from kfcore.job import Job
from kfcore.outcome import StepOutcome

__all__ = ["CommHook", "GroupSession", "comm_hook"]

_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


class GroupSession:
    """A process group of any back end in the part of a session that a `kfcore.Job` needs.

    Args:
        group: The group; None: the default one.
    """

    def __init__(self, group: Any = None) -> None:
        self.group = dist.group.WORLD if group is None else group
        self.rank = dist.get_rank(self.group)
        self.world_size = dist.get_world_size(self.group)
        self.schedule = "ring"  # what the back end really does is its own affair
        self.backend = dist.get_backend(self.group)
        on_gpu = self.backend == "nccl"
        self._device = torch.device("cuda" if on_gpu else "cpu")

    def grouped_all_reduce(
        self,
        arrays: Sequence[Any],
        op: str | Sequence[str],
        *,
        fusion_bytes: int = DEFAULT_BUCKET_BYTES,
    ) -> None:
        """All-reduce several NumPy arrays in place, each with its own op."""
        del fusion_bytes
        ops = [op] * len(arrays) if isinstance(op, str) else op
        for array, name in zip(arrays, ops, strict=True):
            tensor = torch.from_numpy(array).to(self._device)
            dist.all_reduce(tensor, _OPS[name], group=self.group)
            if self._device.type != "cpu":
                array[...] = tensor.cpu().numpy()

    def all_gather(self, array: Any) -> Any:
        """[world_size, ...], row = rank."""
        mine = torch.from_numpy(np.ascontiguousarray(array)).to(self._device)
        rows = [torch.empty_like(mine) for _ in range(self.world_size)]
        dist.all_gather(rows, mine, group=self.group)
        return torch.stack(rows).cpu().numpy()

    def set_schedule(self, spec: str) -> NoReturn:
        """Refuse: another library's schedule cannot be chosen."""
        raise UsageError(f"schedule {spec}: {self.backend} chooses its own")

    def all_to_all(self, rows: Any) -> NoReturn:
        """Refuse: only compression asks for it."""
        del rows
        raise UsageError(f"compression is not available over {self.backend}")

    def send(self, array: Any, peer: int, *, async_op: bool) -> NoReturn:
        """Refuse: only pair averaging asks for it."""
        del array, peer, async_op
        raise UsageError(f"pair averaging is not available over {self.backend}")

    def recv(self, array: Any, peer: int) -> NoReturn:
        """Likewise."""
        self.send(array, peer, async_op=False)


class CommHook:
    """State of `comm_hook`: averages a model's gradients and tells a job about them.

    Args:
        group: Process group that averages; None: the default one.
        **options: Of `kfcore.Job`: ``local_batch``, ``learning_rate``, ``policies``, ...

    Attributes:
        job: Carries what policies may change.

    Raises:
        UsageError: An option is out of range.
    """

    def __init__(self, group: Any = None, **options: Any) -> None:
        self.session = GroupSession(group)
        self.job = Job(self.session, **options)
        self._forget()

    def step(self, *, loss: float = math.nan) -> StepOutcome:
        """End a step after ``backward()``: measure, agree, install what was agreed.

        Args:
            loss: This rank's mean loss; NaN: not measured.

        Returns:
            What happened; do not apply the gradients if it says ``skipped``.

        Raises:
            ConflictingProposals: Ranks or policies proposed different changes; none was made.
        """
        job, share = self.job, self.job._share  # this is the other half of Job.step
        job._begin()
        job._entered_s = time.perf_counter()
        local_sq = _total(self._local) / share**2 if share > 0 else math.nan
        times = job._times
        handed = job._handed
        sums, maxes = job.controller.fill(
            LocalStep(
                step_s=times.step_s,
                compute_s=times.compute_s,
                comm_s=times.comm_s,
                comm_bytes=times.comm_bytes,
                loss=float(loss),
                grad_sq_norm=local_sq,
                samples=math.nan if handed is None else float(handed),
            )
        )
        begin_s = time.perf_counter()
        self.session.grouped_all_reduce([sums, maxes], op=["sum", "max"])
        comm_s = time.perf_counter() - begin_s
        outcome = job._end_step(sums, maxes, _total(self._mean), None)
        job._handed, job._share = None, 1.0
        if outcome.conflict:
            job._explain_conflict()
        job._measure(comm_s, self._bytes)
        self._forget()
        return outcome

    def reduce(self, buffer: torch.Tensor) -> "torch.futures.Future[torch.Tensor]":
        """Average one bucket.

        Args:
            buffer: The bucket's gradients, changed in place.

        Returns:
            A future of the same buffer.
        """
        share = self.job._share  # ranks may have batches of different sizes
        if share != 1.0:
            buffer.mul_(share)
        self._local.append(_square(buffer))
        self._bytes += buffer.nbytes
        work = dist.all_reduce(buffer, group=self.session.group, async_op=True)

        def divide(done: "torch.futures.Future[list[torch.Tensor]]") -> torch.Tensor:
            total: torch.Tensor = done.value()[0].div_(self.session.world_size)
            self._mean.append(_square(total))
            return total

        reduced: torch.futures.Future[torch.Tensor] = work.get_future().then(divide)
        return reduced

    def _forget(self) -> None:
        self._local: list[torch.Tensor] = []
        self._mean: list[torch.Tensor] = []
        self._bytes = 0


def comm_hook(
    state: CommHook, bucket: torch_c10d.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """For ``model.register_comm_hook(CommHook(...), comm_hook)``.

    Args:
        state: Made with the same process group as the model.
        bucket: Given by DistributedDataParallel.

    Returns:
        A future of the averaged gradients.
    """
    buffer: torch.Tensor = bucket.buffer()
    return state.reduce(buffer)


def _square(values: torch.Tensor) -> torch.Tensor:
    norm: torch.Tensor = torch.linalg.vector_norm(values, dtype=torch.float32)
    return norm.double().square()


def _total(squares: Sequence[torch.Tensor]) -> float:
    total = float(sum(float(square) for square in squares))
    return total if math.isfinite(total) else math.inf
