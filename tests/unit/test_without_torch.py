"""The core works where torch, or everything but NumPy, is not installed."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
for name in ("torch", "simpy", "matplotlib", "scipy", "sklearn"):
    sys.modules[name] = None  # importing it fails
import numpy as np
import kfcore as kf

def total(session):
    values = np.full(5, session.rank + 1.0)
    session.all_reduce(values)
    with kf.Job(session, local_batch=1, learning_rate=0.1) as job:
        job.step([values])
    return values.tolist()

print(kf.inproc_world(2, total))
try:
    import kfcore.torch
except ImportError:
    print("no torch")
"""


def test_collectives_and_jobs_need_no_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str([[3.0] * 5] * 2), "no torch"]
