"""Optimizers over several workers, against plain training in one process."""

import sys
import time

import pytest
import torch
from checks import CHECKS, check, run_all
from torch import nn

import kfcore as kf
import kfcore.torch as kft

torch.set_num_threads(1)
session = kf.init()
RANK, SIZE = session.rank, session.world_size
BATCH = 5 * SIZE


def net(seed: int = 7) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def batch(step: int, samples: int = BATCH) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(1000 + step)
    x = torch.randn(samples, 6, generator=source)
    return x, x[:, :3].square()


def mine(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = batch(step)
    return x[RANK::SIZE], y[RANK::SIZE]


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def everywhere(value: torch.Tensor) -> torch.Tensor:
    return session.all_gather(value.contiguous())


def agree(model: nn.Module) -> None:
    rows = everywhere(flat(model))
    for row in rows:
        assert torch.equal(row, rows[0])


def train(model, optimizer, data, steps=12, first=0) -> list[float]:
    losses = []
    for step in range(first, first + steps):
        x, y = data(step)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def held_out(model) -> float:
    x, y = batch(99, 200)
    with torch.no_grad():
        return nn.functional.mse_loss(model(x), y).item()


def makers():
    yield lambda ps: torch.optim.SGD(ps, lr=0.1)
    yield lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9, weight_decay=1e-3)
    yield lambda ps: torch.optim.Adam(ps, lr=0.01)


@check
def synchronous_equals_one_process() -> None:
    for make in makers():
        for bucket_bytes in (256, 1 << 20):
            plain, model = net(), net(seed=7 + RANK)  # rank 0's parameters are given to all
            train(plain, make(plain.parameters()), batch)
            wrapped = kft.SynchronousSGD(
                make(model.parameters()), session, model, bucket_bytes=bucket_bytes
            )
            train(model, wrapped, mine)
            torch.testing.assert_close(flat(model), flat(plain), atol=1e-6, rtol=1e-6)
            agree(model)


@check
def one_worker_is_plain_torch_to_the_bit() -> None:
    with kf.init(rank=0, world_size=1, store_address=None, hosts_store=False) as alone:
        for make in makers():
            for wrap in (
                kft.SynchronousSGD,
                kft.SynchronousAveraging,
                kft.PairAveraging,
                kft.LocalSGD,
                kft.AdaptiveSGD,
            ):
                plain, model = net(), net()
                train(plain, make(plain.parameters()), batch, steps=50)
                train(model, wrap(make(model.parameters()), alone, model), batch, steps=50)
                assert torch.equal(flat(model), flat(plain)), wrap


@check
def accumulation() -> None:
    plain, model = net(), net()
    reference = torch.optim.SGD(plain.parameters(), lr=0.1)
    wrapped = kft.SynchronousSGD(torch.optim.SGD(model.parameters(), lr=0.1), session)
    for step in range(4):
        for optimizer in (reference, wrapped):
            optimizer.zero_grad()
        for part in range(2):
            (
                nn.functional.mse_loss(plain(batch(2 * step + part)[0]), batch(0)[1]) / 2
            ).backward()
        x0, x1 = mine(2 * step)[0], mine(2 * step + 1)[0]
        with wrapped.no_sync():
            (nn.functional.mse_loss(model(x0), mine(0)[1]) / 2).backward()
        (nn.functional.mse_loss(model(x1), mine(0)[1]) / 2).backward()
        for optimizer in (reference, wrapped):
            optimizer.step()
    torch.testing.assert_close(flat(model), flat(plain), atol=1e-6, rtol=1e-6)


@check
def clipping_by_norm() -> None:
    plain, model = net(), net()
    reference = torch.optim.SGD(plain.parameters(), lr=0.5)
    wrapped = kft.SynchronousSGD(torch.optim.SGD(model.parameters(), lr=0.5), session)
    for step in range(4):
        for optimizer, each, data in ((reference, plain, batch), (wrapped, model, mine)):
            optimizer.zero_grad()
            x, y = data(step)
            nn.functional.mse_loss(each(x), y).backward()
            nn.utils.clip_grad_norm_(each.parameters(), 0.05)
            optimizer.step()
    torch.testing.assert_close(flat(model), flat(plain), atol=1e-6, rtol=1e-6)


