"""The running monitors of one job together, and the metrics that need none."""

import math
from collections.abc import Callable, Iterable

from kfcore import _native
from kfcore.errors import UsageError
from kfcore.monitors.base import Monitor, StepView
from kfcore.monitors.metric import Metrics, Undefined

__all__ = ["MonitorSet"]

_UNMEASURED = Undefined("not measured")
_BUILT_IN = (
    "loss",
    "step_s",
    "compute_s",
    "comm_s",
    "comm_bytes_per_s",
    "exposed_s",
    "throughput",
)


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
            cluster.mean_step_s - cluster.mean_compute_s,
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
