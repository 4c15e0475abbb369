"""Where a step's loss and gradient norms come from: a law, a real model, or nowhere."""

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kfcore.controller import Controller
from kfcore.errors import InternalError
from kfcore.gradients import finite_norm, float_view
from kfcore.sampling import DataPass
from kfcore.task import Task
from kfsim.draws import RankNormals
from kfsim.scenario import NoiseLaw, Workload

__all__ = ["Gradients", "LawGradients", "NoGradients", "StepNorms", "TaskGradients"]

Values = NDArray[np.float64]


class StepNorms:
    """One step's statistics.

    Args:
        loss: [world_size], NaN: not known.
        grad_sq_norm: [world_size] |g_i|^2 of the local gradients, NaN: not known.
        mean_sq_norm: |G|^2 of the averaged gradient, NaN: not known.
        samples: [world_size] samples behind each local gradient.
    """

    __slots__ = ("grad_sq_norm", "loss", "mean_sq_norm", "samples")

    def __init__(
        self, loss: Values, grad_sq_norm: Values, mean_sq_norm: float, samples: Values
    ) -> None:
        self.loss, self.grad_sq_norm = loss, grad_sq_norm
        self.mean_sq_norm, self.samples = mean_sq_norm, samples


class Gradients(Protocol):
    """The statistical side of a simulated job."""

    def step(self, job: Controller) -> StepNorms:
        """Statistics of the coming step."""
        ...

    def apply(self, job: Controller, *, skipped: bool) -> bool:
        """Ends the step; returns whether an epoch ended with it."""
        ...

    def evaluate(self) -> dict[str, float]:
        """Measures on held-out data, if there is a model."""
        ...


class _Epochs:
    """Counts samples of the running epoch."""

    def __init__(self, samples_per_epoch: int) -> None:
        self._size = samples_per_epoch
        self._done = 0

    def add(self, samples: int) -> bool:
        self._done += samples
        ended = self._done >= self._size
        if ended:
            self._done %= self._size
        return ended


class NoGradients:
    """Only time is simulated: no loss, no norms.

    Args:
        workload: Gives the size of an epoch.
    """

    def __init__(self, workload: Workload) -> None:
        self._epochs = _Epochs(workload.samples_per_epoch)

    def step(self, job: Controller) -> StepNorms:
        """Nothing is known but the number of samples."""
        nothing = np.full(job.world_size, math.nan)
        samples = np.full(job.world_size, float(job.local_batch))
        return StepNorms(nothing, nothing, math.nan, samples)

    def apply(self, job: Controller, *, skipped: bool) -> bool:  # noqa: ARG002
        """Counts the samples of the step."""
        return self._epochs.add(job.global_batch)

    def evaluate(self) -> dict[str, float]:
        """Nothing was trained."""
        return {}


class LawGradients(NoGradients):
    """Norms that a noise scale phi implies for batches of b (a rank's) and B (all ranks').

    E|g_i|^2 = |G|^2 (1 + phi / b) and E|G_B|^2 = |G|^2 (1 + phi / B).
    Source: McCandlish et al., arXiv:1812.06162, appendix A.1, with phi = tr(Sigma) / |G|^2.

    Args:
        law: Noise scale over epochs.
        workload: Gives the size of an epoch.
        seed: Of the run.
        repeat: Number of the repetition.
    """

    def __init__(self, law: NoiseLaw, workload: Workload, seed: int, repeat: int) -> None:
        super().__init__(workload)
        self._law = law
        self._samples_per_epoch = workload.samples_per_epoch
        self._local = RankNormals(seed, "local gradient norm", repeat)
        self._mean = RankNormals(seed, "mean gradient norm", repeat)

    def noise_scale(self, epochs: float) -> float:
        """tr(Sigma) / |G|^2 at a position in training, samples. Constant outside the table."""
        logs = np.log(self._law.noise_scale)
        return float(np.exp(np.interp(epochs, self._law.epochs, logs)))

    def step(self, job: Controller) -> StepNorms:
        """Draws this step's norms."""
        phi = self.noise_scale(job.samples / self._samples_per_epoch)
        true, sigma = self._law.grad_sq_norm, self._law.spread_sigma
        local = true * (1 + phi / job.local_batch)
        mean = true * (1 + phi / job.global_batch)
        spread = np.exp(sigma * self._local.at(job.step, job.world_size) - sigma**2 / 2)
        mean_spread = math.exp(sigma * float(self._mean.at(job.step, 1)[0]) - sigma**2 / 2)
        samples = np.full(job.world_size, float(job.local_batch))
        loss = np.full(job.world_size, math.nan)
        return StepNorms(loss, local * spread, mean * mean_spread, samples)


class TaskGradients:
    """A real model, trained by the simulated workers: one replica stands for all of them.

    Samples are handed out as `kfcore.Job.batches` does with the same seed.

    Args:
        task: The model and its data.
        seed: Of the order of samples.
    """

    def __init__(self, task: Task, seed: int) -> None:
        self._task = task
        self._seed = seed
        self._pass: DataPass | None = None

    def step(self, job: Controller) -> StepNorms:
        """Each rank's gradient in turn; their mean is left where `Task.apply` looks for it."""
        if self._pass is None:
            self._pass = DataPass(self._task.n_samples, seed=self._seed, epoch=job.epoch)
        taken = self._pass.take(job.world_size, job.global_batch)
        if taken is None:
            raise InternalError("the pass over the data was not ended")
        losses, norms = np.empty(job.world_size), np.empty(job.world_size)
        mean: list[Any] = []
        grads: Sequence[Any] = ()
        counts = np.array([len(taken.of(rank)) for rank in range(job.world_size)], float)
        for rank, count in enumerate(counts):
            if count == 0:  # only the last step of a pass has ranks without samples
                losses[rank] = norms[rank] = math.nan
                continue
            loss, grads = self._task.gradients(taken.of(rank))
            share = count / counts.sum()
            views = [float_view(grad) for grad in grads]
            losses[rank], norms[rank] = loss, finite_norm(views)
            if rank == 0:
                mean = [view * share for view in views]
            else:
                for place, view in enumerate(views):
                    mean[place] += view * share
        for grad, held in zip(grads, mean, strict=True):
            grad[...] = held
        return StepNorms(losses, norms, finite_norm(mean), counts)

    def apply(self, job: Controller, *, skipped: bool) -> bool:
        """One optimizer step, unless a gradient was not finite."""
        if not skipped:
            self._task.apply(job.learning_rate)
        ended = self._pass is not None and self._pass.remaining == 0
        if ended:
            self._pass = None
        return ended

    def evaluate(self) -> dict[str, float]:
        """What the model says of held-out data."""
        return self._task.evaluate()
