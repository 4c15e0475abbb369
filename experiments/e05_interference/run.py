"""Trains through a star whose root is disturbed, with and without the policy; a row a step."""

from pathlib import Path
from typing import Any

from experiments._shared.grid import repeat_seeds
from experiments._shared.real_hosts import why_not
from experiments._shared.record import RowWriter
from experiments._shared.runner import Progress
from experiments.e05_interference.real import real_rates
from kfsim import load, simulate

HERE = Path(__file__).resolve().parent
VARIANTS = {"adaptive": ["InterferenceSchedule"], "fixed": []}
REPEATS = {"quick": 5, "full": 20}
REAL_STEPS = 30
KEY = ("world", "variant", "repeat", "step")
COLUMNS = (*KEY, "samples_per_s_per_worker", "root")
WARMUP_STEPS = 5


def run(out: Path, seed: int, quick: bool, progress: Progress) -> dict[str, Any]:
    """Both worlds, both variants, each repeat; see README.md."""
    repeats = REPEATS["quick" if quick else "full"]
    seeds = repeat_seeds(seed, repeats)
    reason = why_not()
    worlds = {"simulated": simulated_rates} | ({} if reason else {"real": real_rates})
    todo = [(w, v, r) for w in worlds for r in range(repeats) for v in VARIANTS]
    with RowWriter(out / "rows.csv", COLUMNS, key=KEY) as rows:
        for done, (world, variant, repeat) in enumerate(todo):
            progress(done, len(todo), f"{world}, {variant}, repeat {repeat}")
            steps = REAL_STEPS if world == "real" else load(HERE / "scenario.toml").run.steps
            if rows.has(world=world, variant=variant, repeat=repeat, step=steps):
                continue
            for step, rate, root in worlds[world](out, VARIANTS[variant], seeds[repeat]):
                if not rows.has(world=world, variant=variant, repeat=repeat, step=step):
                    rows.add(
                        world=world,
                        variant=variant,
                        repeat=repeat,
                        step=step,
                        samples_per_s_per_worker=rate,
                        root=root,
                    )
        progress(len(todo), len(todo), "done")
    return {
        "repeats": repeats,
        "seeds": seeds,
        "warmup_steps": WARMUP_STEPS,
        "left_out": [f"the real part: {reason}"] if reason else [],
    }


def simulated_rates(_out: Path, policies: list[str], seed: int) -> list[tuple[int, float, int]]:
    """Step, samples/s of one worker, and the star's root."""
    scenario = load(HERE / "scenario.toml").with_values({"run.seed": seed})
    rows = simulate(scenario, policies=policies).rows
    return [
        (row["step"], row["local_batch"] / row["step_s"], root_of(row["schedule"]))
        for row in rows
    ]


def root_of(schedule: str) -> int:
    """The root in a spec such as ``star(root=1)``."""
    return int(schedule.partition("root=")[2].rstrip(")") or 0)
