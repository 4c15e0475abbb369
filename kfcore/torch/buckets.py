"""Averages gradients in buckets while the backward pass goes on."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from kfcore.errors import UsageError
from kfcore.exchange import Exchange
from kfcore.handle import Handle
from kfcore.torch.memory import Flat

__all__ = ["GradientBuckets"]


class _Bucket:
    def __init__(self, members: list[int], parameters: Sequence[torch.Tensor]) -> None:
        self.members = members
        self.flat = Flat([parameters[at] for at in members])
        self.missing = len(members)


class GradientBuckets:
    """Hooks on parameters: a full bucket is reduced at once, the rest when the pass ends.

    After a backward pass every ``parameter.grad`` is the average and lies in a bucket. Buckets
    start in the same order on all ranks, whatever order gradients come in; after the first pass
    they are arranged in the order in which rank 0 saw the gradients come.

    Args:
        parameters: The same ones on all ranks, in the same order.
        exchange: Session or group to reduce over.
        world_size: Its ranks.
        rank: This one.
        bucket_bytes: Most bytes of a bucket, > 0; a larger gradient has one of its own.

    Raises:
        UsageError: ``bucket_bytes`` is not positive.
    """

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        exchange: Exchange,
        world_size: int,
        rank: int,
        bucket_bytes: int,
    ) -> None:
        if bucket_bytes <= 0:
            raise UsageError(f"bucket_bytes must be > 0, got {bucket_bytes}")
        self.enabled = True
        self.counting = False  # whether ranks may be missing: see `shadow`
        self._parameters = list(parameters)
        self._exchange, self._size, self._rank = exchange, world_size, rank
        self._most = bucket_bytes
        self._arrange(list(range(len(parameters)))[::-1])
        self._seen: list[int] | None = []  # order of the first pass; None: arranged
        self._running = False
        self._handles: list[Handle] = []
        self._next = 0
        self._ready: set[int] = set()
        self._count = np.zeros(1, np.float32)
        self._remove = [
            parameter.register_post_accumulate_grad_hook(self._hook(at))  # type: ignore[no-untyped-call]
            for at, parameter in enumerate(self._parameters)
        ]

    def close(self) -> None:
        """Take the hooks off; gradients stay where they are."""
        for handle in self._remove:
            handle.remove()

    def shadow(self) -> bool:
        """Take part in another rank's backward pass without a gradient of one's own.

        Returns:
            False when no rank has one: all are here.
        """
        self._begin(active=False)
        if self._active() == 0:
            self._running = False
            return False
        self._finish()
        return True

    def reduce_now(self) -> None:
        """Average the gradients that are there, without a backward pass."""
        self._begin(active=True)
        self._finish()

    def _arrange(self, order: list[int]) -> None:
        runs: list[list[int]] = []
        filled, kind = 0, None
        for at in order:
            parameter = self._parameters[at]
            if not runs or kind != parameter.dtype or filled + parameter.nbytes > self._most:
                runs.append([])
                filled, kind = 0, parameter.dtype
            runs[-1].append(at)
            filled += parameter.nbytes
        self._buckets = [_Bucket(members, self._parameters) for members in runs]
        self._place = {
            at: (number, slot)
            for number, members in enumerate(runs)
            for slot, at in enumerate(members)
        }

    def _hook(self, at: int) -> Any:
        def gradient_is_there(parameter: torch.Tensor) -> None:
            if not self.enabled:
                return
            if not self._running:
                self._begin(active=True)
                engine = torch.autograd.Variable._execution_engine
                engine.queue_callback(self._finish)
            self._take(at, parameter)

        return gradient_is_there

    def _begin(self, *, active: bool) -> None:
        self._running = True
        self._next = 0
        self._ready.clear()
        self._handles.clear()
        for bucket in self._buckets:
            bucket.missing = len(bucket.members)
        if self.counting:
            self._count[0] = active
            self._exchange.all_reduce(self._count)

    def _active(self) -> int:
        return int(self._count[0]) if self.counting else self._size

    @torch.no_grad()
    def _take(self, at: int, parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        if gradient is None or at in self._ready:
            return
        if gradient.layout != torch.strided:
            raise UsageError(
                f"gradient of parameter {at} must be dense, got layout {gradient.layout}: make "
                "the embedding with sparse=False"
            )
        number, slot = self._place[at]
        bucket = self._buckets[number]
        view = bucket.flat.views[slot]
        if gradient.data_ptr() != view.data_ptr() or gradient.stride() != view.stride():
            view.copy_(gradient)
            parameter.grad = view
        self._ready.add(at)
        if self._seen is not None:
            self._seen.append(at)
        bucket.missing -= 1
        last = len(self._buckets) - 1  # starts with the pass's end, see _finish
        while self._next < last and self._buckets[self._next].missing == 0:
            self._start(self._buckets[self._next])

    def _start(self, bucket: _Bucket) -> None:
        self._next += 1
        op = "sum" if self.counting else "avg"
        self._handles.append(self._exchange.all_reduce(bucket.flat.memory, op, async_op=True))

    @torch.no_grad()
    def _finish(self) -> None:
        """End a pass: what is not there yet, with a note of who had which gradient."""
        for at, parameter in enumerate(self._parameters):
            self._take(at, parameter)
        for number in range(self._next, len(self._buckets)):
            bucket = self._buckets[number]
            for slot, at in enumerate(bucket.members):
                if at not in self._ready:
                    bucket.flat.views[slot].zero_()
        used = np.zeros(len(self._parameters), np.uint8)
        used[list(self._ready)] = 1
        while self._next < len(self._buckets) - 1:
            self._start(self._buckets[self._next])
        last = self._buckets[-1].flat.memory
        op = "sum" if self.counting else "avg"
        self._exchange.grouped_all_reduce([last, used], [op, "max"])
        for handle in self._handles:
            handle.wait()
        if self.counting and self._active() > 1:
            for bucket in self._buckets:
                bucket.flat.memory.div_(self._active())
        for at, parameter in enumerate(self._parameters):
            if used[at] and at not in self._ready:  # another rank used it
                number, slot = self._place[at]
                parameter.grad = self._buckets[number].flat.views[slot]
        self._running = False
        self._rearrange()

    def _rearrange(self) -> None:
        if self._seen is None:
            return
        order, self._seen = self._seen, None
        order += [at for at in self._place if at not in set(order)]
        agreed = self._exchange.broadcast_object(order)
        if agreed != list(self._place):
            self._arrange(agreed)
