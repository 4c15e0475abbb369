"""Optimizers for several workers that follow each step of all the others."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from kfcore.errors import UsageError
from kfcore.session import Session
from kfcore.torch.buckets import GradientBuckets
from kfcore.torch.memory import Flat
from kfcore.torch.wrapper import Wrapper

__all__ = ["AdaptiveSGD", "LocalSGD", "SynchronousAveraging", "SynchronousSGD"]

BUCKET_BYTES = 4 << 20


class SynchronousSGD(Wrapper):
    """Averages gradients during the backward pass: all workers take the same steps.

    When ``backward()`` returns, gradients are the averages, so clipping by norm, gradient
    scalers and whatever reads them need nothing special. With one worker nothing is touched.

    Args:
        optimizer: Made over the model's parameters.
        session: Open session.
        model: Its buffers are copied from rank 0 too.
        bucket_bytes: Most bytes that are reduced together.

    Raises:
        UsageError: A parameter is not on the CPU.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        session: Session,
        model: torch.nn.Module | None = None,
        *,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        super().__init__(optimizer, session, model)
        self._buckets: GradientBuckets | None = None
        if session.world_size > 1:
            self._buckets = GradientBuckets(
                self._trained, session, session.world_size, session.rank, bucket_bytes
            )

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside it, backward passes add up gradients here only.

        The next pass outside averages the sums.

        Yields:
            Nothing.
        """
        if self._buckets is None:
            yield
            return
        before, self._buckets.enabled = self._buckets.enabled, False
        try:
            yield
        finally:
            self._buckets.enabled = before

    @contextlib.contextmanager
    def join(self) -> Iterator[None]:
        """Around a loop in which ranks may have different numbers of batches, or none.

        A step averages over the ranks that still have a batch. A rank that is done goes on
        taking the others' steps, so that all end with the same parameters.

        Yields:
            Nothing.
        """
        buckets = self._buckets
        if buckets is None:
            yield
            return
        buckets.counting = True
        try:
            yield
            self.zero_grad()
            while buckets.shadow():
                self.inner.step()
                self.zero_grad()
        finally:
            buckets.counting = False

    def close(self) -> None:
        """Stop averaging; the session stays open."""
        if self._buckets is not None:
            self._buckets.close()


class SynchronousAveraging(Wrapper):
    """SMA: workers train models of their own, tied to a central one (CROSSBOW, VLDB 2019).

    With worker models w_j, central model z and its value before the last step z':
    c_j = alpha (w_j - z);  w_j <- w_j - c_j, then the optimizer's step;
    z <- z + sum_j c_j + momentum (z - z').

    Args:
        optimizer: Made over the model's parameters.
        session: Open session.
        model: Its buffers are copied from rank 0 too.
        alpha: Strength of the tie, in (0, 1]; None: 1 over the number of workers.
        momentum: Of the central model, in [0, 1).

    Raises:
        UsageError: A number is out of range.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        session: Session,
        model: torch.nn.Module | None = None,
        *,
        alpha: float | None = None,
        momentum: float = 0.9,
    ) -> None:
        super().__init__(optimizer, session, model)
        self.alpha = 1 / session.world_size if alpha is None else alpha
        if not 0 < self.alpha <= 1:
            raise UsageError(f"alpha must be in (0, 1], got {alpha}")
        if not 0 <= momentum < 1:
            raise UsageError(f"momentum must be in [0, 1), got {momentum}")
        self.momentum = momentum
        self._flats = Flat.by_type(self._trained)
        self._central = [flat.pack().clone() for flat in self._flats]
        self._before = [central.clone() for central in self._central]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Pull this worker and the central model together, then take the optimizer's step.

        Args:
            closure: See `torch.optim.Optimizer.step`.

        Returns:
            The loss, if there is a closure.
        """
        size = self._session.world_size
        if size > 1:
            for flat, central, before in zip(
                self._flats, self._central, self._before, strict=True
            ):
                mine = flat.pack().clone()
                total = self._session.all_reduce(flat.memory, "avg")
                pull = self.alpha * size * (total - central)
                moved = central + pull + self.momentum * (central - before)
                flat.memory.copy_(mine - self.alpha * (mine - central))
                flat.unpack()
                before.copy_(central)
                central.copy_(moved)
        with torch.enable_grad():
            return super().step(closure)

    @contextlib.contextmanager
    def central(self) -> Iterator[None]:
        """Inside it, the model's parameters are the central model's; the same on all ranks.

        Yields:
            Nothing.
        """
        if self._session.world_size == 1:
            yield
            return
        mine = [flat.pack().clone() for flat in self._flats]
        self._put(self._central)
        try:
            yield
        finally:
            self._put(mine)

    def adopt_central(self) -> None:
        """Make the central model this worker's own."""
        if self._session.world_size > 1:
            self._put(self._central)

    def _put(self, values: list[torch.Tensor]) -> None:
        for flat, value in zip(self._flats, values, strict=True):
            flat.memory.copy_(value)
            flat.unpack()


