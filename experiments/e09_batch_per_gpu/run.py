"""Simulates 16 GPUs at five global batches under four systems; a row a batch and repeat."""

from pathlib import Path
from typing import Any

from experiments._shared.grid import fill_rows, grid, repeat_seeds
from experiments._shared.runner import Progress
from kfsim import load, simulate

HERE = Path(__file__).resolve().parent
SYSTEMS = ("kf", "horovod", "pair", "server")
GLOBAL_BATCHES = (256, 512, 1024, 2048, 4096)
GPUS = 16
REPEATS = {"quick": 5, "full": 20}


def run(out: Path, seed: int, quick: bool, progress: Progress) -> dict[str, Any]:
    """Every batch under every system."""
    repeats = REPEATS["quick" if quick else "full"]
    seeds = repeat_seeds(seed, repeats)
    scenarios = {name: load(HERE / f"scenario_{name}.toml") for name in SYSTEMS}

    def measure(system: str, global_batch: int, repeat: int) -> dict[str, Any]:
        values = {"workload.local_batch": global_batch // GPUS, "run.seed": seeds[repeat]}
        policies = [f"{HERE / 'policy.py'}:PairAveraging"] if system == "pair" else []
        summary = simulate(scenarios[system].with_values(values), policies=policies).summary
        return {
            "throughput_samples_per_s": summary["throughput_samples_per_s"],
            "step_s": summary["step_s"],
            "exposed_s": summary["exposed_s"],
        }

    points = grid(system=SYSTEMS, global_batch=GLOBAL_BATCHES, repeat=range(repeats))
    values = ("throughput_samples_per_s", "step_s", "exposed_s")
    fill_rows(out / "rows.csv", points, measure, values, progress)
    return {
        "repeats": repeats,
        "seeds": seeds,
        "warmup_steps": scenarios["kf"].run.warmup_steps,
    }
