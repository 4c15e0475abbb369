"""What a job's loop reads: the settings in force, the counts and the last metrics."""

from collections.abc import Mapping

from kfcore.controller import Controller
from kfcore.elastic.rates import Rate
from kfcore.monitors import Metrics
from kfcore.tally import Tally

__all__ = ["InForce"]


class InForce:
    """The readable side of a `kfcore.Job`.

    Args:
        controller: Holds the values.
        rank: This worker.
        rate: A learning rate keyed to samples, of which the controller knows the peak.

    Attributes:
        controller: As given.
        tally: What this rank's steps took; ``tally.summary()`` says what the job added to them.
    """

    def __init__(self, controller: Controller, rank: int, rate: Rate | None) -> None:
        self.controller = controller
        self.tally = Tally()
        self._rank = rank
        self._rate = rate

    @property
    def rank(self) -> int:
        """This worker."""
        return self._rank

    @property
    def world_size(self) -> int:
        """All workers."""
        return self.controller.world_size

    @property
    def local_batch(self) -> int:
        """Samples a rank and step, from now on."""
        return self.controller.local_batch

    @property
    def global_batch(self) -> int:
        """Samples of all ranks and step, from now on."""
        return self.controller.global_batch

    @property
    def learning_rate(self) -> float:
        """From now on; of a rate keyed to samples, for the samples seen so far."""
        peak = self.controller.learning_rate
        if self._rate is None or self._rate.peak == 0:
            return peak
        return peak * self._rate(self.controller.samples) / self._rate.peak

    @property
    def hyper(self) -> Mapping[str, float]:
        """Other registered numbers, from now on."""
        return self.controller.hyper

    @property
    def schedule(self) -> str:
        """Spec of the all-reduce schedule, from now on."""
        return self.controller.schedule

    @property
    def metrics(self) -> Metrics:
        """Of the last step; see `Observation.metrics`."""
        return self.controller.metrics

    @property
    def steps(self) -> int:
        """Steps finished."""
        return self.controller.step

    @property
    def epoch(self) -> int:
        """Passes over the data finished."""
        return self.controller.epoch

    @property
    def stopped(self) -> bool:
        """Whether a policy ended training."""
        return self.controller.stopped
