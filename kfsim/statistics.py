"""Intervals of what replications gave, and of paired differences.

Replications of two scenarios with one seed draw the same random numbers (`kfsim.draws`), so
what they differ by is seen far more sharply in the pairs than in two separate means.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Interval", "interval", "paired", "t_quantile"]


@dataclass(frozen=True)
class Interval:
    """A mean and how far from it the true mean may lie.

    Attributes:
        mean: Of the values.
        half_width: Of the 95 % interval (Student's t); NaN with fewer than two values.
        count: Values.
    """

    mean: float
    half_width: float
    count: int

    @property
    def excludes_zero(self) -> bool:
        """Whether the sign of the mean is beyond reasonable doubt."""
        return abs(self.mean) > self.half_width  # False where it is NaN


def interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """The mean of independent values with its interval.

    Args:
        values: At least one.
        confidence: In (0, 1).

    Returns:
        Mean, half-width and count.
    """
    count = len(values)
    mean = math.fsum(values) / count
    if count < 2:
        return Interval(mean, math.nan, count)
    spread = float(np.std(np.asarray(values, dtype=np.float64), ddof=1))
    return Interval(mean, t_quantile(confidence, count - 1) * spread / math.sqrt(count), count)


def paired(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """The mean difference of replications that share their random numbers.

    Args:
        ours: One value a replication, at least one.
        theirs: Likewise, in the same order; what either has more is left out.

    Returns:
        Of ours minus theirs.
    """
    return interval([a - b for a, b in zip(ours, theirs, strict=False)])


def t_quantile(confidence: float, freedom: int) -> float:
    """The t that a Student variable stays within, either way, with some probability.

    Args:
        confidence: In (0, 1).
        freedom: Degrees of freedom, >= 1.

    Returns:
        To about 12 digits, by bisection of the exact law.
    """
    low, high = 0.0, 1.0
    while _within(high, freedom) < confidence:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        if _within(middle, freedom) < confidence:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _within(t: float, freedom: int) -> float:
    """P(|T| < t). Source: Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    theta = math.atan2(t, math.sqrt(freedom))
    cos_sq = math.cos(theta) ** 2
    odd = freedom % 2
    term = math.cos(theta) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(2 + odd, freedom - 1, 2):
        term *= cos_sq * (k - 1) / k
        total += term
    total *= math.sin(theta)
    return (theta + total) * 2 / math.pi if odd else total
