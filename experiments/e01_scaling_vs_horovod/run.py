"""Simulates ResNet-50 on 1 to 256 VMs under four systems; a row a system, size and repeat."""

from pathlib import Path
from typing import Any

import numpy as np

from experiments._shared.record import RowWriter
from experiments._shared.runner import Progress
from kfsim import load, simulate

HERE = Path(__file__).resolve().parent
SYSTEMS = ("ideal", "kf", "horovod_tuned", "horovod_untuned")
VMS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
STEPS = {"quick": 10, "full": 50}
REPEATS = {"quick": 3, "full": 10}
WARMUP_STEPS = 2
COLUMNS = (
    "system",
    "vms",
    "repeat",
    "throughput_samples_per_s",
    "step_s",
    "exposed_s",
    "sent_bytes_per_step",
)


def run(out: Path, seed: int, quick: bool, progress: Progress) -> dict[str, Any]:
    """All systems at all sizes; each repeat has jitter of its own, the same for all systems."""
    size = "quick" if quick else "full"
    steps, repeats = STEPS[size], REPEATS[size]
    seeds = [int(s) for s in np.random.SeedSequence(seed).generate_state(repeats)]
    scenarios = {name: load(HERE / f"scenario_{name}.toml") for name in SYSTEMS}
    todo = [(n, name, repeat) for n in VMS for name in SYSTEMS for repeat in range(repeats)]
    with RowWriter(out / "rows.csv", COLUMNS, key=COLUMNS[:3]) as rows:
        for done, (vms, name, repeat) in enumerate(todo):
            progress(done, len(todo), f"{name}, {vms} VMs")
            if rows.has(system=name, vms=vms, repeat=repeat):
                continue
            values = {
                "cluster.hosts": vms,
                "run.steps": steps,
                "run.warmup_steps": WARMUP_STEPS,
                "run.seed": seeds[repeat],
            }
            summary = simulate(scenarios[name].with_values(values)).summary
            rows.add(
                system=name,
                vms=vms,
                repeat=repeat,
                throughput_samples_per_s=summary["throughput_samples_per_s"],
                step_s=summary["step_s"],
                exposed_s=summary["exposed_s"],
                sent_bytes_per_step=summary["bytes_sent_per_rank_step"],
            )
        progress(len(todo), len(todo), "done")
    return {"repeats": repeats, "seeds": seeds, "steps": steps, "warmup_steps": WARMUP_STEPS}
