"""A simulated run as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open."""

import json
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

__all__ = ["Timeline"]

Times = NDArray[np.float64]


class Timeline:
    """Writes one process a rank with two threads: computing, and waiting for averages.

    Spans go to the file as they come; the file is JSON once closed.

    Args:
        path: File to write.
        ranks: Only the first so many are drawn, >= 1.
    """

    def __init__(self, path: str | Path, ranks: int = 64) -> None:
        self._ranks = ranks
        self._named = 0
        self._file = Path(path).open("w", encoding="utf-8")  # noqa: SIM115 - closed in __exit__
        self._file.write('{"displayTimeUnit":"ms","traceEvents":[')
        self._first = True

    def __enter__(self) -> "Timeline":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.write("\n]}\n")
        self._file.close()

    def step(self, step: int, began_s: Times, computed_s: Times, finish_s: Times) -> None:
        """Adds one step.

        Args:
            step: Its number.
            began_s: [world_size] when each rank began, seconds.
            computed_s: [world_size] when its backward pass ended.
            finish_s: [world_size] when it had all averages.
        """
        count = min(self._ranks, len(began_s))
        for rank in range(self._named, count):
            self._write({"name": "process_name", "ph": "M", "pid": rank,
                         "args": {"name": f"rank {rank}"}})  # fmt: skip
        self._named = max(self._named, count)
        for rank in range(count):
            spans = (
                ("compute", 0, float(began_s[rank]), float(computed_s[rank])),
                ("wait for averages", 1, float(computed_s[rank]), float(finish_s[rank])),
            )
            for name, thread, begin, end in spans:
                self._write({
                    "name": name, "ph": "X", "pid": rank, "tid": thread,
                    "ts": round(begin * 1e6, 3), "dur": round(max(0.0, end - begin) * 1e6, 3),
                    "args": {"step": step},
                })  # fmt: skip

    def _write(self, event: dict[str, object]) -> None:
        self._file.write("\n" if self._first else ",\n")
        self._first = False
        self._file.write(json.dumps(event))
