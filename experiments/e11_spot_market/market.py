"""Supply and price of spot machines, drawn from documented laws. No clock, no state."""

from dataclasses import dataclass

import numpy as np

__all__ = ["LAWS", "Law", "draw_price", "draw_supply"]


@dataclass(frozen=True)
class Law:
    """A birth-and-death law of spot machines.

    Attributes:
        arrivals_per_h: machines that come, each hour, while there are fewer than ``most``.
        removals_per_h: of each machine, each hour.
        start: machines at the beginning.
        most: machines at once.
        bursts: whether all but 4 vanish for 20 minutes in every other hour.
    """

    arrivals_per_h: float
    removals_per_h: float
    start: int
    most: int
    bursts: bool = False


LAWS = {
    "bamboo": Law(177 / 11.3667, 167 / 273.1167, 24, 32),
    "calm": Law(2.4, 0.1, 24, 32),
    "scarce": Law(9.6, 1.2, 8, 12),
    "bursts": Law(177 / 11.3667, 167 / 273.1167, 24, 32, bursts=True),
}


def draw_supply(
    law: Law, ticks: int, tick_s: float, rng: np.random.Generator
) -> tuple[list[int], list[int]]:
    """Machines of the spot market in each tick.

    Args:
        law: of arrivals and removals.
        ticks: how many.
        tick_s: length of one, seconds.
        rng: draws.

    Returns:
        Machines up, and how many of those of the tick before were removed, for each tick.
    """
    hours = tick_s / 3600
    up, lost = [law.start], [0]
    kept_away = 0
    for tick in range(1, ticks):
        gone = int(rng.binomial(up[-1], 1 - np.exp(-law.removals_per_h * hours)))
        come = int(rng.poisson(law.arrivals_per_h * hours))
        now = min(up[-1] - gone + come, law.most)
        if law.bursts:
            minute = tick * tick_s / 60 % 120
            if minute < tick_s / 60:  # a burst begins
                kept_away = max(0, now - 4)
                gone, now = gone + kept_away, now - kept_away
            elif 20 <= minute < 20 + tick_s / 60:  # and ends
                now, kept_away = min(now + kept_away, law.most), 0
        up.append(now)
        lost.append(gone)
    return up, lost


def draw_price(ticks: int, tick_s: float, rng: np.random.Generator) -> list[float]:
    """Spot price over the on-demand price in each tick: constant within an hour.

    log p goes back to log 0.3 by a fifth an hour; its stationary standard deviation is 0.35.
    """
    per_hour = int(3600 / tick_s)
    level, prices = 0.0, []
    for _ in range(-(-ticks // per_hour)):
        prices += [float(np.clip(0.3 * np.exp(level), 0.1, 1.0))] * per_hour
        level = 0.8 * level + 0.35 * np.sqrt(1 - 0.8**2) * rng.normal()
    return prices[:ticks]
