"""DDP, sharding and what is built on them, over the back end kf."""

import tempfile

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from backend_world import GLOO_LOSSES, RANK, SIZE, TOTAL, ddp_losses, make_model, ranked, same
from checks import check
from torch import nn
from torch.distributed._functional_collectives import (
    all_gather_tensor,
    reduce_scatter_tensor,
)
from torch.distributed._functional_collectives import all_reduce as functional_all_reduce
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel


@check
def ddp_equals_gloo() -> None:
    losses = ddp_losses()
    assert max(abs(a - b) for a, b in zip(losses, GLOO_LOSSES, strict=True)) < 1e-6


@check
def ddp_options() -> None:
    for options in (
        {"find_unused_parameters": True},
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"bucket_cap_mb": 0.0001},
    ):
        model = DistributedDataParallel(make_model(), **options)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(3):
            model(torch.randn(4, 6)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        flat = torch.cat([p.detach().flatten() for p in model.parameters()])
        copy = flat.clone()
        dist.broadcast(copy, 0)
        assert torch.equal(copy, flat), options
        with model.no_sync():
            model(torch.randn(4, 6)).sum().backward()


@check
def ddp_sync_batch_norm_refused_on_cpu() -> None:
    # torch's own SyncBatchNorm is for GPUs; with gloo it says the same
    model = nn.SyncBatchNorm.convert_sync_batchnorm(make_model())
    with pytest.raises(ValueError, match="GPU"):
        DistributedDataParallel(model)


@check
def ddp_uneven_inputs() -> None:
    model = DistributedDataParallel(nn.Linear(2, 1, bias=False))
    nn.init.zeros_(model.module.weight)
    with Join([model], divide_by_initial_world_size=False):
        for _ in range(RANK + 1):
            model(torch.full((1, 2), float(RANK + 1))).sum().backward()
    # in its last step the highest rank is alone
    if RANK == SIZE - 1:
        same(model.module.weight.grad.sum() > 0, True)


@check
def ddp_own_comm_hook() -> None:
    def hook(state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda done: done.value()[0].div_(SIZE))

    model = DistributedDataParallel(nn.Linear(4, 2))
    model.register_comm_hook(None, hook)
    model(ranked(1, 4)).sum().backward()
    same(model.module.weight.grad, TOTAL / SIZE)


@check
def device_mesh() -> None:
    mesh = init_device_mesh("cpu", (SIZE,))
    x = ranked(2)
    dist.all_reduce(x, group=mesh.get_group())
    same(x, TOTAL)
    if SIZE % 2 == 0:
        plane = init_device_mesh("cpu", (2, SIZE // 2), mesh_dim_names=("dp", "tp"))
        y = ranked(2)
        dist.all_reduce(y, group=plane["tp"].get_group())


@check
def fsdp2() -> None:
    mesh = init_device_mesh("cpu", (SIZE,))
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 4))
    torch.manual_seed(0)
    sharded = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 4))
    fully_shard(sharded[0], mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (plain, sharded)]
    inputs = torch.randn(4 * SIZE, 8, generator=torch.Generator().manual_seed(1))
    for _ in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        plain(inputs).square().mean().backward()
        sharded(inputs[4 * RANK : 4 * RANK + 4]).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    for one, other in zip(plain.parameters(), sharded.parameters(), strict=True):
        torch.testing.assert_close(other.full_tensor(), one.data, atol=1e-6, rtol=1e-5)


@check
def functional() -> None:
    same(functional_all_reduce(ranked(3), "sum", dist.group.WORLD), TOTAL)
    gathered = all_gather_tensor(ranked(1), 0, dist.group.WORLD)
    same(gathered, [r + 1 for r in range(SIZE)])
    same(reduce_scatter_tensor(ranked(SIZE), "sum", 0, dist.group.WORLD), TOTAL)


@check
def dtensor() -> None:
    mesh = init_device_mesh("cpu", (SIZE,))
    whole = torch.arange(4.0 * SIZE).view(2 * SIZE, 2)
    cut = distribute_tensor(whole, mesh, [Shard(0)])
    assert isinstance(cut, DTensor)
    same(cut.redistribute(mesh, [Replicate()]).to_local(), whole)
    same((cut * 2).sum().full_tensor(), 2 * whole.sum())


@check
def zero_redundancy_optimizer() -> None:
    model = DistributedDataParallel(make_model())
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01
    )
    for _ in range(2):
        model(torch.randn(4, 6)).sum().backward()
        optimizer.step()
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    copy = flat.clone()
    dist.broadcast(copy, 0)
    assert torch.equal(copy, flat)


@check
def distributed_checkpoint() -> None:
    folder = [tempfile.mkdtemp() if RANK == 0 else ""]
    dist.broadcast_object_list(folder, src=0)
    mesh = init_device_mesh("cpu", (SIZE,))
    model = fully_shard(nn.Linear(6, 2 * SIZE), mesh=mesh)
    state = {"model": model.state_dict()}
    before = state["model"]["weight"].full_tensor().clone()
    dcp.save(state, checkpoint_id=folder[0])
    with torch.no_grad():
        for value in model.parameters():
            value.zero_()
    dcp.load(state, checkpoint_id=folder[0])
    same(state["model"]["weight"].full_tensor(), before)


@check
def compiled_ddp() -> None:
    model = torch.compile(DistributedDataParallel(nn.Linear(4, 2)), backend="eager")
    model(ranked(1, 4)).sum().backward()
    for parameter in model.parameters():
        copy = parameter.grad.clone()
        dist.broadcast(copy, 0)
        assert torch.equal(copy, parameter.grad)