class LocalSGD(Wrapper):
    """Workers take steps of their own and average their models every so often.

    With an outer optimizer it is DiLoCo (arXiv 2311.08105): what the workers moved on average,
    with its sign turned, is the gradient of the outer step.

    Args:
        optimizer: Made over the model's parameters.
        session: Open session.
        model: Its buffers are copied from rank 0 too.
        every: Steps between averages, >= 1.
        outer: Makes the outer optimizer over the shared parameters, e.g.
            ``lambda ps: torch.optim.SGD(ps, lr=0.7, momentum=0.9, nesterov=True)``.

    Raises:
        UsageError: ``every`` is less than 1.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        session: Session,
        model: torch.nn.Module | None = None,
        *,
        every: int = 8,
        outer: Callable[[list[torch.Tensor]], torch.optim.Optimizer] | None = None,
    ) -> None:
        if every < 1:
            raise UsageError(f"every must be >= 1, got {every}")
        super().__init__(optimizer, session, model)
        self.every = every
        self._steps = 0
        self._flats = Flat.by_type(self._trained)
        self._shared = [flat.pack().clone() for flat in self._flats]
        self._outer = None if outer is None else outer(self._shared)

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Take the optimizer's step; average when it is time.

        Args:
            closure: See `torch.optim.Optimizer.step`.

        Returns:
            The loss, if there is a closure.
        """
        loss = super().step(closure)
        self._steps += 1
        if self._steps % self.every == 0:
            self.average()
        return loss

    @torch.no_grad()
    def average(self) -> None:
        """Average the models now; every rank must call it."""
        if self._session.world_size == 1 and self._outer is None:
            return
        for flat, shared in zip(self._flats, self._shared, strict=True):
            self._session.all_reduce(flat.pack(), "avg")
            if self._outer is not None:
                shared.grad = shared - flat.memory
        if self._outer is not None:
            self._outer.step()
            for flat, shared in zip(self._flats, self._shared, strict=True):
                flat.memory.copy_(shared)
        for flat in self._flats:
            flat.unpack()


class AdaptiveSGD(SynchronousSGD):
    """SMA at first, synchronous SGD from a given step on (KungFu's AdaptiveSGD).

    Args:
        optimizer: Made over the model's parameters.
        session: Open session.
        model: Its buffers are copied from rank 0 too.
        switch_step: The first step of synchronous SGD; None: when `switch` is called.
        alpha: See `SynchronousAveraging`.
        momentum: See `SynchronousAveraging`.
        bucket_bytes: See `SynchronousSGD`.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        session: Session,
        model: torch.nn.Module | None = None,
        *,
        switch_step: int | None = None,
        alpha: float | None = None,
        momentum: float = 0.9,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        super().__init__(optimizer, session, model, bucket_bytes=bucket_bytes)
        self._sma: SynchronousAveraging | None = SynchronousAveraging(
            optimizer, session, alpha=alpha, momentum=momentum
        )
        self._switch_step = switch_step
        self._steps = 0
        if self._buckets is not None:
            self._buckets.enabled = False

    @property
    def averaging(self) -> bool:
        """Whether it still averages models."""
        return self._sma is not None

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Take a step; the switch comes after the last one of SMA.

        Args:
            closure: See `torch.optim.Optimizer.step`.

        Returns:
            The loss, if there is a closure.
        """
        loss = super().step(closure) if self._sma is None else self._sma.step(closure)
        self._steps += 1
        if self._steps == self._switch_step:
            self.switch()
        return loss

    def switch(self) -> None:
        """Go on from the central model with synchronous SGD; on all ranks at the same step."""
        if self._sma is None:
            return
        self._sma.adopt_central()
        self._sma = None
        if self._buckets is not None:
            self._buckets.enabled = True
