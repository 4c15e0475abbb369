"""A slow worker: synchronous SGD waits for it, pair averaging does not.

Run under `kf run -n 3`. Each worker trains for the same number of steps, the last one slowly;
printed is how long the fastest worker took, relative to what the slow one needs, and the loss.
"""

import time

import torch
from torch import nn

import kfcore as kf
import kfcore.torch as kft

STEPS, SLOW_S = 40, 0.02


def train(session: kf.Session, wrap) -> tuple[float, float]:
    torch.manual_seed(0)
    model = nn.Linear(10, 1)
    wrapped = wrap(torch.optim.SGD(model.parameters(), lr=0.05), session, model)
    data = torch.Generator().manual_seed(session.rank)
    session.barrier()
    begin_s = time.perf_counter()
    for _ in range(STEPS):
        if session.rank == session.world_size - 1:
            time.sleep(SLOW_S)
        x = torch.randn(16, 10, generator=data)
        wrapped.zero_grad()
        nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True)).backward()
        wrapped.step()
    took_s = time.perf_counter() - begin_s
    wrapped.close()
    x = torch.randn(200, 10, generator=torch.Generator().manual_seed(99))
    loss = nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True)).item()
    times = session.all_gather(torch.tensor([took_s, loss], dtype=torch.float64))
    return times[:, 0].min().item(), times[:, 1].mean().item()


def main() -> None:
    torch.set_num_threads(1)
    with kf.init() as session:
        for name, wrap in (("S-SGD", kft.SynchronousSGD), ("pairs", kft.PairAveraging)):
            fastest_s, loss = train(session, wrap)
            if session.rank == 0:
                part = fastest_s / (STEPS * SLOW_S)
                print(
                    f"{name}: fastest worker {part:.2f} of the slow one's time, loss {loss:.3f}"
                )


if __name__ == "__main__":
    main()
