"""A child of the launcher that outlives it: stops the workers if the launcher is killed.

Run as a script by file name, with the standard library only, so it starts in milliseconds.
Reads ``+<group>`` and ``-<group>`` lines from standard input; at end of file, which is the
launcher's death however it came, it stops the process groups that are still listed.
"""

import os
import signal
import sys
import time

GRACE_S = 1.0


def stop(groups: set[int]) -> None:
    """Ask all groups to end, then make them."""
    for number, pause_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, 0.0)):
        for group in list(groups):
            try:
                os.killpg(group, number)
            except OSError:  # all of it has gone
                groups.discard(group)
        if groups and pause_s:
            time.sleep(pause_s)


def main() -> None:
    """Follow the launcher until its end of the pipe closes."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        if line[0] == "+":
            groups.add(group)
        else:
            groups.discard(group)
    stop(groups)


if __name__ == "__main__":
    main()
