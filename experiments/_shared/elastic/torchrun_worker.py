"""A worker of TorchElastic: a checkpoint a step; see notes.py for arguments."""

import os
import sys

import torch
import torch.distributed as dist
from notes import Notes


def main() -> None:
    """Train until the experiment has seen enough; begin at the checkpoint, if there is one."""
    notes = Notes()
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    saved = notes.folder / "checkpoint.pt"
    step, weights = 0, torch.zeros(max(1, notes.plan["state_bytes"] // 8), dtype=torch.float64)
    if saved.exists():
        step, weights = torch.load(saved)
    dist.barrier()
    while True:
        notes.compute(step + 1, victim=rank == 1)
        grad = torch.ones(1000, dtype=torch.float64)
        grad[-1] = float(notes.enough)
        dist.all_reduce(grad)
        weights[: len(grad)] -= 0.1 / size * grad[: len(weights)]
        step += 1
        notes.stepped(step, size)
        if grad[-1] > 0:
            break
        if rank == 0:
            torch.save((step, weights), saved.with_suffix(".part"))
            saved.with_suffix(".part").replace(saved)
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # Gloo ends a process by an abort now and then


if __name__ == "__main__":
    main()
