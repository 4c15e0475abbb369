"""What the cluster measures about itself while it trains, and values that do not exist.

A monitor is named in a policy's ``monitors``; it turns each step's agreed measurements into
metrics, the same on every rank. A metric that has no value is `Undefined`, never NaN.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from kfcore import _native
from kfcore.errors import UsageError

__all__ = [
    "GradientNoiseScale",
    "Metric",
    "Metrics",
    "Monitor",
    "MonitorSet",
    "RunningMonitor",
    "StepView",
    "Undefined",
]


class Undefined:
    """A metric without a value, and why. Every comparison with it is false; so is it itself.

    Arithmetic with it gives it back, so ``seen.metrics["gns"] > 2 * seen.global_batch`` is safe
    to write whether or not the noise scale exists.

    Args:
        reason: Why there is no value.
        warn: True when the user should hear of it: it will not pass by itself.

    Attributes:
        reason: As given.
        warn: As given.

    Example:
        >>> gns = Undefined("no data yet")
        >>> gns > 1, gns < 1, bool(2 * gns)
        (False, False, False)
    """

    __slots__ = ("reason", "warn")

    def __init__(self, reason: str, *, warn: bool = False) -> None:
        self.reason = reason
        self.warn = warn

    def __repr__(self) -> str:
        return f"undefined ({self.reason})"

    def __bool__(self) -> bool:
        return False

    def _no(self, _other: object) -> bool:
        return False

    def _self(self, _other: object) -> "Undefined":
        return self

    def __float__(self) -> float:
        """Refuse: a number made of nothing would travel on unseen."""
        raise UsageError(f"a metric without a value was used as a number: {self!r}")

    __lt__ = __le__ = __gt__ = __ge__ = _no
    __add__ = __radd__ = __sub__ = __rsub__ = _self
    __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _self

    def __abs__(self) -> "Undefined":
        return self

    def __neg__(self) -> "Undefined":
        return self


Metric = float | Undefined


class Metrics(dict[str, Metric]):
    """Metrics by name. Asking for one that nobody measures is an error that lists the rest."""

    def value(self, name: str) -> float | None:
        """A metric as a number.

        Args:
            name: Of the metric.

        Returns:
            Its value; None when it is undefined.

        Raises:
            UsageError: nobody measures it.
        """
        metric = self[name]
        return None if isinstance(metric, Undefined) else metric

    def __missing__(self, name: str) -> Metric:
        """Explain the absence."""
        raise UsageError(
            f"no metric is named {name!r}; there are: {', '.join(sorted(self))} "
            "(a policy asks for more with its `monitors`)"
        )


@dataclass(frozen=True)
class StepView:
    """One step as the monitors see it: reduced, so the same on every rank.

    Attributes:
        step: Step just finished, from 1.
        world_size: Ranks that took part.
        samples: Samples behind the averaged gradient.
        mean_grad_sq_norm: Mean over ranks of |g_i|^2; NaN when not every rank measured it.
        grad_sq_norm: |G|^2 of the averaged gradient; NaN when not measured.
    """

    step: int
    world_size: int
    samples: float
    mean_grad_sq_norm: float
    grad_sq_norm: float


class RunningMonitor(Protocol):
    """The state of a monitor in one job."""

    def wants_norms(self, step: int) -> bool:
        """Whether `update` will use the gradient norms of this step."""
        ...

    def update(self, view: StepView) -> None:
        """Take in one step that was not skipped."""
        ...

    def metrics(self) -> Mapping[str, Metric]:
        """Current values; always the same names."""
        ...

    def reset(self) -> None:
        """Forget: the local batch or the world size was changed."""
        ...


class Monitor(Protocol):
    """What a policy lists in ``monitors``: a frozen value, equal when it measures alike."""

    @property
    def name(self) -> str:
        """Name of its main metric, unique in a job."""
        ...

    def start(self) -> RunningMonitor:
        """A fresh state for one job."""
        ...


@dataclass(frozen=True)
class GradientNoiseScale:
    """Simple noise scale tr(Sigma) / |G|^2 of the gradient, in samples.

    Agreed over the cluster: from the mean over all ranks of |g_i|^2 and from |G|^2. It is the
    ratio of two bias-corrected exponential averages, not an average of ratios. Changing the
    local batch or the world size starts the averages afresh. Metrics: ``gns`` (samples),
    ``gns_sqr`` (estimate of the true |G|^2) and ``gns_var`` (estimate of tr(Sigma)).
    Undefined with one rank, before data, and while the estimate of |G|^2 is not positive.

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
                view.mean_grad_sq_norm, view.grad_sq_norm, view.samples, view.world_size
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


_BUILT_IN = ("loss", "step_s", "compute_s", "comm_s", "comm_bytes_per_s", "throughput")


class MonitorSet:
    """The running monitors of a job and all its metrics.

    Args:
        wanted: Who asks, and for which monitor; equal ones are started once.
        report: Called once for each metric that does not exist and will not by itself.

    Raises:
        UsageError: two want different monitors under one name.
    """

    def __init__(
        self,
        wanted: Iterable[tuple[str, Monitor]],
        report: Callable[[str, Undefined], None],
    ) -> None:
        by_name: dict[str, tuple[Monitor, str]] = {}
        for owner, monitor in wanted:
            other, first = by_name.setdefault(monitor.name, (monitor, owner))
            if other != monitor:
                raise UsageError(
                    f"{first} wants monitor {other!r}, {owner} wants {monitor!r}; "
                    "give one another name"
                )
        self._running = tuple(monitor.start() for monitor, _ in by_name.values())
        self._report = report
        self._reported: set[str] = set()
        self._samples_before = math.nan

    def wants_norms(self, step: int) -> bool:
        """Whether a monitor will use the gradient norms of this step."""
        return any(monitor.wants_norms(step) for monitor in self._running)

    def first(self) -> Metrics:
        """The metrics before the first step: undefined."""
        return self._with_monitors(Metrics(dict.fromkeys(_BUILT_IN, _UNMEASURED)))

    def step(self, cluster: _native.ClusterStep, view: StepView | None) -> Metrics:
        """Take in a step.

        Args:
            cluster: What was measured, reduced. Its times are those of the step before.
            view: The gradient; None when the step is skipped.

        Returns:
            The metrics after it.
        """
        if view is not None:
            for monitor in self._running:
                monitor.update(view)
        step_s, comm_s = cluster.step_s, cluster.mean_comm_s
        values = (
            cluster.loss,
            step_s,
            cluster.compute_s,
            comm_s,
            cluster.mean_comm_bytes / comm_s if comm_s > 0 else math.nan,
            self._samples_before / step_s if step_s > 0 else math.nan,
        )
        self._samples_before = cluster.samples
        metrics = self._with_monitors(
            Metrics(
                (name, _UNMEASURED if math.isnan(value) else value)
                for name, value in zip(_BUILT_IN, values, strict=True)
            )
        )
        for name, value in metrics.items():
            if isinstance(value, Undefined) and value.warn and name not in self._reported:
                self._reported.add(name)
                self._report(name, value)
        return metrics

    def reset(self) -> None:
        """The local batch or the world size was changed."""
        for monitor in self._running:
            monitor.reset()

    def _with_monitors(self, metrics: Metrics) -> Metrics:
        for monitor in self._running:
            metrics.update(monitor.metrics())
        return metrics
