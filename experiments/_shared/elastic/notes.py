"""What every worker of these jobs does alike: note finished steps, die or resize when planned.

Imports nothing of this project: baselines run it in environments of their own. Times are those
of the host's monotonic clock.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

__all__ = ["Notes"]


class Notes:
    """One worker's file of steps, and the plan.

    Arguments of the program: a folder, and a plan as JSON with ``step_s`` (computing of a
    step), ``state_bytes`` and, where wanted, ``kill`` (step at which the victim dies).
    """

    def __init__(self) -> None:
        self.folder = Path(sys.argv[1])
        self.plan = json.loads(sys.argv[2])
        self._steps = (self.folder / f"{os.getpid()}.steps").open("w", buffering=1)

    def compute(self, step: int, *, victim: bool) -> None:
        """The work of a step; the victim dies at its end, once a job."""
        time.sleep(self.plan["step_s"])
        if victim and step == self.plan.get("kill") and self.once("decided"):
            os.kill(os.getpid(), signal.SIGKILL)

    def resize_due(self, now: int) -> int:
        """Workers that the experiment wants from now on; 0: as many as there are."""
        try:
            wanted = int((self.folder / "wanted").read_text())
        except FileNotFoundError:
            return 0
        return wanted if wanted != now and self.once(f"asked-{wanted}") else 0

    def stepped(self, step: int, workers: int) -> None:
        """Note that a step is over."""
        self._steps.write(f"{step} {time.monotonic()!r} {workers}\n")

    @property
    def enough(self) -> bool:
        """Whether the experiment has seen what it wanted."""
        return (self.folder / "enough").exists()

    def once(self, name: str) -> bool:
        """Write the time into a file, unless it is there; whether it was not."""
        part = self.folder / f"{name}.{os.getpid()}.part"
        part.write_text(repr(time.monotonic()))
        try:
            os.link(part, self.folder / name)  # whole or not there
        except FileExistsError:
            return False
        finally:
            part.unlink()
        return True
