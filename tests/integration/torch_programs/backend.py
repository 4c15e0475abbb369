"""Everything that torch.distributed offers for tensors on the CPU, over the back end kf."""

import os
import tempfile
import warnings
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from checks import check, run_all
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

import kfcore.torch

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


@check
def names_and_sizes() -> None:
    group = dist.group.WORLD
    assert dist.get_backend() == "kf"
    assert group.name() == "kf"
    assert (group.rank(), group.size()) == (RANK, SIZE)
    assert kfcore.torch.session().world_size == SIZE


@check
def all_reduce() -> None:
    for op, wanted in (
        (dist.ReduceOp.SUM, TOTAL),
        (dist.ReduceOp.AVG, TOTAL / SIZE),
        (dist.ReduceOp.MIN, 1),
        (dist.ReduceOp.MAX, SIZE),
    ):
        x = ranked(3, 2)
        dist.all_reduce(x, op)
        same(x, wanted)
    for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.int16, torch.complex64):
        x = ranked(5, dtype=dtype)
        dist.all_reduce(x)
        same(x, TOTAL)
    scalar = torch.tensor(float(RANK + 1))
    dist.all_reduce(scalar)
    assert scalar.shape == ()
    same(scalar, TOTAL)
    dist.all_reduce(torch.empty(0))


@check
def all_reduce_strided() -> None:
    base = torch.zeros(2, 2)
    base[:, 0] = RANK + 1
    dist.all_reduce(base[:, 0])
    same(base, [[TOTAL, 0], [TOTAL, 0]])


@check
def all_reduce_bitwise() -> None:
    for op, wanted in (
        (dist.ReduceOp.BOR, (1 << SIZE) - 1),
        (dist.ReduceOp.BXOR, (1 << SIZE) - 1),
        (dist.ReduceOp.BAND, 1 if SIZE == 1 else 0),
    ):
        x = torch.tensor([1 << RANK])
        dist.all_reduce(x, op)
        same(x, wanted)


@check
def all_reduce_async() -> None:
    tensors = [ranked(100) * scale for scale in range(1, 9)]
    works = [dist.all_reduce(x, async_op=True) for x in tensors]
    for scale, (work, x) in enumerate(zip(works, tensors, strict=True), 1):
        assert work.wait()
        assert work.is_completed()
        same(x, TOTAL * scale)


