"""One worker: trains the same model with each method, with and without a slow worker."""

import argparse
import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import kfcore as kf
import kfcore.torch as kft

STEP_S = 0.005  # what a step computes on an accelerator of its own: slept, cores are few
LEARNING_RATE, LOCAL_BATCH = 0.3, 16
TICKS = 12  # looks at the accuracy in a run
AGREE_EVERY = 10  # steps after which synchronous workers look together whether time is up
METHODS: dict[str, Callable[..., Any]] = {
    "ssgd": kft.SynchronousSGD,
    "sma": kft.SynchronousAveraging,
    "pairs": kft.PairAveraging,
}


class Digits:
    """Handwritten digits; a fifth is held out."""

    def __init__(self) -> None:
        found = load_digits()
        x = torch.tensor(found.data / 16, dtype=torch.float32)
        y = torch.tensor(found.target)
        held_out = torch.arange(len(x)) % 5 == 0
        self.x, self.y = x[~held_out], y[~held_out]
        self.test_x, self.test_y = x[held_out], y[held_out]

    def accuracy(self, model: nn.Module) -> float:
        """Of what is held out."""
        with torch.no_grad():
            return float((model(self.test_x).argmax(dim=1) == self.test_y).float().mean())


def train(
    session: kf.Session, data: Digits, method: str, slow_s: float, seed: int, budget_s: float
) -> tuple[list[float], int]:
    """Train for a while; rank 0's accuracy over time, and this rank's steps."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    wrapped = METHODS[method](
        torch.optim.SGD(model.parameters(), lr=LEARNING_RATE), session, model
    )
    draws = np.random.default_rng([seed, session.rank])
    slow = session.rank == session.world_size - 1
    curve: list[float] = []
    steps = 0

    def look(until: int) -> None:
        """Fill the curve with this moment's accuracy."""
        if session.rank == 0 and len(curve) < until:
            with wrapped.central() if method == "sma" else contextlib.nullcontext():
                curve.extend([data.accuracy(model)] * (until - len(curve)))

    session.barrier()
    begin_s = time.perf_counter()
    while True:
        now_s = time.perf_counter() - begin_s
        look(min(TICKS, int(TICKS * now_s / budget_s)))
        if time_is_up(session, method, steps, now_s, budget_s):
            break
        rows = draws.integers(len(data.x), size=LOCAL_BATCH)
        wrapped.zero_grad()
        nn.functional.cross_entropy(model(data.x[rows]), data.y[rows]).backward()
        time.sleep(STEP_S + (slow_s if slow else 0.0))
        wrapped.step()
        steps += 1
    look(TICKS)
    if hasattr(wrapped, "close"):
        wrapped.close()
    return curve, steps


def time_is_up(
    session: kf.Session, method: str, steps: int, now_s: float, budget_s: float
) -> bool:
    """Whether to stop: each on its own in pairs, all at the same step otherwise."""
    if method == "pairs":
        return now_s >= budget_s
    if steps % AGREE_EVERY:
        return False
    latest = np.array([now_s])
    session.all_reduce(latest, "max")
    return bool(latest[0] >= budget_s)


def main() -> None:
    """All methods in turn, without and with a slow worker."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget-s", type=float, required=True)
    parser.add_argument("--slow-ms", type=int, nargs="+", required=True)
    parser.add_argument("--repeats", type=int, nargs="+", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", required=True, help="of each repeat")
    given = parser.parse_args()
    torch.set_num_threads(1)
    data = Digits()
    with kf.init() as session:
        for repeat, seed in zip(given.repeats, given.seeds, strict=True):
            turn = repeat % len(METHODS)
            for method in [*METHODS, *METHODS][turn : turn + len(METHODS)]:
                for slow_ms in given.slow_ms:
                    curve, steps = train(
                        session, data, method, slow_ms / 1e3, seed, given.budget_s
                    )
                    all_steps = int(session.all_gather(np.array([steps])).sum())
                    if session.rank == 0:
                        row = {
                            "method": method,
                            "slow_ms": slow_ms,
                            "repeat": repeat,
                            "curve": curve,
                            "samples_per_s": all_steps * LOCAL_BATCH / given.budget_s,
                        }
                        with given.out.open("a", encoding="utf-8") as file:
                            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
