"""One rank of e05's real job: sleeps instead of computing, all-reduces 1 MB a step.

python worker.py STEPS LOG
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

import kfcore as kf

LOCAL_BATCH = 32
COMPUTE_S = 0.05
ELEMENTS = 250_000


def main() -> None:
    """Train for some steps; rank 0 logs each."""
    steps, log = int(sys.argv[1]), Path(sys.argv[2])
    gradient = np.ones(ELEMENTS, dtype=np.float32)
    with (
        kf.init(schedule="star(root=0)", transport="tcp") as session,
        kf.Job(session, local_batch=LOCAL_BATCH, learning_rate=0.1) as job,
    ):
        last_s = time.perf_counter()
        for _ in job.batches(job.global_batch * steps, shuffle=False):
            root = int(job.controller.schedule.partition("root=")[2].rstrip(")") or 0)
            time.sleep(COMPUTE_S)
            job.step([gradient])
            now_s = time.perf_counter()
            if job.rank == 0:
                row = {
                    "step": job.steps,
                    "samples_per_s": LOCAL_BATCH / (now_s - last_s),
                    "root": root,
                }
                with log.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
            last_s = now_s


if __name__ == "__main__":
    main()
