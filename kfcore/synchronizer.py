"""How one worker's gradients and model meet those of the others, as the settings say."""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from kfcore import _native
from kfcore.compression import parse
from kfcore.compression.mean import CompressedMean
from kfcore.configuration import DEFAULT_BUCKET_BYTES
from kfcore.control import Vector
from kfcore.errors import UsageError
from kfcore.job_session import JobSession
from kfcore.model_averaging import ModelAverager
from kfcore.sync_mode import SyncMode

__all__ = ["Synchronizer"]


class Synchronizer:
    """Carries out sync mode, bucket size and compression over a session.

    Args:
        session: Open.
        parameters: The model's, for the modes that average models; None: not known.

    Attributes:
        mode: In force for the coming step.
    """

    def __init__(self, session: JobSession, parameters: Sequence[Any] | None) -> None:
        self._session = session
        self._models = None if parameters is None else ModelAverager(session, parameters)
        self.mode = SyncMode()
        self._bucket_bytes = DEFAULT_BUCKET_BYTES
        self._compressed: CompressedMean | None = None
        self._owed: tuple[str, SyncMode, int] | None = None  # why, how, after which step

    def refuse_unknown(self) -> dict[str, str]:
        """Settings that cannot change here, and why."""
        if self._models is not None:
            return {}
        return {"sync_mode": "give the job the model's `parameters`, which other modes average"}

    def average(
        self,
        grads: Sequence[Any],
        views: Sequence[NDArray[Any]],
        sums: Vector,
        maxes: Vector,
        norms: _native.NormSums | None = None,
    ) -> None:
        """Reduce a step's control vectors, and its gradients where the mode says so.

        Args:
            grads: This rank's, in whatever library; averaged in place.
            views: The same as NumPy arrays.
            sums: Reduced in place by sum.
            maxes: Reduced in place by max.
            norms: Where `measures`: sums squares meanwhile.

        Raises:
            UsageError: `settle` was due before.
            TransportError: the session failed.
        """
        if self._owed is not None:
            why, _, step = self._owed
            raise UsageError(
                f"job.settle() must be called after the update of step {step}, because of {why}"
            )
        session = self._session
        if self.mode.averages_models or (self._compressed and session.world_size > 1):
            if self._compressed is not None and not self.mode.averages_models:
                self._compressed.average(views)
            session.grouped_all_reduce([sums, maxes], op=["sum", "max"])
            return
        session.grouped_all_reduce(
            [*grads, sums, maxes],
            op=[*["avg"] * len(views), "sum", "max"],
            fusion_bytes=self._bucket_bytes,
            **({} if norms is None else {"norms": norms}),
        )

    @property
    def measures(self) -> bool:
        """Whether the coming step's all-reduce can sum squares."""
        whole = not (self.mode.averages_models or self._compressed)
        return whole and getattr(self._session, "measures_norms", False)

    def end_step(self, step: int) -> None:
        """Note what a step leaves to be done after its update.

        Args:
            step: From 1.
        """
        if self.mode.exchanges_after(step) and self._session.world_size > 1:
            self._owed = (f"sync mode {self.mode.spec}", self.mode, step)

    def keep(self, *, skipped: bool) -> None:
        """Remember what compression lost in the step, unless nobody applies it.

        Args:
            skipped: A gradient was not finite.
        """
        if self._compressed is not None:
            self._compressed.keep(skipped=skipped)

    def change(self, what: str, value: Any, step: int) -> None:
        """Carry out an installed setting.

        Args:
            what: Name of the setting; names of other concern are passed over.
            value: In force from now on.
            step: At whose boundary it was installed.
        """
        if what == "schedule":
            self._session.set_schedule(str(value))
        elif what == "bucket_bytes":
            self._bucket_bytes = int(value)
        elif what == "compression":
            chosen = parse(str(value))
            self._compressed = (
                None if chosen.kind == "none" else CompressedMean(self._session, chosen)
            )
        elif what == "sync_mode":
            old, self.mode = self.mode, SyncMode.parse(str(value))
            if old.averages_models and not self.mode.averages_models:
                everywhere = SyncMode("local_sgd")  # with equal models averaged gradients do
                self._owed = (f"the change from {old.spec} to allreduce", everywhere, step)

    def settle(self) -> None:
        """Exchange models if this step owes it."""
        if self._owed is None:
            return
        _, mode, step = self._owed
        self._owed = None
        if self._models is not None and self._session.world_size > 1:
            self._models.exchange(mode, step)
