"""One rank: steps with monitors, without, and with the naive second all-reduce, in turns."""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

import kfcore as kf
from kfcore.config import Config
from kfcore.policy.load import load_policy

VARIANTS = ("off", "on", "naive")
PARAMETERS_PER_MS = 50_000
SIDE = 64  # of the matrices that stand for computing


def monitors() -> list[Any]:
    """Everything that is measured at each step."""
    return [
        kf.monitors.GradientNoiseScale(),
        kf.monitors.AdaScaleGain(base_batch=16),
        kf.monitors.StatisticalEfficiency(base_batch=16),
        kf.monitors.Money(price_per_worker_hour=1.0),
    ]


class Trainer:
    """The same gradients and the same work under each variant."""

    def __init__(self, session: kf.Session, step_ms: int, products: int) -> None:
        self.session, self.products = session, products
        self.matrix = np.full((SIDE, SIDE), 1 / SIDE, np.float32)
        rng = np.random.default_rng(session.rank)
        self.source = rng.normal(size=PARAMETERS_PER_MS * step_ms).astype(np.float32)
        self.grad = self.source.copy()
        quiet = Config()
        common: dict[str, Any] = {"local_batch": 16, "learning_rate": 0.1, "config": quiet}
        plain = kf.Job(session, **common)
        watched = kf.Job(
            session,
            monitors=monitors(),
            policies=[load_policy("NameStragglers(factor=100.0)")],
            **common,
        )
        self.jobs = {"off": plain, "naive": plain, "on": watched}

    def compute(self) -> None:
        """The fixed amount of work of a step."""
        for _ in range(self.products):
            np.matmul(self.matrix, self.matrix)
        np.copyto(self.grad, self.source)

    def step_s(self, variant: str) -> float:
        """One step; how long it took."""
        begin_s = time.perf_counter()
        self.compute()
        if variant == "naive":
            squares = self.grad * self.grad
            self.session.all_reduce(squares, "avg")
            float(squares.sum())
        self.jobs[variant].step([self.grad])
        return time.perf_counter() - begin_s


def products_for(session: kf.Session, step_ms: int) -> int:
    """Matrix products that take so long on the slower rank; the same on all."""
    matrix = np.full((SIDE, SIDE), 1 / SIDE, np.float32)
    times = []
    for _ in range(20):
        begin_s = time.perf_counter()
        for _ in range(20):
            np.matmul(matrix, matrix)
        times.append((time.perf_counter() - begin_s) / 20)
    slowest = np.array([statistics.median(times)])
    session.all_reduce(slowest, "max")
    return max(1, round(step_ms * 1e-3 / float(slowest[0])))


def main() -> None:
    """Measure every step length; rank 0 writes one JSON object a line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps-ms", type=int, nargs="+", required=True)
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument("--block-steps", type=int, required=True)
    options = parser.parse_args()
    with kf.init() as session:
        lines = []
        for step_ms in options.steps_ms:
            trainer = Trainer(session, step_ms, products_for(session, step_ms))
            times: dict[str, list[float]] = {name: [] for name in VARIANTS}
            for block in range(options.blocks + 1):
                turn = block % len(VARIANTS)
                for name in VARIANTS[turn:] + VARIANTS[:turn]:
                    taken = [trainer.step_s(name) for _ in range(options.block_steps)]
                    times[name] += taken if block else []  # the first block warms up
            lines += [
                json.dumps(
                    {
                        "step_ms": step_ms,
                        "variant": name,
                        "parameters": trainer.grad.size,
                        "step_s": statistics.median(values),
                    }
                )
                for name, values in times.items()
            ]
        if session.rank == 0:
            options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
