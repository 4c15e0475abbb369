"""The control block in Python: the core's words first, then the policies' signals."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfcore import _native
from kfcore.errors import UsageError
from kfcore.policy.base import Policy
from kfcore.policy.observation import LocalStep
from kfcore.policy.signals import Signal, SignalTable

__all__ = ["ControlBlock", "Vector"]

Vector = NDArray[np.float64]
_SAMPLES = _native.LOCAL_FIELDS - 1


class _Watched(LocalStep):
    """Nothing measured, and whether somebody asked for the norm."""

    read = False

    def __getattribute__(self, name: str) -> Any:
        if name == "grad_sq_norm":
            object.__setattr__(self, "read", True)  # it is frozen
        return super().__getattribute__(name)


class ControlBlock:
    """Layout of a job's two control vectors, and the way in and out.

    Args:
        policies: All policies of the job; each is asked once for its signals.
        world_size: Ranks, >= 1.
        rank: This one.

    Attributes:
        sum_len: Words of the vector that is sum-reduced.
        max_len: Words of the vector that is max-reduced.
        reads_norm: Whether signals are made of ``LocalStep.grad_sq_norm``.

    Raises:
        UsageError: two policies use one signal name.
    """

    def __init__(self, policies: Sequence[Policy], world_size: int, rank: int) -> None:
        nothing = _Watched()
        declared: dict[str, Mapping[str, Signal]] = {}
        for policy in policies:
            signals = policy.signals(nothing)
            if signals:
                declared[policy.name] = signals
        self._signalling = tuple(policy for policy in policies if policy.name in declared)
        self._declared = declared
        self.reads_norm = nothing.read
        self._rank = rank
        self.resize(world_size)

    def resize(self, world_size: int, rank: int | None = None) -> None:
        """Lay the vectors out for another number of ranks.

        Args:
            world_size: Ranks, >= 1.
            rank: This one, in [0, world_size); None: as before.
        """
        self._rank = self._rank if rank is None else rank
        self._world_size = world_size
        self._table = SignalTable(
            self._declared, _native.CONTROL_SUMS, _native.CONTROL_MAXES, world_size
        )
        self.sum_len = self._table.sum_len
        self.max_len = self._table.max_len

    def encode(
        self,
        local: LocalStep,
        digest_words: Sequence[float],
        local_batch: int,
    ) -> tuple[Vector, Vector]:
        """Local words of one rank, or of all ranks when a field is an array.

        Args:
            local: What was measured.
            digest_words: The engine's two words.
            local_batch: Stands for ``samples`` where that is NaN.

        Returns:
            Sums and maxes: [sum_len] and [max_len], or [world_size, ...] for array fields.

        Raises:
            UsageError: an array has another shape; a policy's signals changed.
        """
        values = (
            local.step_s,
            local.compute_s,
            local.comm_s,
            local.comm_bytes,
            local.loss,
            local.grad_sq_norm,
            local.samples,
        )
        stacked = any(isinstance(value, np.ndarray) and value.ndim for value in values)
        world_size = self._world_size
        rows = world_size if stacked else 1
        fields = np.empty((rows, _native.LOCAL_FIELDS))
        if stacked:
            for at, value in enumerate(values):
                if np.shape(value) not in ((), (world_size,)):
                    raise UsageError(
                        f"LocalStep fields must be numbers or have shape ({world_size},), "
                        f"got {np.shape(value)}"
                    )
                fields[:, at] = value
            samples = fields[:, _SAMPLES]
            samples[np.isnan(samples)] = local_batch
        else:
            fields[0] = values
            if fields[0, _SAMPLES] != fields[0, _SAMPLES]:  # NaN
                fields[0, _SAMPLES] = local_batch
        sums = np.empty((rows, self.sum_len))
        maxes = np.empty((rows, self.max_len))
        _native.encode_rows(fields, digest_words, sums, maxes)
        for policy in self._signalling:
            self._table.write(
                policy.name, policy.signals(local), sums, maxes, 0 if stacked else self._rank
            )
        return (sums, maxes) if stacked else (sums[0], maxes[0])

    def decode(self, sums: Vector, maxes: Vector) -> tuple[_native.ClusterStep, dict[str, Any]]:
        """Reduced words back into measurements and signals.

        Args:
            sums: [sum_len], reduced over all ranks.
            maxes: [max_len], likewise.

        Returns:
            The cluster's step and the reduced signals by name.

        Raises:
            UsageError: a vector has another shape.
        """
        if sums.shape != (self.sum_len,) or maxes.shape != (self.max_len,):
            raise UsageError(
                f"reduced control vectors must have shapes ({self.sum_len},) and "
                f"({self.max_len},), got {sums.shape} and {maxes.shape}"
            )
        cluster = _native.decode_cluster(sums, maxes, self._world_size)
        return cluster, self._table.read(sums, maxes)
