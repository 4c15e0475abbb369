"""What training costs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from kfcore.errors import UsageError
from kfcore.monitors.base import RunningMonitor, StepView
from kfcore.monitors.metric import Metric, Undefined

__all__ = ["Money"]

_EARLY = Undefined("no step was timed yet")


@dataclass(frozen=True)
class Money:
    """Price of a step and of a sample, in the currency of the price.

    ``price_per_step = workers * price_per_worker_hour * step_s / 3600``, with the time of the
    slowest rank; ``price_per_sample`` is that over the step's samples; ``price_so_far`` is
    their sum over all steps seen by this process. Times are those of the step before.

    Attributes:
        price_per_worker_hour: >= 0, in any currency.
    """

    price_per_worker_hour: float
    name: str = "price_so_far"

    def __post_init__(self) -> None:
        if not 0 <= self.price_per_worker_hour < math.inf:
            raise UsageError(
                f"price_per_worker_hour must be >= 0, got {self.price_per_worker_hour}"
            )

    def start(self) -> RunningMonitor:
        """Nothing was spent yet."""
        return _Spent(self.price_per_worker_hour)


class _Spent:
    def __init__(self, price_per_worker_hour: float) -> None:
        self._price_per_worker_s = price_per_worker_hour / 3600
        self._total = 0.0
        self._step: Metric = _EARLY
        self._sample: Metric = _EARLY

    def wants_norms(self, step: int) -> bool:  # noqa: ARG002
        return False

    def update(self, view: StepView) -> None:
        if not math.isfinite(view.step_s):
            return
        price = view.world_size * self._price_per_worker_s * view.step_s
        self._total += price
        self._step = price
        self._sample = price / view.samples if view.samples > 0 else _EARLY

    def metrics(self) -> Mapping[str, Metric]:
        return {
            "price_so_far": self._total,
            "price_per_step": self._step,
            "price_per_sample": self._sample,
        }

    def reset(self) -> None:
        """Money stays spent."""
