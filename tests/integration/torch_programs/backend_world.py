"""The group of the back-end checks: gloo first, for comparison, then kf."""

import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import kfcore.torch  # noqa: F401 - makes "kf" known

warnings.simplefilter("ignore", FutureWarning)
warnings.simplefilter("ignore", UserWarning)


def make_model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def ddp_losses() -> list[float]:
    rank = dist.get_rank()
    model = DistributedDataParallel(make_model(), broadcast_buffers=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(6):
        x = torch.randn(8, 6, generator=data)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


dist.init_process_group("gloo")
GLOO_LOSSES = ddp_losses()
dist.destroy_process_group()
dist.init_process_group("kf", timeout=timedelta(seconds=90))
RANK, SIZE = dist.get_rank(), dist.get_world_size()
TOTAL = SIZE * (SIZE + 1) / 2


def ranked(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, RANK + 1, dtype=dtype)


def same(got: torch.Tensor, wanted: object) -> None:
    torch.testing.assert_close(got, torch.as_tensor(wanted, dtype=got.dtype).expand_as(got))