@check
def futures() -> None:
    x = ranked(4)
    future = dist.all_reduce(x, async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    same(doubled.wait(), 2 * TOTAL)
    torch.futures.wait_all([dist.barrier(async_op=True).get_future()])


@check
def all_reduce_coalesced() -> None:
    xs = [ranked(3), ranked(2, dtype=torch.float32) * 2]
    with dist._coalescing_manager():
        for x in xs:
            dist.all_reduce(x)
    same(xs[0], TOTAL)
    same(xs[1], 2 * TOTAL)
    ys = [ranked(3), ranked(2)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for y in ys:
            dist.all_reduce(y)
    manager.wait()
    same(ys[1], TOTAL)


@check
def broadcast() -> None:
    x = ranked(4)
    dist.broadcast(x, SIZE - 1)
    same(x, SIZE)
    raw = torch.full((4,), RANK, dtype=torch.uint16)
    dist.broadcast(raw, SIZE - 1)
    assert raw.tolist() == [SIZE - 1] * 4


@check
def reduce() -> None:
    x = ranked(4)
    dist.reduce(x, SIZE - 1)
    same(x, TOTAL if RANK == SIZE - 1 else RANK + 1)


@check
def all_gather() -> None:
    outs = [torch.empty(2, 2) for _ in range(SIZE)]
    dist.all_gather(outs, ranked(2, 2))
    for rank, out in enumerate(outs):
        same(out, rank + 1)
    uneven = [torch.empty(rank, 2) for rank in range(SIZE)]
    dist.all_gather(uneven, ranked(RANK, 2))
    for rank, out in enumerate(uneven):
        same(out, rank + 1)


@check
def all_gather_single() -> None:
    out = torch.empty(SIZE * 2)
    dist.all_gather_into_tensor(out, ranked(2))
    same(out, [rank + 1 for rank in range(SIZE) for _ in range(2)])
    pieces = [torch.empty(SIZE * 2), torch.empty(SIZE)]
    with dist._coalescing_manager():
        dist.all_gather_into_tensor(pieces[0], ranked(2))
        dist.all_gather_into_tensor(pieces[1], ranked(1))
    same(pieces[1], [rank + 1 for rank in range(SIZE)])


@check
def gather_and_scatter() -> None:
    outs = [torch.empty(3) for _ in range(SIZE)] if RANK == 0 else None
    dist.gather(ranked(3), outs)
    for rank, out in enumerate(outs or []):
        same(out, rank + 1)
    mine = torch.empty(2)
    root = SIZE - 1
    parts = [torch.full((2,), float(r)) for r in range(SIZE)] if root == RANK else None
    dist.scatter(mine, parts, src=root)
    same(mine, RANK)


@check
def reduce_scatter() -> None:
    out = torch.empty(2)
    dist.reduce_scatter(out, [ranked(2) * r for r in range(SIZE)])
    same(out, TOTAL * RANK)
    uneven = torch.empty(RANK + 1)
    dist.reduce_scatter(uneven, [ranked(r + 1) for r in range(SIZE)])
    same(uneven, TOTAL)
    dist.reduce_scatter_tensor(out, ranked(2 * SIZE), op=dist.ReduceOp.AVG)
    same(out, TOTAL / SIZE)


@check
def all_to_all() -> None:
    out = torch.empty(SIZE)
    dist.all_to_all_single(out, torch.arange(SIZE) + 10.0 * RANK)
    same(out, [10.0 * rank + RANK for rank in range(SIZE)])
    # rank s sends d + 1 rows to rank d
    rows = SIZE * (RANK + 1)
    uneven = torch.empty(rows, 2)
    dist.all_to_all_single(
        uneven,
        ranked(int(TOTAL), 2),
        output_split_sizes=[RANK + 1] * SIZE,
        input_split_sizes=[d + 1 for d in range(SIZE)],
    )
    same(uneven[:, 0], [s + 1 for s in range(SIZE) for _ in range(RANK + 1)])
    outs = [torch.empty(RANK + 1) for _ in range(SIZE)]
    dist.all_to_all(outs, [ranked(d + 1) for d in range(SIZE)])
    for source, got in enumerate(outs):
        same(got, source + 1)


@check
def objects() -> None:
    gathered: list[object] = [None] * SIZE
    dist.all_gather_object(gathered, {"rank": RANK, "long": "x" * RANK * 100})
    assert [each["rank"] for each in gathered] == list(range(SIZE))  # type: ignore[index]
    told = [RANK, {"from": RANK}]
    dist.broadcast_object_list(told, src=SIZE - 1)
    assert told == [SIZE - 1, {"from": SIZE - 1}]
    mine = [None]
    dist.scatter_object_list(mine, [f"for {r}" for r in range(SIZE)], src=0)
    assert mine == [f"for {RANK}"]
    collected = [None] * SIZE if RANK == 0 else None
    dist.gather_object(RANK, collected)
    assert collected is None or collected == list(range(SIZE))


@check
def messages() -> None:
    if SIZE == 1:
        return
    following, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    got = torch.empty(50_000)
    ops = [
        dist.P2POp(dist.isend, ranked(50_000), following),
        dist.P2POp(dist.irecv, got, before),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    same(got, before + 1)
    if RANK == 0:
        dist.send(torch.arange(4.0), 1, tag=5)
        dist.send(torch.arange(4.0) * 2, 1, tag=4)
    elif RANK == 1:
        x, y = torch.empty(4), torch.empty(4)
        dist.recv(y, 0, tag=4)
        assert dist.recv(x, 0, tag=5) == 0
        same(x, torch.arange(4.0))
        same(y, torch.arange(4.0) * 2)
    later = torch.empty(2)
    futures = []
    if RANK == 1:
        futures.append(dist.irecv(later, 0, tag=9).get_future())
        dist.isend(torch.ones(2), 0, tag=8).get_future().wait()
    if RANK == 0:
        dist.irecv(later, 1, tag=8).get_future().wait()
        dist.send(torch.ones(2), 1, tag=9)
    for future in futures:
        future.wait()


@check
def barriers() -> None:
    dist.barrier()
    dist.barrier(async_op=True).wait()
    dist.group.WORLD.monitored_barrier(timedelta(seconds=60))


@check
def sub_groups() -> None:
    if SIZE == 1:
        return
    evens, odds = list(range(0, SIZE, 2)), list(range(1, SIZE, 2))
    groups = [dist.new_group(evens), dist.new_group(odds)]
    mine, members = (groups[0], evens) if RANK % 2 == 0 else (groups[1], odds)
    x = ranked(3)
    dist.all_reduce(x, group=mine)
    same(x, sum(r + 1 for r in members))
    y = ranked(2)
    dist.all_reduce(y, dist.ReduceOp.AVG, group=mine)
    same(y, sum(r + 1 for r in members) / len(members))
    dist.broadcast(x, members[-1], group=mine)
    local = dist.new_group([RANK], use_local_synchronization=True)
    z = ranked(2)
    dist.all_reduce(z, group=local)
    same(z, RANK + 1)
    again = dist.new_group(list(range(SIZE)))
    dist.all_reduce(z, group=again)
    same(z, TOTAL)


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


@check
def refusals_leave_the_group_usable() -> None:
    for bad in (
        lambda: dist.all_reduce(ranked(2), dist.ReduceOp.BAND),
        lambda: dist.all_reduce(torch.ones(1).expand(4)),
        lambda: dist.all_gather_into_tensor(torch.empty(3 * SIZE + 1), ranked(3)),
        lambda: dist.all_reduce(torch.ones(2, dtype=torch.complex64), dist.ReduceOp.MAX),
        lambda: dist.recv(torch.ones(1)),
    ):
        try:
            bad()
        except (ValueError, NotImplementedError):
            pass
        else:
            raise AssertionError(bad)
    x = ranked(2)
    dist.all_reduce(x)
    same(x, TOTAL)


@check
def group_can_be_made_anew() -> None:
    dist.destroy_process_group()
    dist.init_process_group("kf")
    x = ranked(2)
    dist.all_reduce(x)
    same(x, TOTAL)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "0")
    run_all(RANK)
