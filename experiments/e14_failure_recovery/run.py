"""Kills a worker of each system; a row a run."""

import tempfile
from pathlib import Path
from typing import Any

from experiments._shared.elastic.jobs import SYSTEMS, missing, running
from experiments._shared.record import RowWriter
from experiments._shared.runner import Progress
from kfcore.errors import KfError

WORKERS, KILL_STEP = 3, 20
REPEATS = {
    "quick": {"kf": 5, "torchrun": 1, "horovod": 1},
    "full": {"kf": 15, "torchrun": 10, "horovod": 10},
}
KEY = ("system", "repeat")
VALUES = ("workers", "workers_after", "next_step_s", "survivors", "steps_lost")


def run(out: Path, seed: int, quick: bool, progress: Progress) -> dict[str, Any]:
    """All runs, the systems in turn; see README.md."""
    repeats = REPEATS["quick" if quick else "full"]
    left_out = [reason for reason in map(missing, SYSTEMS) if reason]
    systems = [system for system in SYSTEMS if missing(system) is None]
    most = max(repeats[system] for system in systems)
    points = [(s, r) for r in range(most) for s in systems if r < repeats[s]]
    with RowWriter(out / "rows.csv", [*KEY, *VALUES], key=KEY) as rows:
        for done, (system, repeat) in enumerate(points):
            progress(done, len(points), f"{system}, run {repeat}")
            if rows.has(system=system, repeat=repeat):
                continue
            try:
                rows.add(system=system, repeat=repeat, **recover(system))
            except KfError as error:  # it did not even begin
                left_out.append(f"{system}, run {repeat}: {error}"[:300])
        progress(len(points), len(points), "done")
    return {
        "repeats": most,
        "repeats_of": {system: repeats[system] for system in systems},
        "seed_is_unused": f"times do not depend on the seed {seed}",
        "left_out": left_out,
    }


def recover(system: str) -> dict[str, Any]:
    """One job; from the kill to the next step."""
    with (
        tempfile.TemporaryDirectory(prefix="kf-recovery-") as folder,
        running(system, Path(folder), WORKERS, WORKERS, {"kill": KILL_STEP}) as job,
    ):
        job.until("killed", (job.folder / "decided").exists)
        killed_s = job.decided_s
        try:
            next_s = job.first_after(killed_s)
        except KfError:  # it did not recover: a row without a time
            return {**dict.fromkeys(VALUES), "workers": WORKERS}
        before = max(step for end, step, _ in job.steps if end <= killed_s)
        after = [(step, n) for end, step, n in job.steps if end == next_s]
        lived = 0
        for path in job.folder.glob("*.steps"):
            ends = [float(line.split()[1]) for line in path.read_text().split("\n")[:-1]]
            lived += bool(ends) and min(ends) < killed_s < max(ends)
        return {
            "workers": WORKERS,
            "workers_after": after[0][1],
            "next_step_s": next_s - killed_s,
            "survivors": lived,
            "steps_lost": max(0, before + 1 - after[0][0]),
        }
