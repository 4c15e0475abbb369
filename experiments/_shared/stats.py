"""Statistics of repeated measurements: medians with bootstrap intervals."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Interval", "median_interval"]


@dataclass(frozen=True)
class Interval:
    """A median and the interval that holds it, in the unit of the values.

    Attributes:
        median: of the values.
        low: lower end of the interval.
        high: upper end of the interval.
        count: number of values.
    """

    median: float
    low: float
    high: float
    count: int


def median_interval(
    values: Sequence[float], *, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """Estimate a median and its uncertainty from repeats.

    Args:
        values: finite measurements of one thing, at least one; order does not matter.
        confidence: probability that the interval holds the median, in (0, 1).
        resamples: bootstrap samples to draw, >= 1.
        seed: of the bootstrap; the same seed and values give the same interval.

    Returns:
        Median and percentile-bootstrap interval; one value gives an interval of width 0.

    Raises:
        ValueError: no values, a value that is not finite, or confidence outside (0, 1).

    Source: Efron, "Bootstrap methods: another look at the jackknife", Ann. Stat. 7, 1979.

    Example:
        >>> median_interval([3.0, 1.0, 2.0]).median
        2.0
    """
    data = np.sort(np.asarray(values, dtype=np.float64))
    if data.size == 0 or not np.isfinite(data).all():
        raise ValueError(f"values must be finite and at least one, got {list(values)}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be in (0, 1), got {confidence}")
    draws = np.random.default_rng(seed).choice(data, size=(resamples, data.size))
    tail = 50 * (1 - confidence)
    low, high = np.percentile(np.median(draws, axis=1), [tail, 100 - tail])
    return Interval(float(np.median(data)), float(low), float(high), int(data.size))
