"""One rank: ``python worker.py SCHEDULE:SIZE,SIZE...`` times all-reduces over TCP, always.

Hosts made of network namespaces share this machine's memory, and the runtime would use it.
"""

import json
import sys
from dataclasses import asdict

from kfcore.bench import all_reduce_rows, iterations_for
from kfcore.world import init

MOST_ITERATIONS = 20


def main() -> None:
    """Rank 0 prints one row a schedule and size as JSON."""
    rows = []
    with init(transport="tcp") as session:
        for word in sys.argv[1:]:
            spec, _, sizes = word.rpartition(":")
            session.set_schedule(spec)
            for size in map(int, sizes.split(",")):
                count = min(MOST_ITERATIONS, iterations_for(size, None))
                (row,) = all_reduce_rows(session, [size], iterations=count)
                rows.append({**asdict(row), "schedule": spec})
        if session.rank == 0:
            sys.stdout.write(json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
