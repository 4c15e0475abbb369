"""Collectives and messages of torch.distributed over the back end kf."""

from datetime import timedelta

import torch
import torch.distributed as dist
from backend_world import RANK, SIZE, TOTAL, ranked, same
from checks import check

import kfcore.torch


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