@check
def gradient_scaler_skips_on_all_ranks() -> None:
    model = net()
    wrapped = kft.SynchronousSGD(torch.optim.SGD(model.parameters(), lr=0.1), session)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    skipped = []
    for step in range(12):
        x, y = mine(step)
        if (step, RANK) == (5, min(1, SIZE - 1)):
            x = x * float("nan")
        if (step, RANK) == (9, SIZE - 1):
            x = x * float("inf")
        wrapped.zero_grad()
        scaler.scale(nn.functional.mse_loss(model(x), y)).backward()
        before = flat(model)
        scaler.step(wrapped)
        scaler.update()
        if torch.equal(flat(model), before):
            skipped.append(step)
    assert skipped == [5, 9], skipped
    agree(model)
    scales = everywhere(torch.tensor([scaler.get_scale()]))
    assert scales.unique().tolist() == [256.0]


@check
def schedulers_work() -> None:
    model = net()
    wrapped = kft.SynchronousSGD(torch.optim.SGD(model.parameters(), lr=0.1), session)
    schedule = torch.optim.lr_scheduler.StepLR(wrapped, 2, 0.5)
    for step in range(4):
        train(model, wrapped, mine, steps=1, first=step)
        schedule.step()
    assert wrapped.param_groups[0]["lr"] == 0.025
    assert wrapped.inner.param_groups[0]["lr"] == 0.025
    saved = wrapped.state_dict()
    wrapped.load_state_dict(saved)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.parts = nn.ModuleList([nn.Linear(2, 1) for _ in range(SIZE + 1)])
        self.nothing = nn.Parameter(torch.empty(0))

    def forward(self, x: torch.Tensor, which: int) -> torch.Tensor:
        return self.parts[which](x)


@check
def unused_parameters() -> None:
    model = Branches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    wrapped = kft.SynchronousSGD(optimizer, session, bucket_bytes=16)
    for _ in range(3):
        wrapped.zero_grad()
        model(torch.ones(1, 2) * (RANK + 1), RANK).sum().backward()
        for rank in range(SIZE):  # each branch has one rank's gradient, over all ranks
            torch.testing.assert_close(
                model.parts[rank].weight.grad, torch.full((1, 2), (rank + 1) / SIZE)
            )
        assert model.parts[SIZE].weight.grad is None  # nobody used it: no decay either
        wrapped.step()
    agree(model)


@check
def sparse_gradients_are_refused() -> None:
    if SIZE == 1:  # nothing is reduced, and torch itself takes them
        return
    table = nn.Embedding(10, 3, sparse=True)
    wrapped = kft.SynchronousSGD(torch.optim.SGD(table.parameters(), lr=0.1), session)
    with pytest.raises(kf.errors.UsageError, match="sparse=False"):
        table(torch.tensor([1, 2])).sum().backward()
    wrapped.close()
    dense = nn.Embedding(10, 3)
    wrapped = kft.SynchronousSGD(torch.optim.SGD(dense.parameters(), lr=0.1), session)
    dense(torch.tensor([1, 2])).sum().backward()
    assert dense.weight.grad.sum() == 6


@check
def two_optimizers() -> None:
    first, second = net(1), net(2)
    one = kft.SynchronousSGD(torch.optim.SGD(first.parameters(), lr=0.1), session)
    two = kft.SynchronousSGD(torch.optim.Adam(second.parameters(), lr=0.1), session)
    for step in range(20):
        train(first, one, mine, steps=1, first=step)
        train(second, two, mine, steps=1, first=step)
    agree(first)
    agree(second)


@check
def uneven_inputs() -> None:
    counts = [3, 0, 5, 8][:SIZE]

    def data(rank: int, step: int) -> torch.Tensor:
        return torch.randn(4, 6, generator=torch.Generator().manual_seed(100 * rank + step))

    plain, model = net(), net()
    reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for step in range(max(counts)):
        active = [rank for rank in range(SIZE) if step < counts[rank]]
        reference.zero_grad()
        for rank in active:
            (plain(data(rank, step)).square().mean() / len(active)).backward()
        reference.step()
    wrapped = kft.SynchronousSGD(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), session, bucket_bytes=200
    )
    with wrapped.join():
        for step in range(counts[RANK]):
            wrapped.zero_grad()
            model(data(RANK, step)).square().mean().backward()
            wrapped.step()
    torch.testing.assert_close(flat(model), flat(plain), atol=1e-6, rtol=1e-6)
    agree(model)


