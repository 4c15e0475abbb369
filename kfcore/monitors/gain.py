"""What a larger batch is worth: AdaScale's gain and Pollux' statistical efficiency."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kfcore.errors import UsageError
from kfcore.monitors.base import RunningMonitor, StepView
from kfcore.monitors.metric import Metric, Undefined
from kfcore.monitors.noise_scale import GradientNoiseScale

__all__ = ["AdaScaleGain", "StatisticalEfficiency"]

_EARLY = Undefined("no data yet")
_Rule = Callable[[float, float, float], float]


@dataclass(frozen=True)
class AdaScaleGain:
    """How many steps at the base batch one step at the present batch is worth.

    ``gain = (var / B0 + sqr) / (var / B + sqr)``, in [1, B / B0] for B >= B0, where var and sqr
    are the averages of `GradientNoiseScale`, B is the present global batch and B0 the base
    batch. Metric: ``gain``. Undefined as the noise scale is.

    Attributes:
        base_batch: Samples of all ranks for which the learning rate was chosen, >= 1.
        decay: Weight of the past in the averages, in [0, 1).

    Source: Johnson et al., "AdaScale SGD", ICML 2020, equation 4.
    """

    base_batch: int
    decay: float = 0.9
    name: str = "gain"

    def __post_init__(self) -> None:
        _check(self.base_batch, self.decay)

    def start(self) -> RunningMonitor:
        """A fresh state."""

        def gain(batch: float, sqr: float, var: float) -> float:
            return (var / self.base_batch + sqr) / (var / batch + sqr)

        return _FromNoise(self.name, self.decay, gain)


@dataclass(frozen=True)
class StatisticalEfficiency:
    """Progress of a sample at the present batch, relative to the base batch.

    ``efficiency = (gns + B0) / (gns + B)``, where B is the present global batch and B0 the base
    batch; at most 1 for B >= B0. Metric: ``efficiency``. Undefined as the noise scale is.

    Attributes:
        base_batch: Samples of all ranks that count as efficient, >= 1.
        decay: Weight of the past in the noise scale's averages, in [0, 1).

    Source: Qiao et al., "Pollux", OSDI 2021, equation 7.
    """

    base_batch: int
    decay: float = 0.9
    name: str = "efficiency"

    def __post_init__(self) -> None:
        _check(self.base_batch, self.decay)

    def start(self) -> RunningMonitor:
        """A fresh state."""

        def efficiency(batch: float, sqr: float, var: float) -> float:
            return (var / sqr + self.base_batch) / (var / sqr + batch)

        return _FromNoise(self.name, self.decay, efficiency)


class _FromNoise:
    """A metric made of the noise scale's averages and the batch of the last step."""

    def __init__(self, name: str, decay: float, rule: _Rule) -> None:
        self._name, self._rule = name, rule
        self._noise = GradientNoiseScale(decay=decay).start()
        self._batch = 0.0

    def wants_norms(self, step: int) -> bool:  # noqa: ARG002
        return True

    def update(self, view: StepView) -> None:
        self._noise.update(view)
        self._batch = view.samples

    def metrics(self) -> Mapping[str, Metric]:
        noise = self._noise.metrics()
        gns, sqr, var = noise["gns"], noise["gns_sqr"], noise["gns_var"]
        if isinstance(gns, Undefined):
            return {self._name: gns}
        if isinstance(sqr, Undefined) or isinstance(var, Undefined) or self._batch <= 0:
            return {self._name: _EARLY}
        return {self._name: self._rule(self._batch, sqr, max(var, 0.0))}

    def reset(self) -> None:
        self._noise.reset()


def _check(base_batch: int, decay: float) -> None:
    if base_batch < 1:
        raise UsageError(f"base_batch must be >= 1, got {base_batch}")
    GradientNoiseScale(decay=decay)
