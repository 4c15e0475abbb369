"""Learning rates as functions of samples seen, so that no change of workers moves them. Pure.

A step counts differently many samples in a larger world; a sample is a sample.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from kfcore.errors import UsageError

__all__ = ["Constant", "Cosine", "Rate", "Steps", "WarmUp"]


class Rate(Protocol):
    """A learning rate for each number of samples seen."""

    @property
    def peak(self) -> float:
        """Its largest value."""
        ...

    def __call__(self, samples: float) -> float:
        """The rate.

        Args:
            samples: Seen so far by all workers together, >= 0.

        Returns:
            The rate, in [0, peak].
        """
        ...


@dataclass(frozen=True)
class Constant:
    """Always the same.

    Attributes:
        rate: >= 0.
    """

    rate: float

    def __post_init__(self) -> None:
        """Refuse what is no rate."""
        _check("rate", self.rate)

    @property
    def peak(self) -> float:
        """As `Rate.peak`."""
        return self.rate

    def __call__(self, samples: float) -> float:  # noqa: ARG002
        """As `Rate.__call__`."""
        return self.rate


@dataclass(frozen=True)
class WarmUp:
    """A linear rise from ``start`` to what follows: r(s) = start + (then(w) - start) s / w.

    Attributes:
        samples: w, where the rise ends and ``then`` takes over, > 0.
        then: What follows, a rate or a number; it sees all samples, those of the rise too.
        start: Rate at the first sample, >= 0.

    Source: Goyal et al., arXiv:1706.02677, section 2.2, there in steps.

    Example:
        >>> rate = WarmUp(6400, then=0.1)
        >>> [round(rate(s), 6) for s in (0, 3200, 6400, 10_000)]
        [0.0, 0.05, 0.1, 0.1]
    """

    samples: float
    then: "Rate | float"
    start: float = 0.0

    def __post_init__(self) -> None:
        """Refuse an empty rise."""
        _check("samples", self.samples, above=True)
        _check("start", self.start)
        if isinstance(self.then, int | float):
            object.__setattr__(self, "then", Constant(float(self.then)))

    @property
    def peak(self) -> float:
        """As `Rate.peak`."""
        return max(self.start, self._then.peak)

    @property
    def _then(self) -> Rate:
        return self.then  # type: ignore[return-value]  # made one in __post_init__

    def __call__(self, samples: float) -> float:
        """As `Rate.__call__`."""
        if samples >= self.samples:
            return self._then(samples)
        reached = self._then(self.samples)
        return self.start + (reached - self.start) * samples / self.samples


@dataclass(frozen=True)
class Cosine:
    """Half a cosine from ``rate`` to ``end``: r(s) = end + (rate - end) (1 + cos(pi s/n)) / 2.

    Attributes:
        rate: At the first sample, >= end.
        samples: n, where ``end`` is reached and kept, > 0.
        end: >= 0.

    Source: Loshchilov and Hutter, arXiv:1608.03983, equation 5, without restarts.
    """

    rate: float
    samples: float
    end: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a rise."""
        _check("rate", self.rate)
        _check("samples", self.samples, above=True)
        _check("end", self.end)
        if self.end > self.rate:
            raise UsageError(f"end must be <= rate {self.rate}, got {self.end}")

    @property
    def peak(self) -> float:
        """As `Rate.peak`."""
        return self.rate

    def __call__(self, samples: float) -> float:
        """As `Rate.__call__`."""
        part = min(samples / self.samples, 1.0)
        return self.end + (self.rate - self.end) * (1 + math.cos(math.pi * part)) / 2


@dataclass(frozen=True)
class Steps:
    """A staircase: ``rate`` times the factor of the last edge passed.

    Attributes:
        rate: Before the first edge, >= 0.
        factors: By samples (> 0), each in [0, 1], of ``rate`` and not of the one before.

    Example:
        >>> rate = Steps(0.1, {1000: 0.5, 2000: 0.1})
        >>> [round(rate(s), 6) for s in (999, 1000, 5000)]
        [0.1, 0.05, 0.01]
    """

    rate: float
    factors: Mapping[float, float]

    def __post_init__(self) -> None:
        """Refuse factors that raise the rate."""
        _check("rate", self.rate)
        for edge, factor in self.factors.items():
            _check("an edge", edge, above=True)
            if not 0 <= factor <= 1:
                raise UsageError(f"a factor must be in [0, 1], got {factor} at {edge}")

    @property
    def peak(self) -> float:
        """As `Rate.peak`."""
        return self.rate

    def __call__(self, samples: float) -> float:
        """As `Rate.__call__`."""
        passed = [edge for edge in self.factors if samples >= edge]
        return self.rate * (self.factors[max(passed)] if passed else 1.0)


def _check(name: str, value: float, *, above: bool = False) -> None:
    if not (math.isfinite(value) and (value > 0 if above else value >= 0)):
        raise UsageError(f"{name} must be finite and {'>' if above else '>='} 0, got {value}")
