"""One rank: ``python worker.py SCHEDULE SIZE...`` times all-reduces over TCP, always.

Hosts made of network namespaces share this machine's memory, and the runtime would use it.
"""

import json
import sys
from dataclasses import asdict

from kfcore.bench import all_reduce_rows
from kfcore.world import init


def main() -> None:
    """Rank 0 prints one row a size as JSON."""
    spec, *sizes = sys.argv[1:]
    with init(schedule=spec, transport="tcp") as session:
        rows = all_reduce_rows(session, [int(size) for size in sizes])
        if session.rank == 0:
            sys.stdout.write(json.dumps([asdict(row) for row in rows]) + "\n")


if __name__ == "__main__":
    main()
