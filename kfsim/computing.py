"""What a worker computes in a step: batch to time, devices, memory, micro-batches, slowness."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfcore.errors import UsageError
from kfsim.fields import field

__all__ = ["Computing", "Curve", "Device", "Straggler", "Workload", "check_fits"]

Times = NDArray[np.float64]


@dataclass(frozen=True)
class Straggler:
    """A rank that computes more slowly for a while."""

    rank: int = field(doc="which", at_least=0)
    factor: float = field(doc="times its compute time", above=0)
    start_step: int = field(1, doc="first slow step", at_least=1)
    stop_step: int | None = field(None, doc="first step that is normal again", at_least=1)


@dataclass(frozen=True)
class Curve:
    """Measured times of a step, forward and backward, of one device alone."""

    batch: tuple[float, ...] = field(doc="samples, increasing", unit="samples", above=0)
    step_ms: tuple[float, ...] = field(doc="time of a step with so many", unit="ms", above=0)

    def __post_init__(self) -> None:
        if len(self.batch) != len(self.step_ms) or not self.batch:
            raise UsageError(
                "curve: batch and step_ms must be as many and not empty, got "
                f"{len(self.batch)} and {len(self.step_ms)}"
            )
        if any(b <= a for a, b in zip(self.batch, self.batch[1:], strict=False)):
            raise UsageError(f"curve: batch must increase, got {list(self.batch)}")

    def seconds(self, samples: Times) -> Times:
        """Times of batches: linear between the points and, at the same slope, beyond them.

        Below the first point the line of the first two goes on, but a sample never takes less
        than at the first point. One point alone: proportional.

        Args:
            samples: [any] of a batch, >= 0.

        Returns:
            [any] seconds.
        """
        x, y = np.array(self.batch), np.array(self.step_ms) * 1e-3
        if len(x) == 1:
            return samples * float(y[0] / x[0])
        inside = np.interp(samples, x, y)
        slope = max(0.0, float((y[-1] - y[-2]) / (x[-1] - x[-2])))
        first = float((y[1] - y[0]) / (x[1] - x[0]))
        below = np.maximum(y[0] - first * (x[0] - samples), samples * float(y[0] / x[0]))
        out = np.where(samples > x[-1], y[-1] + slope * (samples - x[-1]), inside)
        return np.where(samples < x[0], below, out)


@dataclass(frozen=True)
class Device:
    """Hosts whose devices differ from the workload's."""

    first_host: int = field(doc="of them", at_least=0)
    hosts: int = field(1, doc="how many", at_least=1)
    samples_per_s: float | None = field(None, doc="of one device", above=0)
    curve: Curve | None = field(None, doc="instead of samples_per_s")  # noqa: RUF009
    max_samples: int | None = field(None, doc="that fit into its memory at once", at_least=1)

    def __post_init__(self) -> None:
        _one_rate(self, "devices")


@dataclass(frozen=True)
class Workload:
    """What a worker computes in one step."""

    model: str = field(doc="tensor table: a stored one's name, or a CSV file")
    local_batch: int = field(doc="samples a rank and step at the start", at_least=1)
    samples_per_s: float | None = field(
        None, doc="of one device, without communication", above=0
    )
    curve: Curve | None = field(None, doc="times by batch, instead of samples_per_s")  # noqa: RUF009
    devices: tuple[Device, ...] = field((), doc="hosts whose devices differ")
    accumulation: int = field(
        1, doc="micro-batches that a rank adds up before it communicates", at_least=1
    )
    max_samples: int | None = field(
        None, doc="samples that fit into a device's memory at once; absent: any", at_least=1
    )
    on_out_of_memory: str = field(
        "stop", doc="what a batch beyond it does", choices=("stop", "accumulate")
    )
    learning_rate: float = field(0.1, doc="at the start", at_least=0)
    overhead_ms: float = field(
        0.0, doc="part of a step that does not depend on the batch", unit="ms", at_least=0
    )
    forward_fraction: float = field(
        1 / 3, doc="share of compute before backward begins", above=0, below=1
    )
    jitter_sigma: float = field(
        0.0,
        doc="sigma of the lognormal factor (mean 1) on a rank's compute time",
        at_least=0,
        at_most=10,
    )
    bytes_per_element: int = field(4, doc="of a gradient", unit="B", at_least=1, at_most=8)
    samples_per_epoch: int = field(1_281_167, doc="size of the training set", at_least=1)
    checkpoint_s: float = field(
        0.0, doc="all ranks stand still for a policy's checkpoint", unit="s", at_least=0
    )
    stragglers: tuple[Straggler, ...] = field((), doc="slow ranks")
    times: str = field("", doc="CSV file of times by step and rank, replayed")
    times_are: str = field(
        "relative",
        doc="factors, of which the file's median is 1, or the seconds themselves",
        choices=("relative", "seconds"),
    )

    def __post_init__(self) -> None:
        _one_rate(self, "workload")


