"""One rank: ``python worker.py SCHEDULE:SIZE,SIZE...`` times all-reduces over TCP, always.

Hosts made of network namespaces share this machine's memory, and the runtime would use it.
Before each operation all links rest, so that each finds full token buckets, as the simulated
one does; without that a small operation is timed by what the one before it left.
"""

import json
import sys
import time

import numpy as np

from kfcore.bench import iterations_for
from kfcore.errors import InternalError
from kfcore.session import Session
from kfcore.world import init

MOST_ITERATIONS = 20
WARM_UP = 2
REST_S = 0.02  # the longest that a bucket of tools/hosts.py takes to fill: 64 KiB at 50 Mbit/s


def median_s(session: Session, size: int) -> float:
    """Median of the slowest rank's times of one size, seconds; results are checked."""
    buffer = np.empty(size // 4, np.float32)
    count = min(MOST_ITERATIONS, iterations_for(size, None))
    samples = np.empty(count)
    for i in range(-WARM_UP, count):
        buffer.fill(1.0)
        session.barrier()
        time.sleep(REST_S)
        session.barrier()
        start = time.perf_counter()
        session.all_reduce(buffer)
        if i >= 0:
            samples[i] = time.perf_counter() - start
        if not np.all(buffer == session.world_size):
            raise InternalError(f"all-reduce of {size} bytes is wrong on rank {session.rank}")
    session.all_reduce(samples, "max")
    return float(np.median(samples))


def main() -> None:
    """Rank 0 prints one row a schedule and size as JSON."""
    rows = []
    with init(transport="tcp") as session:
        for word in sys.argv[1:]:
            spec, _, sizes = word.rpartition(":")
            session.set_schedule(spec)
            rows += [
                {"schedule": spec, "buffer_bytes": size, "p50_s": median_s(session, size)}
                for size in map(int, sizes.split(","))
            ]
        if session.rank == 0:
            sys.stdout.write(json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
