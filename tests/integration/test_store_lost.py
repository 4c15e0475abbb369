"""The process that keeps the store dies: the others say so and end, they never hang."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from kfcore.store import StoreServer

pytestmark = pytest.mark.processes
ROOT = Path(__file__).resolve().parents[2]
TRAIN = """
    import numpy, kfcore
    with kfcore.init() as session:
        while True:
            session.all_reduce(numpy.ones(8))
            print("step", flush=True)
"""


def test_the_worker_that_keeps_the_store_dies_and_the_others_name_it(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(TRAIN))
    for _ in range(5):  # the port may be taken between the probe and the job
        with StoreServer() as probe:
            port = int(probe.address.rpartition(":")[2])
        workers = start(path, port - 1, tmp_path)
        while workers[0].poll() is None and not (tmp_path / "out0").read_text():
            time.sleep(0.02)
        if workers[0].poll() is None:
            break
        for worker in workers:
            worker.kill()
            worker.wait()
    workers[0].send_signal(signal.SIGKILL)
    assert [worker.wait(timeout=90) for worker in workers] == [-signal.SIGKILL, 1, 1]
    for rank in (1, 2):
        last = (tmp_path / f"err{rank}").read_text().splitlines()[-1]
        assert "PeerLostError: rank 0 was lost" in last


def start(path, master_port, folder):
    workers = []
    for rank in range(3):
        env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "RANK": str(rank),
            "WORLD_SIZE": "3",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(master_port),
        }
        out, err = (folder / f"out{rank}").open("w"), (folder / f"err{rank}").open("w")
        workers.append(
            subprocess.Popen([sys.executable, str(path)], env=env, stdout=out, stderr=err)
        )
    return workers
