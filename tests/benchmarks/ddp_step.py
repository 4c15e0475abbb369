"""DistributedDataParallel steps over gloo and over kf, in turns within one run.

Run: kf run -n 2 python tests/benchmarks/ddp_step.py [hidden] [steps]
With hidden 5000 the gradients are as large as ResNet-50's.
Prints the median step of each and their ratio; more than 1 means that kf is faster.
"""

import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import kfcore.torch  # noqa: F401 - makes "kf" known


def step_s(model: nn.Module, x: torch.Tensor) -> float:
    begin_s = time.perf_counter()
    model(x).square().mean().backward()
    for parameter in model.parameters():
        parameter.grad = None
    return time.perf_counter() - begin_s


def main() -> None:
    given = [int(text) for text in sys.argv[1:]]
    hidden, steps = given + [1024, 40][len(given) :]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    size = dist.get_world_size()
    groups = {name: dist.new_group(list(range(size)), backend=name) for name in ("gloo", "kf")}
    models = {
        name: DistributedDataParallel(
            nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, hidden)),
            process_group=group,
            gradient_as_bucket_view=True,
        )
        for name, group in groups.items()
    }
    x = torch.randn(8, 64)
    times: dict[str, list[float]] = {name: [] for name in models}
    for turn in range(steps + 5):
        for name, model in models.items():
            dist.barrier()
            taken_s = step_s(model, x)
            if turn >= 5:
                times[name].append(taken_s)
    if dist.get_rank() == 0:
        medians = {name: 1e3 * statistics.median(each) for name, each in times.items()}
        mib = sum(p.numel() for p in models["kf"].parameters()) * 4 / 2**20
        print(
            f"{size} ranks, {mib:.1f} MiB of gradients: gloo {medians['gloo']:.2f} ms, "
            f"kf {medians['kf']:.2f} ms, ratio {medians['gloo'] / medians['kf']:.2f}"
        )
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
