"""Resizes jobs of each system, then simulated ones with what that cost; a row a resize."""

import dataclasses
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from experiments._shared.elastic.jobs import missing, running
from experiments._shared.record import RowWriter, read_rows
from experiments._shared.runner import Progress
from kfcore.errors import KfError
from kfcore.faults import Fault, FaultPlan
from kfsim import simulate
from kfsim.scenario import parse

SMALL, LARGE = 8000, 100_000_000
# system, workers at the start, workers wanted, bytes of state, repeats
QUICK = (
    ("kf", 1, 2, SMALL, 5),
    ("horovod", 2, 3, SMALL, 1),
)
FULL = (
    ("kf", 1, 2, SMALL, 10),
    ("kf", 1, 4, SMALL, 10),
    ("kf", 2, 3, LARGE, 10),
    ("horovod", 2, 3, SMALL, 5),
)
SIMULATED = {"quick": (2, 8, 64, 512), "full": (2, 4, 8, 16, 32, 64, 128, 256, 512)}
STEADY_STEPS, STEADY_S = 20, 1.0
NIC_GBPS = 10.0
KEY = ("world", "system", "old", "new", "state_bytes", "change", "repeat")
VALUES = ("latency_s", "pause_s", "start_s")


def run(out: Path, seed: int, quick: bool, progress: Progress) -> dict[str, Any]:
    """Real rows, then simulated ones; see README.md."""
    size = "quick" if quick else "full"
    left_out = [reason for reason in (missing("horovod"),) if reason]
    points = [
        (repeat, system, old, new, state)
        for system, old, new, state, repeats in (QUICK if quick else FULL)
        for repeat in range(repeats)
        if missing(system) is None
    ]
    points.sort(key=lambda point: point[0])  # the systems take turns
    total = len(points) + len(SIMULATED[size])
    with RowWriter(out / "rows.csv", [*KEY, *VALUES], key=KEY) as rows:
        for done, (repeat, system, old, new, state) in enumerate(points):
            progress(done, total, f"{system}, {old} to {new} workers, run {repeat}")
            key = {"world": "real", "state_bytes": state, "system": system, "repeat": repeat}
            ways = {"out": (old, new), "in": (new, old)}
            if rows.has(**key, change="in", old=new, new=old):
                continue
            try:
                found = resized(system, old, new, state)
            except KfError as error:
                left_out.append(f"{system}, {old} to {new}, run {repeat}: {error}"[:300])
                continue
            for change, row in found.items():
                begin, end = ways[change]
                if not rows.has(**key, change=change, old=begin, new=end):
                    rows.add(**key, change=change, old=begin, new=end, **row)
        costs = real_costs(out / "rows.csv")
        for done, most in enumerate(SIMULATED[size], len(points)):
            progress(done, total, f"simulated, {most} workers")
            for change, state in (("out", SMALL), ("out", LARGE), ("in", SMALL)):
                old, new = (1, most) if change == "out" else (most, 1)
                key = {"world": "simulated", "system": "kf", "old": old, "new": new}
                key |= {"state_bytes": state, "change": change, "repeat": 0}
                if not rows.has(**key):
                    rows.add(**key, start_s=None, **simulated(old, new, state, costs))
    progress(total, total, "done")
    return {
        "repeats": max(point[0] for point in points) + 1,
        "costs_s": costs,
        "nic_gbps": NIC_GBPS,
        "seed_is_unused": f"nothing here is random; seed {seed}",
        "left_out": left_out,
    }


def resized(system: str, old: int, new: int, state_bytes: int) -> dict[str, dict[str, Any]]:
    """One job, made larger and then smaller again; what both took."""
    plan = {"state_bytes": state_bytes}
    with (
        tempfile.TemporaryDirectory(prefix="kf-resize-") as folder,
        running(system, Path(folder), old, new, plan) as job,
    ):
        job.until("steady", lambda: len(job.steps) > STEADY_STEPS)
        asked_s = job.resize(new)
        end_s = job.first_after(asked_s, new)
        starts = [float(path.read_text()) for path in job.folder.glob("ready-*")]
        late = [start - asked_s for start in starts if start > asked_s]
        found = {"out": job.took(asked_s, end_s) | {"start_s": max(late, default=None)}}
        time.sleep(STEADY_S)
        asked_s = job.resize(old)
        end_s = job.first_after(asked_s, old)
        return {**found, "in": job.took(asked_s, end_s) | {"start_s": None}}


def real_costs(path: Path) -> dict[str, float]:
    """Medians of our own real rows with the small state, seconds."""
    ours = [
        row
        for row in read_rows(path)
        if row["system"] == "kf" and row["world"] == "real" and row["state_bytes"] == SMALL
    ]

    def median(change: str, name: str) -> float:
        found = [row[name] for row in ours if row["change"] == change and row[name] is not None]
        return max(0.0, statistics.median(found)) if found else 0.0

    return {
        "join_s": median("out", "start_s"),
        "pause_s": median("out", "pause_s"),
        "leave_s": median("in", "pause_s"),
    }


def simulated(old: int, new: int, state_bytes: int, costs: dict[str, float]) -> dict[str, Any]:
    """The same in `kfsim`: a fault plan makes the job larger, or smaller."""
    at, steps = 5, 12
    if new > old:
        faults = [Fault("join", at, workers=new - old)]
    else:
        faults = [Fault("leave", at, rank=rank) for rank in range(old - new)]
    state_s = 0.0
    if new > old:  # each source sends its share to each newcomer
        state_s = state_bytes * (new - old) / old * 8 / (NIC_GBPS * 1e9)
    step_s = 0.25
    steps += int(costs["join_s"] / step_s)
    scenario = parse(
        {
            "run": {"steps": steps},
            "cluster": {"hosts": old, "nic_gbps": NIC_GBPS},
            "workload": {"model": "resnet50", "samples_per_s": 4 / step_s, "local_batch": 4},
            "system": {"kind": "kf"},
            "resize": {
                "join_s": costs["join_s"],
                "state_s": costs["pause_s"] + state_s,
                "leave_s": costs["leave_s"],
            },
        }
    )
    events = simulate(dataclasses.replace(scenario, faults=FaultPlan(tuple(faults)))).events
    asked_s = next(event["time_s"] for event in events if event["kind"] == "fault")
    views = [event for event in events if event["kind"] == "view"]
    # the event of a view has the time of the boundary, at which the pause begins
    end_s = next(event["time_s"] for event in views if len(event["new"]) == new)
    pause_s = costs["pause_s"] + state_s if new > old else costs["leave_s"]
    return {"latency_s": end_s - asked_s + pause_s, "pause_s": pause_s}
