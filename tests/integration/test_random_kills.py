"""Ranks that die at any moment of any collective: every survivor says whom, at once."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kfcore.config import Config
from kfcore.store import StoreServer

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.processes

WORKER = """
import itertools, sys, time
import numpy as np
import kfcore
from kfcore import errors

session = kfcore.init(schedule=sys.argv[1], transport=sys.argv[2])
n = session.world_size
print("ready", flush=True)
try:
    for i in itertools.count():
        size = 1 << 19 if i % 3 == 0 else 250
        a = np.ones(size, np.float32)
        rows = np.ones((n, size), np.float32)
        root = i % n
        (
            lambda: session.all_reduce(a),
            lambda: session.broadcast(a, root),
            lambda: session.reduce(a, root=root),
            lambda: session.barrier(),
            lambda: session.all_gather(a),
            lambda: session.gather(a, root),
            lambda: session.scatter(rows, root),
            lambda: session.reduce_scatter(rows),
            lambda: session.all_to_all(rows),
        )[i % 9]()
except errors.KfError as error:
    print(time.time(), type(error).__name__, error)
    try:
        session.barrier()
    except errors.KfError as again:
        assert str(again) == str(error)
        print("dead")
"""
SCHEDULES = ("ring", "auto", "clique", "star", "halving_doubling", "binary_tree")


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("seed", range(5))
def test_every_survivor_names_the_rank_that_died(seed, transport):
    draw = random.Random(1000 * (transport == "tcp") + seed)
    n, schedule = draw.choice([2, 3, 4]), draw.choice(SCHEDULES)
    victim = draw.randrange(n)
    number = draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
    with StoreServer(secret="k") as store:
        job = Config(0, n, 0, store.address, job_id="j", job_secret="k", timeout_s=60)
        workers = [
            subprocess.Popen(
                [sys.executable, "-c", WORKER, schedule, transport],
                env={**os.environ, **job.with_rank(rank).to_env(), "PYTHONPATH": str(ROOT)},
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for rank in range(n)
        ]
        try:
            for worker in workers:
                assert worker.stdout.readline() == "ready\n"
            time.sleep(draw.random() * 0.5)
            workers[victim].send_signal(number)
            killed = time.time()
            for rank, worker in enumerate(workers):
                out, err = worker.communicate(timeout=20)
                if rank == victim:
                    continue
                when, said = out.split(" ", 1)
                assert said.startswith(f"PeerLostError rank {victim} was lost"), (rank, out)
                assert said.endswith("\ndead\n"), (rank, out)
                assert float(when) - killed < 10, out  # the deadline is six times as far
                assert worker.returncode == 0, err
        finally:
            for worker in workers:
                worker.kill()
                worker.communicate()
