"""Real elastic jobs for tests: starts workers as a launcher would, and checks what they did."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import elastic_program as program
import numpy as np

from kfcore.membership import RosterStore, found_job
from kfcore.store import StoreClient, StoreServer

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PATIENCE_S = 100.0
SECRET = "between us"


class ElasticWorld:
    """A job of ``program`` on this host. A context manager that leaves no process behind."""

    program_file = HERE / "elastic_program.py"
    patience_s = PATIENCE_S

    def __init__(
        self, folder: Path, n: int, plan: dict[str, Any], *, sizes: tuple[int, int] = (1, 8)
    ) -> None:
        self.folder, self.plan, self.n = folder, plan, n
        self.server = StoreServer(secret=SECRET)
        self.store = StoreClient(self.server.address, SECRET)
        found_job(self.store, founders=n, min_size=sizes[0], max_size=sizes[1])
        self.rosters = RosterStore(self.store)
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        for rank in range(n):
            self.start(f"r{rank}", rank)

    def start(self, name: str, rank: int) -> None:
        """Start a worker."""
        with (self.folder / f"{name}.err").open("wb") as err:
            self.workers[name] = subprocess.Popen(
                [
                    *(sys.executable, str(self.program_file)),
                    *(str(self.folder), json.dumps(self.plan), name),
                ],
                env=os.environ
                | {
                    "PYTHONPATH": str(ROOT),
                    "KF_RANK": str(rank),
                    "KF_WORLD_SIZE": str(max(self.n, rank + 1)),
                    "KF_STORE": self.server.address,
                    "KF_JOB_SECRET": SECRET,
                    "OMP_NUM_THREADS": "1",
                },
                stderr=err,
                cwd=ROOT,
                process_group=0,  # what a killed worker started is ended with its group
            )

    def join(self, name: str) -> None:
        """Start a worker that comes late."""
        self.start(name, self.n)

    def until(self, what: str, ready: Any) -> Any:
        """Wait until ``ready(roster)`` is true."""
        deadline = time.monotonic() + self.patience_s
        while time.monotonic() < deadline:
            roster, _ = self.rosters.read()
            if ready(roster):
                return roster
            time.sleep(0.01)
        raise AssertionError(f"never: {what}")

    def codes(self) -> dict[str, int]:
        """Exit codes of all workers, once they have ended."""
        return {name: worker.wait(self.patience_s) for name, worker in self.workers.items()}

    def log(self, name: str) -> list[dict[str, Any]]:
        """What a worker said."""
        path = self.folder / f"{name}.jsonl"
        if not path.exists():
            return []
        lines = path.read_text().split("\n")[:-1]  # the last one may be half a line
        return [json.loads(line) for line in lines]

    def last(self, name: str) -> dict[str, Any]:
        """What a worker said last."""
        log = self.log(name)
        assert log, (self.folder / f"{name}.err").read_text()
        return log[-1]

    def id_of(self, name: str) -> str:
        """Member id of a worker."""
        return str(self.log(name)[0]["id"])

    def views(self) -> list[dict[str, Any]]:
        """Changes of members in the event log."""
        lines = (self.folder / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["kind"] == "view"]

    def __enter__(self) -> "ElasticWorld":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers.values():
            if worker.poll() is None:
                worker.send_signal(signal.SIGKILL)
            worker.wait()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
        self.store.close()
        self.server.close()

    # ---- what must be true of every job -------------------------------------------------

    def check(self) -> None:
        """Each step committed once and alike, each sample once a pass, weights as serial."""
        logs = {name: self.log(name) for name in self.workers}
        logs = {name: log for name, log in logs.items() if log}
        ids = {log[0]["id"]: name for name, log in logs.items()}
        committed: dict[int, tuple[int, tuple[str, ...], bool]] = {}
        for name, log in logs.items():
            for line in log:
                if "step" not in line:
                    continue
                found = (line["view"], tuple(line["members"]), line["skipped"])
                before = committed.setdefault(line["step"], found)
                assert before == found, f"{name} committed step {line['step']} in another view"
        parts: dict[tuple[int, str], tuple[list[int], int]] = {}
        for name, log in logs.items():
            for line in log:
                if "at" in line:
                    parts[line["at"], name] = (line["part"], line["epoch"])
        ends = {name: log[-1] for name, log in logs.items() if "end" in log[-1]}
        assert ends, "nobody finished"
        steps = next(iter(ends.values()))["end"]
        assert sorted(committed) == list(range(1, steps + 1))
        adam = program.Adam()
        x, y = program.data_of(self.plan)
        used: Counter[tuple[int, int]] = Counter()
        for step in range(1, steps + 1):
            _, members, skipped = committed[step]
            mine = [parts[step, ids[member]] for member in members]
            indices = [index for part, _ in mine for index in part]
            used.update((mine[0][1], index) for index in indices)
            if not skipped:
                adam.apply(program.gradient(x, y, adam.w, np.array(indices)))
        samples, epochs = self.plan.get("samples", 60), self.plan.get("epochs", 2)
        assert used == Counter(
            {(epoch, index): 1 for epoch in range(epochs) for index in range(samples)}
        )
        for name, end in ends.items():
            np.testing.assert_allclose(end["w"], adam.w, rtol=1e-6, atol=1e-9, err_msg=name)
            assert end["updates"] == int(adam.t[0])
            assert end["samples"] == epochs * samples
