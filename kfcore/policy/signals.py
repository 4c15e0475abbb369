"""Local numbers that a policy wants to know of all ranks; they ride in the control block."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from kfcore.errors import UsageError

__all__ = ["Each", "Max", "Mean", "Min", "Signal", "SignalTable", "Sum"]


@dataclass(frozen=True)
class Signal:
    """A local value and how it is reduced over all ranks.

    Attributes:
        value: Number or truth value of this rank; [world_size] when one process stands for all.
    """

    value: Any
    vector: ClassVar[str] = ""  # control vector it rides in
    sign: ClassVar[float] = 1.0  # factor on the way in and out


@dataclass(frozen=True)
class Sum(Signal):
    """Reduced to the sum over ranks."""

    vector = "sums"


@dataclass(frozen=True)
class Mean(Signal):
    """Reduced to the mean over ranks."""

    vector = "sums"


@dataclass(frozen=True)
class Max(Signal):
    """Reduced to the largest."""

    vector = "maxes"


@dataclass(frozen=True)
class Min(Signal):
    """Reduced to the smallest."""

    vector = "maxes"
    sign = -1.0


@dataclass(frozen=True)
class Each(Signal):
    """Not reduced: every rank sees the values of all, a tuple in order of rank.

    Takes one word a rank, where the others take one in all.
    """

    vector = "sums"


class SignalTable:
    """Where each signal of a job's policies stands in the control vectors.

    Args:
        declared: For each policy's name, its signals by name; the values are not looked at.
        first_sum: Words of the sum vector that are taken.
        first_max: Words of the max vector that are taken.
        world_size: Ranks.

    Raises:
        UsageError: two policies use one name, or a value is not a `Signal`.
    """

    def __init__(
        self,
        declared: Mapping[str, Mapping[str, Signal]],
        first_sum: int,
        first_max: int,
        world_size: int,
    ) -> None:
        self._world_size = world_size
        self.sum_len = first_sum
        self.max_len = first_max
        self._slots: dict[str, dict[str, tuple[type[Signal], int]]] = {}
        owner: dict[str, str] = {}
        for policy, signals in declared.items():
            self._slots[policy] = {}
            for name, signal in signals.items():
                if not isinstance(signal, Signal) or not signal.vector:
                    raise UsageError(
                        f"policy {policy}: signal {name!r} must be Sum, Mean, Max, Min or "
                        f"Each, got {signal!r}"
                    )
                if name in owner:
                    raise UsageError(
                        f"policies {owner[name]} and {policy} both have a signal {name!r}"
                    )
                owner[name] = policy
                self._slots[policy][name] = (type(signal), self._take(signal))

    def _take(self, signal: Signal) -> int:
        width = self._world_size if isinstance(signal, Each) else 1
        if signal.vector == "sums":
            self.sum_len += width
            return self.sum_len - width
        self.max_len += width
        return self.max_len - width

    def write(
        self,
        policy: str,
        signals: Mapping[str, Signal],
        sums: NDArray[np.float64],
        maxes: NDArray[np.float64],
        first_rank: int,
    ) -> None:
        """Put one policy's local values into the vectors.

        Args:
            policy: Its name.
            signals: Exactly the names and kinds that it declared.
            sums: [rows, sum_len]; row = rank.
            maxes: [rows, max_len]; row = rank.
            first_rank: Rank of row 0.

        Raises:
            UsageError: names or kinds differ from the declared ones.
        """
        slots = self._slots[policy]
        if signals.keys() != slots.keys():
            raise UsageError(
                f"policy {policy} must give the signals {sorted(slots)} at every step, "
                f"got {sorted(signals)}"
            )
        for name, signal in signals.items():
            kind, at = slots[name]
            if type(signal) is not kind:
                raise UsageError(
                    f"policy {policy}: signal {name!r} was {kind.__name__}, "
                    f"now {type(signal).__name__}"
                )
            vector = sums if signal.vector == "sums" else maxes
            if kind is Each:
                vector[:, at : at + self._world_size] = 0
                rows = np.arange(len(vector))
                vector[rows, at + first_rank + rows] = signal.value
            else:
                vector[:, at] = np.multiply(signal.value, signal.sign)

    def read(self, sums: NDArray[np.float64], maxes: NDArray[np.float64]) -> dict[str, Any]:
        """The reduced signals by name, the same on every rank.

        Args:
            sums: [sum_len], reduced.
            maxes: [max_len], reduced.

        Returns:
            Value by signal name; of `Each` a tuple in order of rank.
        """
        out: dict[str, Any] = {}
        for slots in self._slots.values():
            for name, (kind, at) in slots.items():
                if kind is Each:
                    out[name] = tuple(sums[at : at + self._world_size].tolist())
                elif kind.vector == "sums":
                    out[name] = float(sums[at]) / (self._world_size if kind is Mean else 1)
                else:
                    out[name] = float(maxes[at]) * kind.sign
        return out
