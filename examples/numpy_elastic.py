"""Least squares in plain NumPy on workers that come and go: `kf run -n 3 --elastic 1:4`.

Worker 1 leaves in order after 10 steps and worker 2 is killed after 20; the one that is left
has the weights of a run that used each sample once a pass.
"""

import os
import signal

import numpy as np

import kfcore as kf
from kfcore.elastic import ElasticSampler, ElasticState

SAMPLES, EPOCHS = 240, 3


def main() -> None:
    draws = np.random.default_rng(0)
    x = draws.normal(size=(SAMPLES, 8))
    y = x @ np.arange(8.0)
    weights = np.zeros(8)
    sampler = ElasticSampler(SAMPLES, global_batch=24)
    with (
        kf.join() as member,
        kf.ElasticJob(
            member, ElasticState(weights=weights), local_batch=8, learning_rate=0.2
        ) as job,
    ):
        while job.epoch < EPOCHS:
            for rows in job.batches(sampler):
                gradient = x[rows].T @ (x[rows] @ weights - y[rows]) / len(rows)
                if not job.step([gradient]).skipped:
                    weights -= job.learning_rate * gradient
                if job.steps == 10 and os.environ.get("KF_RANK") == "1":
                    member.leave()
                if job.steps == 20 and os.environ.get("KF_RANK") == "2":
                    os.kill(os.getpid(), signal.SIGKILL)
        error = np.abs(weights - np.arange(8.0)).max()
        print(f"{job.steps} steps, {job.controller.samples} samples: error {error:.3f}")


if __name__ == "__main__":
    main()
