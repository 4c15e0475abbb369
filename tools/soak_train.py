"""The program that `tools/soak.py` runs: trains, changes schedules, writes weights' digests.

Usage: soak_train.py STEPS SEED FOLDER. A worker writes ``<pid>.txt``, a line ``step digest``
for each 50th step; weights depend on all gradients, so equal digests mean that no step was
lost, repeated or different anywhere.
"""

import hashlib
import os
import sys
import time
from pathlib import Path

import numpy as np

import kfcore as kf
from kfcore.elastic import ElasticState

SCHEDULES = ("ring", "star", "binary_tree", "recursive_doubling", "double_binary_tree")
SIZE = 20_000


class Changes(kf.Policy):
    """Another schedule every 30 steps, as the seed says; the same on all workers."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def after_step(self, seen: kf.Observation) -> kf.SetSchedule | None:
        """Ask for it."""
        if seen.step % 30:
            return None
        choice = np.random.default_rng([self.seed, seen.step]).integers(len(SCHEDULES))
        return kf.SetSchedule(SCHEDULES[choice], reason="soak")


def main() -> None:
    """Train until all steps are done."""
    steps, seed, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    weights = np.zeros(SIZE)
    direction = np.linspace(-1, 1, SIZE)
    with (
        kf.join() as member,
        kf.ElasticJob(
            member,
            ElasticState(weights=weights),
            local_batch=4,
            learning_rate=1e-3,
            policies=[Changes(seed)],
        ) as job,
        (folder / f"{os.getpid()}.txt").open("w") as digests,
    ):
        while not job.stopped and job.steps < steps:
            for indices in job.batches(10_000, seed=seed):
                time.sleep(0.01)  # or all is over before a joiner has started
                grads = [direction * indices.mean() + 1e-3 * weights]
                if not job.step(grads).skipped:
                    weights -= job.learning_rate * grads[0]
                if job.steps % 50 == 0:
                    text = hashlib.sha256(weights.tobytes()).hexdigest()[:16]
                    digests.write(f"{job.steps} {text}\n")
                    digests.flush()
                if job.steps >= steps:
                    break


if __name__ == "__main__":
    main()