def _one_rate(item: Any, where: str) -> None:
    if (item.samples_per_s is None) == (item.curve is None):
        raise UsageError(f"{where}: give samples_per_s or curve, one of them")


class Computing:
    """Compute times of the ranks of a step.

    Args:
        workload: What they compute.
        ranks_per_host: To tell whose device it is.
        replay: [steps, columns] times to replay, as `kfsim.replayed.read_times` gives them; or
            None.
    """

    def __init__(
        self, workload: Workload, ranks_per_host: int, replay: Times | None = None
    ) -> None:
        self._workload, self._ranks_per_host, self._replay = workload, ranks_per_host, replay
        common = Device(0, 1, workload.samples_per_s, workload.curve, workload.max_samples)
        self._kinds = (common, *workload.devices)

    def micro_batches(self, samples: Times, members: Sequence[int]) -> int:
        """How many micro-batches a step needs: the same number on every rank.

        Args:
            samples: [world_size] of each rank.
            members: Who holds each rank, as numbered from the start.

        Returns:
            ``accumulation``, or more where memory asks for it.

        Raises:
            UsageError: a batch does not fit, and the scenario says to stop.
        """
        count = self._workload.accumulation
        for kind, ranks in self._by_kind(members):
            limit = self._kinds[kind].max_samples
            if limit is None or not len(ranks):
                continue
            worst = ranks[int(np.argmax(samples[ranks]))]
            held = math.ceil(samples[worst] / self._workload.accumulation)
            if held <= limit:
                continue
            if self._workload.on_out_of_memory == "stop":
                raise UsageError(
                    f"out of memory: rank {worst} would hold {held} samples at once, its "
                    f"device holds {limit} (max_samples); lower the batch, raise accumulation, "
                    'or set on_out_of_memory = "accumulate"'
                )
            count = max(count, math.ceil(samples[worst] / limit))
        return count

    def seconds(self, step: int, samples: Times, members: Sequence[int], micro: int) -> Times:
        """Compute times without jitter.

        Args:
            step: From 1.
            samples: [world_size] of each rank.
            members: Who holds each rank.
            micro: Micro-batches, >= 1.

        Returns:
            [world_size] seconds, all micro-batches together.
        """
        out = np.empty(len(samples))
        for kind, ranks in self._by_kind(members):
            out[ranks] = self._one(self._kinds[kind], samples[ranks] / micro)
        out = (self._workload.overhead_ms * 1e-3 + out) * micro
        if self._replay is not None:
            row = self._replay[(step - 1) % len(self._replay)]
            replayed = row[np.asarray(members) % len(row)]
            out = replayed if self._workload.times_are == "seconds" else out * replayed
        for slow in self._workload.stragglers:
            late = slow.stop_step is not None and step >= slow.stop_step
            if step >= slow.start_step and not late and slow.rank in members:
                out[list(members).index(slow.rank)] *= slow.factor
        return out

    def forward_fraction(self, micro: int) -> float:
        """Share of a step before the backward pass that communicates: that of the last one."""
        return 1.0 - (1.0 - self._workload.forward_fraction) / micro

    @staticmethod
    def _one(device: Device, samples: Times) -> Times:
        if device.curve is not None:
            return device.curve.seconds(samples)
        return samples / float(device.samples_per_s or math.nan)

    def _by_kind(self, members: Sequence[int]) -> list[tuple[int, NDArray[np.int64]]]:
        """Which ranks have which device; the last entry that names a host counts."""
        if len(self._kinds) == 1:
            return [(0, np.arange(len(members)))]
        hosts = np.asarray(members) // self._ranks_per_host
        kinds = np.zeros(len(members), dtype=np.int64)
        for place, device in enumerate(self._kinds[1:], 1):
            there = (hosts >= device.first_host) & (hosts < device.first_host + device.hosts)
            kinds[there] = place
        return [(int(kind), np.flatnonzero(kinds == kind)) for kind in np.unique(kinds)]


def check_fits(workload: Workload, ranks: int, ranks_per_host: int) -> None:
    """Whether the batch at the start fits into memory.

    Args:
        workload: To check.
        ranks: At the start.
        ranks_per_host: Likewise.

    Raises:
        UsageError: it does not; the text names the rank and the rule.
    """
    samples = np.full(ranks, float(workload.local_batch))
    Computing(workload, ranks_per_host).micro_batches(samples, range(ranks))
