"""What policies see: this rank's own measurements, and what all ranks agreed on."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfcore.errors import UsageError
from kfcore.events import Change, to_plain
from kfcore.monitors import Metric, Metrics, Undefined

__all__ = ["LocalStep", "Measure", "Observation"]

Measure = float | NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LocalStep:
    """What one rank measured when a step's gradient was ready. NaN: not measured.

    Each field is a float, or an array [world_size] float64 when one process stands for all
    ranks. Times and bytes are those of the step before, because the control block leaves with
    the gradients; loss and norm are this step's.

    Attributes:
        step_s: From the end of a step to the end of the next, seconds.
        compute_s: Of that, outside of collectives, seconds.
        comm_s: Of that, waiting for collectives, seconds.
        comm_bytes: Bytes that this rank gave to the all-reduce.
        loss: Mean over this rank's samples.
        grad_sq_norm: |g_i|^2 of the local gradient; +inf when the gradient is not finite.
        samples: Samples behind the local gradient; NaN stands for the agreed local batch.
        notice_s: Seconds until this worker must be gone, for signals; NaN: no notice.
    """

    step_s: Measure = nan
    compute_s: Measure = nan
    comm_s: Measure = nan
    comm_bytes: Measure = nan
    loss: Measure = nan
    grad_sq_norm: Measure = nan
    samples: Measure = nan
    notice_s: Measure = nan

    @property
    def comm_rate(self) -> Measure:
        """Bytes all-reduced per second of communication; NaN when not measured."""
        if isinstance(self.comm_s, np.ndarray):
            with np.errstate(divide="ignore", invalid="ignore"):
                rate = np.divide(self.comm_bytes, self.comm_s)
            return np.where(self.comm_s > 0, rate, nan)
        return self.comm_bytes / self.comm_s if self.comm_s > 0 else nan


@dataclass(frozen=True, slots=True)
class Observation:
    """What all ranks agree on at a boundary. Equal on every rank, so decisions are too.

    Attributes:
        step: Steps finished.
        epoch: Passes over the data finished.
        world_size: Workers from now on.
        local_batch: Samples a rank and step, from now on.
        global_batch: ``world_size * local_batch``.
        learning_rate: From now on.
        schedule: Spec of the all-reduce schedule, from now on.
        view_version: Of the current set of workers.
        samples: Samples trained on so far, all ranks together.
        hyper: Other registered hyper-parameters by name.
        metrics: Built in: ``loss``, ``step_s`` and ``compute_s`` (slowest rank), ``comm_s``
            (mean), ``comm_bytes_per_s`` (a rank's mean), ``throughput`` (samples/s, all ranks);
            and those of the policies' monitors.
        signals: Reduced signals of the policies; of `Each` a tuple in order of rank.
        changes: What was installed at this boundary.
        sync_mode: How workers are kept together, from now on; see `kfcore.sync_mode`.
        bucket_bytes: Gradients that travel as one operation, from now on, bytes.
        compression: How gradients travel, from now on; see `kfcore.compression`.
    """

    step: int
    epoch: int
    world_size: int
    local_batch: int
    global_batch: int
    learning_rate: float
    schedule: str
    view_version: int = 1
    samples: int = 0
    hyper: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, Metric] = field(default_factory=Metrics)
    signals: Mapping[str, Any] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()
    sync_mode: str = "allreduce"
    bucket_bytes: int = 64 << 20
    compression: str = "none"

    def to_json(self) -> dict[str, Any]:
        """The observation as plain JSON data, from which `from_json` makes an equal one."""
        out = {item.name: getattr(self, item.name) for item in fields(self)}
        out["changes"] = [
            {item.name: getattr(change, item.name) for item in fields(change)}
            for change in self.changes
        ]
        plain: dict[str, Any] = to_plain(out)
        return plain

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Observation":
        """Read what `to_json` wrote.

        Args:
            data: The object.

        Returns:
            The observation.

        Raises:
            UsageError: a field is missing or unknown.
        """
        try:
            values = dict(data)
            values["metrics"] = Metrics(
                {name: _metric(value) for name, value in values.get("metrics", {}).items()}
            )
            values["signals"] = {
                name: tuple(map(_number, value)) if isinstance(value, list) else _number(value)
                for name, value in values.get("signals", {}).items()
            }
            values["changes"] = tuple(Change(**item) for item in values.get("changes", ()))
            return cls(**values)
        except TypeError as error:
            raise UsageError(f"not an observation: {error}") from error


def _metric(value: Any) -> Metric:
    if isinstance(value, dict):
        return Undefined(str(value.get("undefined", "")))
    return _number(value)


def _number(value: Any) -> float:
    return nan if value is None else float(value)
