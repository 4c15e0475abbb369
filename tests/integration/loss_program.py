"""Worlds of forked workers, one after the other, in each of which one is killed or stopped.

Arguments: the store's address, the transport, the signal, a folder for what the workers saw, a
time-out in seconds, elements of a buffer, and the names of collectives. Forking one
process that has loaded everything makes a world start within moments.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

from kfcore.config import Config
from kfcore.errors import KfError
from kfcore.store import StoreClient
from kfcore.world import open_session

RANKS, VICTIM = 4, 2
CALLS = {
    "all_reduce": lambda s, a: s.all_reduce(a, "max"),
    "all_reduce f16": lambda s, a: s.all_reduce(a.view(np.float16), "sum"),
    "grouped_all_reduce": lambda s, a: s.grouped_all_reduce(
        [a[:100], a[100:200], a[200:]], "max"
    ),
    "reduce": lambda s, a: s.reduce(a, "max"),
    "broadcast": lambda s, a: s.broadcast(a, 1),
    "all_gather": lambda s, a: s.all_gather(a),
    "gather": lambda s, a: s.gather(a, 3),
    "scatter": lambda s, a: s.scatter(a.reshape(RANKS, -1), 0),
    "reduce_scatter": lambda s, a: s.reduce_scatter(a.reshape(RANKS, -1), "max"),
    "all_to_all": lambda s, a: s.all_to_all(a.reshape(RANKS, -1)),
    "all_gather_uneven": lambda s, a: s.all_gather_uneven(a[: len(a) // (s.rank + 1)]),
    "all_to_all_uneven": lambda s, a: s.all_to_all_uneven(
        np.repeat(a[:1], 10), np.tile([1, 2, 3, 4], (RANKS, 1))
    ),
    "barrier": lambda s, _: s.barrier(),
    "send and recv": lambda s, a: s.around(a),
    "group": lambda s, a: s.pair.all_reduce(a, "max"),
    "consensus": lambda s, _: s.consensus(b"same"),
}


class Joined:
    """A session, a group of it, and a ring of messages; other calls are the session's."""

    def __init__(self, session):
        self._session = session
        self.pair = session.group([0, 1] if session.rank < 2 else [2, 3])

    def around(self, array):
        rank = self._session.rank
        handle = self._session.send(array, (rank + 1) % RANKS, async_op=True)
        self._session.recv(np.empty_like(array), (rank - 1) % RANKS)
        handle.wait()

    def __getattr__(self, name):
        return getattr(self._session, name)


def work(rank, version, name, count, config, transport, ready):
    """Call until it fails; what was seen."""
    with StoreClient(config.store_address, config.job_secret) as store:
        session = open_session(
            config.with_rank(rank), store, view_version=version, transport=transport
        )
        joined = Joined(session)
        array = np.ones(count, np.float32)
        CALLS[name](joined, array)
        os.write(ready, b"x")
        try:
            while True:
                CALLS[name](joined, array)
        except KfError as error:
            seen = {"error": type(error).__name__, "text": str(error)}
        try:
            session.barrier()
        except KfError as error:
            seen["again"] = str(error)
        session.close()
    return seen


def world(version, name, count, config, transport, number, folder):
    """One world: start, wait until all are at it, send the signal, wait for the others."""
    started, ready = os.pipe()
    pids = []
    for rank in range(RANKS):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                seen = work(rank, version, name, count, config, transport, ready)
                (folder / f"{name}.{rank}.json").write_text(json.dumps(seen))
                code = 0
            finally:
                os._exit(code)
        pids.append(pid)
    os.close(ready)
    calling = b""
    while len(calling) < RANKS:
        more = os.read(started, RANKS)
        if not more:
            raise SystemExit(f"{name}: a worker failed before it was at it")
        calling += more
    os.close(started)
    time.sleep(random.random() * 0.03)
    os.kill(pids[VICTIM], number)
    for rank in range(RANKS):
        if rank != VICTIM:
            os.waitpid(pids[rank], 0)
    if number == signal.SIGSTOP:
        os.kill(pids[VICTIM], signal.SIGCONT)
    os.waitpid(pids[VICTIM], 0)


def main():
    address, transport, number, folder, timeout_s, count, *names = sys.argv[1:]
    config = Config(
        0, RANKS, 0, address, job_id="j", job_secret="secret", timeout_s=float(timeout_s)
    )
    for version, name in enumerate(names, 1):
        world(version, name, int(count), config, transport, int(number), Path(folder))


if __name__ == "__main__":
    main()