@check
def exact_evaluation() -> None:
    right = [True] * 7 + [False] * 3
    for samples in (10, 2):
        told = kft.evaluate(
            session, samples, lambda indices: {"right": sum(right[i] for i in indices)}
        )
        assert told == {"right": float(sum(right[:samples])), "samples": float(samples)}


@check
def averaging_follows_its_formula() -> None:
    # one parameter, no gradient: only the pull remains
    start = torch.tensor([float(RANK)])
    value = nn.Parameter(torch.zeros(1))
    sma = kft.SynchronousAveraging(
        torch.optim.SGD([value], lr=0.1), session, alpha=0.2, momentum=0.5
    )
    value.data.copy_(start)
    value.grad = torch.zeros(1)
    workers, central, before = torch.arange(SIZE, dtype=torch.float32), 0.0, 0.0
    for _ in range(5):
        sma.step()
        pulls = 0.2 * (workers - central)
        workers = workers - pulls
        central, before = central + pulls.sum() + 0.5 * (central - before), central
        torch.testing.assert_close(value.data, workers[RANK : RANK + 1])
    with sma.central():
        torch.testing.assert_close(value.data, central.reshape(1))
    torch.testing.assert_close(value.data, workers[RANK : RANK + 1])


@check
def averaging_trains() -> None:
    model = net()
    sma = kft.SynchronousAveraging(torch.optim.SGD(model.parameters(), lr=0.1), session, model)
    first = held_out(model)
    train(model, sma, mine, steps=80)
    with sma.central():
        agree(model)
        assert held_out(model) < 0.8 * first


@check
def local_sgd_averages_when_it_is_time() -> None:
    model = net()
    wrapped = kft.LocalSGD(torch.optim.SGD(model.parameters(), lr=0.1), session, every=4)
    train(model, wrapped, mine, steps=3)
    rows = everywhere(flat(model))
    assert SIZE == 1 or not torch.equal(rows[0], rows[-1])
    train(model, wrapped, mine, steps=1, first=3)
    agree(model)


@check
def diloco_follows_its_formula() -> None:
    value = nn.Parameter(torch.tensor([2.0]))
    wrapped = kft.LocalSGD(
        torch.optim.SGD([value], lr=1.0),
        session,
        every=2,
        outer=lambda shared: torch.optim.SGD(shared, lr=0.5),
    )
    for _ in range(2):
        value.grad = torch.tensor([float(RANK)])
        wrapped.step()
    # the workers moved by -2 * mean(rank) on average; the outer step goes half of it
    torch.testing.assert_close(value.data, torch.tensor([2.0 - 0.5 * (SIZE - 1)]))


@check
def adaptive_switches() -> None:
    model = net()
    wrapped = kft.AdaptiveSGD(
        torch.optim.SGD(model.parameters(), lr=0.1), session, model, switch_step=6
    )
    train(model, wrapped, mine, steps=5)
    assert wrapped.averaging
    train(model, wrapped, mine, steps=1, first=5)
    assert not wrapped.averaging
    agree(model)
    train(model, wrapped, mine, steps=4, first=6)
    agree(model)


@check
def pairs_conserve_the_mean() -> None:
    value = nn.Parameter(torch.zeros(1000))
    with kft.PairAveraging(torch.optim.SGD([value], lr=1.0), session, seed=3) as pairs:
        for step in range(40):
            value.grad = torch.full((1000,), -1.0 if step < 5 and RANK == 0 else 0.0)
            pairs.step()
            assert (value == value[0]).all(), "torn"
            if RANK == SIZE - 1:
                time.sleep(0.002)  # nobody waits for a straggler
    session.barrier()
    rows = everywhere(value.detach())
    torch.testing.assert_close(rows.mean(), torch.tensor(5.0 / SIZE), atol=1e-4, rtol=0)
    assert sum(pairs.partners) == (40 if SIZE > 1 else 0)
    assert SIZE < 3 or min(n for peer, n in enumerate(pairs.partners) if peer != RANK) > 0


@check
def pairs_train() -> None:
    model = net()
    with kft.PairAveraging(
        torch.optim.SGD(model.parameters(), lr=0.1), session, model
    ) as pairs:
        first = held_out(model)
        train(model, pairs, mine, steps=80)
    assert held_out(model) < 0.8 * first


if __name__ == "__main__":
    if sys.argv[2:]:
        for unwanted in set(CHECKS) - set(sys.argv[2:]):
            del CHECKS[unwanted]
    run_all(RANK)
