"""Plays four contenders on drawn spot markets; a row a law, contender and repeat."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments._shared.grid import fill_rows, grid, repeat_seeds
from experiments._shared.runner import Progress
from experiments.e11_spot_market.market import LAWS, draw_price, draw_supply
from kfcore.events import Change
from kfcore.monitors import Metrics
from kfcore.policy.actions import Resize
from kfcore.policy.cost import CostAwareResize
from kfcore.policy.observation import Observation
from kfsim import load, simulate

SCENARIO = Path(__file__).resolve().parents[1] / "e06_provisioning" / "scenario.toml"
TICK_S, DEADLINE_H, LONGEST_H = 30.0, 10.0, 40.0
MOST, STATIC, WORK_H = 24, 8, 8.0
JOIN_S, LEAVE_S, RESTART_S, CHECKPOINT_S = 20.39, 0.04, 200.0, 600.0
LOCAL_BATCH = 8
CONTENDERS = ("on_demand", "spot_restart", "spot_all", "policy")
REPEATS = {"quick": 5, "full": 50}
VALUES = ("cost_usd", "time_s", "samples", "deadline_met", "removals", "resizes")


@functools.cache
def rates() -> tuple[float, ...]:
    """Simulated throughput of 0 to MOST workers, samples/s."""
    scenario = load(SCENARIO)
    return (
        0.0,
        *(
            simulate(
                scenario.with_values(
                    {"cluster.hosts": n, "run.steps": 6, "run.warmup_steps": 2, "run.seed": 1}
                )
            ).summary["throughput_samples_per_s"]
            for n in range(1, MOST + 1)
        ),
    )


def total_samples() -> int:
    """The work: what STATIC workers do in WORK_H hours."""
    return int(rates()[STATIC] * WORK_H * 3600)


@dataclass
class Tick:
    """What a contender sees and holds.

    Attributes:
        number: of the tick.
        spot: machines that the market has.
        removed: of the contender's spot machines, in this tick.
        held: spot machines that it holds now.
        on_demand: other machines that it holds now.
        samples: trained on so far.
        made: samples of the tick before.
    """

    number: int
    spot: int
    removed: int
    held: int
    on_demand: int
    samples: float
    made: float


Choice = tuple[int, int]  # spot machines, machines on demand


def run(out: Path, seed: int, quick: bool, progress: Progress) -> dict[str, Any]:
    """Every contender on every law; a repeat's market is the same for all contenders."""
    size = "quick" if quick else "full"
    seeds = repeat_seeds(seed, REPEATS[size])
    points = grid(law=tuple(LAWS), contender=CONTENDERS, repeat=range(REPEATS[size]))

    def measure(law: str, contender: str, repeat: int) -> dict[str, Any]:
        return play(law, contender, seeds[repeat])

    fill_rows(out / "rows.csv", points, measure, VALUES, progress)
    return {
        "repeats": REPEATS[size],
        "seeds": seeds,
        "warmup_steps": 0,
        "total_samples": total_samples(),
        "deadline_s": DEADLINE_H * 3600,
    }


def play(law: str, contender: str, seed: int) -> dict[str, Any]:
    """One job on one market, until its work is done."""
    ticks = int(LONGEST_H * 3600 / TICK_S)
    rng = np.random.default_rng([seed, list(LAWS).index(law)])
    spot, lost = draw_supply(LAWS[law], ticks, TICK_S, rng)
    prices = draw_price(ticks, TICK_S, rng)
    chance = np.random.default_rng([seed, 99])
    on_demand_usd = load(SCENARIO).cluster.price_per_host_hour
    choose = _chooser(contender)
    samples = cost = made = saved = pause = 0.0
    held = extra = removals = resizes = 0
    for number in range(ticks):
        # which machines of the market are removed is chance: ours among all that were up
        taken = _ours(held, lost[number], spot[number - 1] if number else 0, chance)
        taken = max(taken, held - spot[number])
        removals += taken
        before = held + extra
        held -= taken
        now = Tick(number, spot[number], taken, held, extra, samples, made)
        held, extra = choose(now)
        workers = held + extra
        if contender == "spot_restart":
            if taken:
                samples, pause = saved, RESTART_S
            elif number * TICK_S % CHECKPOINT_S == 0:
                saved = samples
        elif workers != before:
            resizes += 1
            pause += JOIN_S if workers > before - taken else LEAVE_S
        spent = min(pause, TICK_S)
        pause -= spent
        made = rates()[workers] * (TICK_S - spent)
        samples += made
        hours = TICK_S / 3600
        cost += on_demand_usd * hours * (extra + held * prices[number])
        if samples >= total_samples():
            break
    time_s = (number + 1) * TICK_S
    return {
        "cost_usd": cost,
        "time_s": time_s,
        "samples": int(samples),
        "deadline_met": bool(samples >= total_samples() and time_s <= DEADLINE_H * 3600),
        "removals": removals,
        "resizes": resizes,
    }


def _ours(held: int, lost: int, up: int, rng: np.random.Generator) -> int:
    lost = min(lost, up)
    return int(rng.hypergeometric(held, up - held, lost)) if lost and held <= up else 0


def _chooser(contender: str) -> Callable[[Tick], Choice]:
    """What a contender holds after it saw a tick."""
    if contender == "on_demand":
        need = total_samples() / (DEADLINE_H * 3600)
        fewest = next(n for n, rate in enumerate(rates()) if rate >= need)
        return lambda _: (0, fewest)
    if contender == "spot_restart":
        return lambda now: (STATIC if now.spot >= STATIC else 0, 0)
    if contender == "spot_all":
        return lambda now: (min(now.spot, MOST), 0)
    return _paced()


def _paced() -> Callable[[Tick], Choice]:
    """The policy wants a number; the market's machines come first, the rest is bought."""
    policy = CostAwareResize(
        total_samples=total_samples(),
        deadline_s=DEADLINE_H * 3600,
        max_workers=MOST,
        slack=0.05,
        cooldown_steps=10,
    )
    state = {"want": STATIC, "workers": 0}

    def choose(now: Tick) -> Choice:
        workers = now.held + now.on_demand
        if now.made and workers:
            if workers != state["workers"]:
                policy.on_change(_observation(now, workers, was=state["workers"]))
                state["workers"] = workers
            asked = policy.after_step(_observation(now, workers))
            state["want"] = asked.world_size if isinstance(asked, Resize) else state["want"]
        spot = min(now.spot, state["want"])
        return spot, state["want"] - spot

    return choose


def _observation(now: Tick, workers: int, was: int | None = None) -> Observation:
    """One observation stands for the steps of a tick; ``was``: workers before a resize."""
    changes = (
        () if was is None else (Change("world_size", was, workers, "", "", now.number, 1),)
    )
    return Observation(
        step=now.number,
        epoch=0,
        world_size=workers,
        local_batch=LOCAL_BATCH,
        global_batch=round(now.made),
        learning_rate=3e-5,
        schedule="ring",
        samples=round(now.samples),
        metrics=Metrics({"step_s": TICK_S}),
        changes=changes,
    )
