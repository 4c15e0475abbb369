"""What is trained, so that the same model can be trained by real and by simulated workers."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Task"]


class Task(Protocol):
    """One worker's copy of a model and its data. Copies start equal.

    One training step: `gradients`, then the driver averages the arrays it returned over all
    ranks in place, then `apply`. A step whose gradient was not finite is not applied.
    """

    @property
    def n_samples(self) -> int:
        """Samples of the training set."""
        ...

    def gradients(self, indices: NDArray[np.int64]) -> tuple[float, list[NDArray[Any]]]:
        """Loss and gradient of some samples at the current weights.

        Args:
            indices: [batch] int64, each in [0, n_samples); at least one.

        Returns:
            Mean loss over the batch, and the gradient of that mean as writable float arrays.
            The arrays may be the same ones at each call.
        """
        ...

    def apply(self, learning_rate: float) -> None:
        """Take one optimizer step with the arrays `gradients` returned last.

        Args:
            learning_rate: In force after this step's boundary.
        """
        ...

    def evaluate(self) -> dict[str, float]:
        """Measures on held-out data, by name."""
        ...
