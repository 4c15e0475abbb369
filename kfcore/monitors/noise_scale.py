"""Gradient noise scale and covariance trace, from norms alone."""

from collections.abc import Mapping
from dataclasses import dataclass

from kfcore import _native
from kfcore.errors import UsageError
from kfcore.monitors.base import RunningMonitor, StepView
from kfcore.monitors.metric import Metric, Undefined

__all__ = ["GradientNoiseScale"]


@dataclass(frozen=True)
class GradientNoiseScale:
    """Simple noise scale tr(Sigma) / |G|^2 of the gradient, in samples.

    Agreed over the cluster: from the mean over all ranks of |g_i|^2 and from |G|^2. It is the
    ratio of two bias-corrected exponential averages, not an average of ratios. Changing the
    local batch or the world size starts the averages afresh. Metrics: ``gns`` (samples),
    ``gns_sqr`` (estimate of the true |G|^2) and ``gns_var`` (estimate of tr(Sigma)).
    Undefined with one gradient (one rank without accumulation), before data, and while the
    estimate of |G|^2 is not positive.

    Attributes:
        every: Measure each this-many steps, >= 1.
        decay: Weight of the past in the averages, in [0, 1).

    Source: McCandlish et al., "An empirical model of large-batch training", 2018, appendix A.1.
    """

    every: int = 1
    decay: float = 0.9
    name: str = "gns"

    def __post_init__(self) -> None:
        if self.every < 1:
            raise UsageError(f"every must be >= 1, got {self.every}")
        _native.NoiseScale(self.decay)  # refuses a decay outside of [0, 1)

    def start(self) -> RunningMonitor:
        """A fresh estimator."""
        return _RunningNoiseScale(self)


_UNMEASURED = Undefined("not measured")
_REASONS = {
    _native.Undefined.no_data: Undefined("no data yet"),
    _native.Undefined.single_gradient: Undefined("needs >= 2 gradients", warn=True),
    _native.Undefined.non_positive: Undefined("the estimate of |G|^2 is not positive"),
}


class _RunningNoiseScale:
    def __init__(self, spec: GradientNoiseScale) -> None:
        self._name = spec.name
        self._every = spec.every
        self._estimator = _native.NoiseScale(spec.decay)

    def wants_norms(self, step: int) -> bool:
        return step % self._every == 0

    def update(self, view: StepView) -> None:
        if self.wants_norms(view.step) and view.samples > 0:
            self._estimator.update(
                view.mean_grad_sq_norm, view.grad_sq_norm, view.samples, view.gradients
            )

    def metrics(self) -> Mapping[str, Metric]:
        estimator = self._estimator
        value, sqr, var = estimator.value(), estimator.sqr(), estimator.var()
        why = _REASONS.get(estimator.why_undefined(), _UNMEASURED)
        part = Undefined(why.reason)  # the user hears of the whole, not of each part
        return {
            self._name: why if value is None else value,
            f"{self._name}_sqr": part if sqr is None else sqr,
            f"{self._name}_var": part if var is None else var,
        }

    def reset(self) -> None:
        self._estimator.reset()
