"""What a worker keeps so that a step is committed by all workers or by none."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfcore.control import Vector
from kfcore.memory import empty

__all__ = ["StepBuffers"]

Array = NDArray[Any]


class StepBuffers:
    """Memory of the step under way, and of the result of the one before.

    A step is reduced in memory of its own, so that a worker's gradients are untouched when the
    reduction fails, and the result of the last step is still there for a worker that did not
    get it. Costs two copies of the gradients a step and twice their size in memory.

    Attributes:
        completed: Steps whose result is here.
    """

    def __init__(self) -> None:
        self.completed = 0
        self._flat: list[dict[str, Array]] = [{}, {}]
        self._control: list[tuple[Vector, ...]] = [(), ()]

    def take_in(self, step: int, grads: Sequence[Array], factor: float) -> None:
        """Copy a step's gradients in, multiplied.

        Args:
            step: Number of the step, from 1.
            grads: Float arrays; never changed.
            factor: Weight of this worker; 0 clears what is not finite too.
        """
        for target, grad in zip(self._views(step, grads), grads, strict=True):
            if factor == 1.0:
                np.copyto(target, grad)
            elif factor == 0.0:
                target[...] = 0
            else:
                np.multiply(grad, factor, out=target)

    def control(self, step: int, *vectors: Vector) -> None:
        """Keep a step's control vectors.

        Args:
            step: Number of the step.
            *vectors: This worker's; reduced in place with the gradients.
        """
        self._control[step % 2] = vectors

    def arrays(self, step: int) -> list[Array]:
        """Everything that is reduced in a step: gradients first, then control vectors.

        Args:
            step: Number of the step.

        Returns:
            One flat array for each type of gradient, and the control vectors.
        """
        return [*self._flat[step % 2].values(), *self._control[step % 2]]

    def gradients(self, step: int) -> list[Array]:
        """Those of `arrays` that are gradients.

        Args:
            step: Number of the step.

        Returns:
            One flat array for each type.
        """
        return list(self._flat[step % 2].values())

    def pieces(self, step: int, most_bytes: int) -> list[Array]:
        """The gradients of a step, cut for operations of a bounded size.

        Args:
            step: Number of the step.
            most_bytes: Of a piece, > 0; one of a single element may be larger.

        Returns:
            Views of `gradients`, in order.
        """
        out = []
        for array in self.gradients(step):
            length = max(1, most_bytes // array.itemsize)
            begins = range(0, max(1, array.size), length)
            out += [array[begin : begin + length] for begin in begins]
        return out

    def give_out(self, step: int, grads: Sequence[Array]) -> None:
        """Copy a step's result into the gradients.

        Args:
            step: Number of the step.
            grads: As given to `take_in`.
        """
        for source, grad in zip(self._views(step, grads), grads, strict=True):
            np.copyto(grad, source)

    def _views(self, step: int, grads: Sequence[Array]) -> list[Array]:
        sizes: dict[str, int] = {}
        for grad in grads:
            sizes[grad.dtype.str] = sizes.get(grad.dtype.str, 0) + grad.size
        flat = self._flat[step % 2]
        if {name: array.size for name, array in flat.items()} != sizes:
            flat = {name: empty(size, name) for name, size in sizes.items()}
            self._flat[step % 2] = flat
        begin = dict.fromkeys(sizes, 0)
        views = []
        for grad in grads:
            name, start = grad.dtype.str, begin[grad.dtype.str]
            begin[name] = start + grad.size
            views.append(flat[name][start : start + grad.size].reshape(grad.shape))
        return views
