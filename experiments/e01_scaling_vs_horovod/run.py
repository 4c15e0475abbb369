"""Four models on 1 to 512 VMs under five systems; a row a model, system, size and repeat."""

from pathlib import Path
from typing import Any

from experiments._shared.grid import fill_rows, grid, repeat_seeds
from experiments._shared.record import read_rows
from experiments._shared.runner import Progress
from kfsim import load, simulate

HERE = Path(__file__).resolve().parent
SYSTEMS = ("ideal", "kf", "kf_ring", "horovod_tuned", "horovod_untuned")
MODELS = {row["model"]: row for row in read_rows(HERE / "models.csv")}
VMS = {
    "quick": {"resnet50": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)},
    "full": dict.fromkeys(MODELS, (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)),
}
OTHER_VMS = (1, 8, 32, 128, 512)  # of the other models, quick
# Trees at many hosts are replayed message by message with shared links: costly.
MOST_TREES = {"quick": {"resnet50": 128, "other": 32}, "full": {"resnet50": 512, "other": 512}}
STEPS = {"quick": 6, "full": 50}
REPEATS = {"quick": 5, "full": 10}
WARMUP_STEPS = 2
VALUES = ("throughput_samples_per_s", "step_s", "exposed_s", "sent_bytes_per_step")


def run(out: Path, seed: int, quick: bool, progress: Progress) -> dict[str, Any]:
    """All systems at all sizes; each repeat has jitter of its own, the same for all systems."""
    size = "quick" if quick else "full"
    seeds = repeat_seeds(seed, REPEATS[size])
    scenarios = {name: load(HERE / f"scenario_{name}.toml") for name in SYSTEMS}

    def measure(model: str, system: str, vms: int, repeat: int) -> dict[str, Any]:
        values = {
            "cluster.hosts": vms,
            "workload.model": model,
            "workload.samples_per_s": float(MODELS[model]["samples_per_s"]),
            "workload.local_batch": MODELS[model]["local_batch"],
            "run.steps": STEPS[size],
            "run.warmup_steps": WARMUP_STEPS,
            "run.seed": seeds[repeat],
        }
        summary = simulate(scenarios[system].with_values(values)).summary
        return {
            "throughput_samples_per_s": summary["throughput_samples_per_s"],
            "step_s": summary["step_s"],
            "exposed_s": summary["exposed_s"],
            "sent_bytes_per_step": summary["bytes_sent_per_rank_step"],
        }

    points = [
        point
        for model in MODELS
        for point in grid(
            model=(model,),
            system=SYSTEMS,
            vms=VMS[size].get(model, OTHER_VMS),
            repeat=range(REPEATS[size]),
        )
        if point["system"] != "kf" or point["vms"] <= _most_trees(size, model)
    ]
    fill_rows(out / "rows.csv", points, measure, VALUES, progress)
    return {
        "repeats": REPEATS[size],
        "seeds": seeds,
        "steps": STEPS[size],
        "warmup_steps": WARMUP_STEPS,
        "left_out": [f"trees above {_most_trees(size, m)} VMs with {m}" for m in MODELS]
        if quick
        else [],
    }


def _most_trees(size: str, model: str) -> int:
    limits = MOST_TREES[size]
    return limits.get(model, limits["other"])
