"""How long training pauses when its workers change: prints medians beside the marks.

    python tests/benchmarks/elastic_pauses.py [--repeats 10]

Run it on an idle machine. Each row is a job of real processes on this host, repeated; a pause
is what the slowest survivor sees between two finished steps, less a usual step.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import kfcore as kf
from kfcore.elastic import ElasticSampler, ElasticState
from kfcore.membership import RosterStore, found_job
from kfcore.store import StoreClient, StoreServer

ROOT = Path(__file__).resolve().parents[2]
SECRET = "pauses"
STEP_S = 0.002
CHANGE_AT, STEPS = 60, 120
WIDTH = 1000


def worker(out: Path, name: str, what: str, state_bytes: int) -> None:
    """Train on nothing, and note when each step ended (monotonic clock of this host)."""
    member = kf.join(timeout_s=60)
    weights = np.zeros(max(1, state_bytes // 8))
    state = ElasticState(weights=weights)
    sampler = ElasticSampler(STEPS * 8, global_batch=8)
    ends: list[float] = []
    with member, kf.ElasticJob(member, state, local_batch=2, learning_rate=1) as job:
        for _ in job.batches(sampler):
            step = job.steps + 1
            if step == CHANGE_AT and name == "r1":
                if what == "kill":
                    (out / "killed").write_text(repr(time.monotonic()))
                    os.kill(os.getpid(), 9)
                if what == "leave":
                    member.leave()
            if step == CHANGE_AT and what == "join":
                while len(member.roster.members) + len(member.roster.joiners) < 3:
                    time.sleep(0.001)
            if step == CHANGE_AT and what == "schedule":
                job.controller.propose(kf.SetSchedule("star"))
            time.sleep(STEP_S)
            job.step([np.ones(WIDTH)])
            with state.changing():
                weights += 1  # or a state sent earlier would do
            ends.append(time.monotonic())
            (out / f"{name}.json").write_text(json.dumps(ends)) if step == STEPS else None


def run(what: str, n: int, state_bytes: int) -> tuple[float, float]:
    """One job; seconds of pause, and seconds from a kill to the end of the step it broke."""
    with (
        tempfile.TemporaryDirectory() as folder,
        StoreServer(secret=SECRET) as server,
        StoreClient(server.address, SECRET) as store,
    ):
        found_job(store, founders=n, min_size=1, max_size=8)

        def start(name: str, rank: int) -> subprocess.Popen[bytes]:
            arguments = [folder, name, what, str(state_bytes)]
            return subprocess.Popen(
                [sys.executable, __file__, "--worker", *arguments],
                env=os.environ
                | {
                    "PYTHONPATH": str(ROOT),
                    "KF_RANK": str(rank),
                    "KF_WORLD_SIZE": str(max(n, rank + 1)),
                    "KF_STORE": server.address,
                    "KF_JOB_SECRET": SECRET,
                },
            )

        workers = [start(f"r{rank}", rank) for rank in range(n)]
        if what == "join":
            rosters = RosterStore(store)
            key = 0
            roster, key = rosters.wait(key, 60)
            while roster.version == 0:
                roster, key = rosters.wait(key, 60)
            workers.append(start("j", n))
        for process in workers:
            process.wait(120)
        survivors = [json.loads(path.read_text()) for path in Path(folder).glob("r*.json")]
        pauses, after_kill = [], []
        for ends in survivors:
            gaps = np.diff(ends)
            pauses.append(float(np.max(gaps[CHANGE_AT - 1 :])) - float(np.median(gaps)))
            if what == "kill":
                killed = float((Path(folder) / "killed").read_text())
                after_kill.append(min(end for end in ends if end > killed) - killed)
        return max(pauses), max(after_kill, default=float("nan"))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--only", help="kill, leave, join or schedule; none: all")
    parser.add_argument("--worker", nargs=4)
    arguments = parser.parse_args()
    if arguments.worker:
        folder, name, what, state_bytes = arguments.worker
        worker(Path(folder), name, what, int(state_bytes))
        return
    rows = [
        ("kill one of 3: next step ends", "kill", 3, 0, 300.0),
        ("one of 3 leaves: pause", "leave", 3, 0, 20.0),
        ("a third joins, 100 MB of state: pause", "join", 2, 100_000_000, 100.0),
        ("switch of schedule, 3 workers: pause", "schedule", 3, 0, 1.0),
    ]
    print(f"{'':40} {'median ms':>10} {'slowest':>10} {'mark':>8}   ({arguments.repeats} runs)")
    for title, what, n, state_bytes, mark in rows:
        if arguments.only not in (None, what):
            continue
        found = []
        for _ in range(arguments.repeats):
            pause_s, after_kill_s = run(what, n, state_bytes)
            found.append(1e3 * (after_kill_s if what == "kill" else pause_s))
        print(f"{title:40} {statistics.median(found):10.1f} {max(found):10.1f} {mark:8.0f}")


if __name__ == "__main__":
    main()
