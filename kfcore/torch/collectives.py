"""torch's collectives in terms of the core's: where data lies, what has to be copied."""

from collections.abc import Sequence
from typing import Any

import torch

from kfcore.errors import UsageError
from kfcore.exchange import Exchange
from kfcore.handle import Handle
from kfcore.torch.tensors import flat, movable, rows_of

__all__ = ["Transfers"]

Tensor = torch.Tensor
_BITWISE = {
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}
_EXCHANGE_TAG = -(1 << 62)  # of the messages that make up uneven exchanges


class Transfers:
    """One group's collectives over tensors.

    The last two arguments of each are whether to return a handle at once, and the longest time
    in seconds (None: the session's).

    Args:
        exchange: The session or group.
        rank: This worker's place in it.
        size: Its members.
    """

    def __init__(self, exchange: Exchange, rank: int, size: int) -> None:
        self._exchange = exchange
        self._rank, self._size = rank, size

    def all_reduce(
        self, tensors: Sequence[Tensor], op: str, async_op: bool, timeout_s: float | None
    ) -> Any:
        """Reduce tensors in place."""
        if op in _BITWISE:
            return self._bitwise(tensors, op, async_op, timeout_s)
        if len(tensors) == 1:
            return self._exchange.all_reduce(
                tensors[0], op, timeout_s=timeout_s, async_op=async_op
            )
        return self._exchange.grouped_all_reduce(
            list(tensors), op, timeout_s=timeout_s, async_op=async_op
        )

    def _bitwise(
        self, tensors: Sequence[Tensor], op: str, async_op: bool, timeout_s: float | None
    ) -> Any:
        """Collect all contributions and combine them here: rare, and small in practice."""
        if any(t.dtype.is_floating_point or t.is_complex() for t in tensors):
            raise UsageError(f"{op} needs tensors of integers or booleans")
        handles = [
            self._exchange.all_gather(t, timeout_s=timeout_s, async_op=True) for t in tensors
        ]

        def combine() -> None:
            for tensor, handle in zip(tensors, handles, strict=True):
                rows = handle.result
                total = rows[0]
                for row in rows[1:]:
                    total = _BITWISE[op](total, row)
                tensor.copy_(total)

        whole = Handle.of(handles, combine)
        return whole if async_op else whole.wait()

    def reduce(
        self, tensor: Tensor, op: str, root: int, async_op: bool, timeout_s: float | None
    ) -> Any:
        """Reduce a tensor into the root's."""
        if op in _BITWISE:
            target = tensor if self._rank == root else tensor.clone()
            return self._bitwise([target], op, async_op, timeout_s)
        return self._exchange.reduce(tensor, op, root, timeout_s=timeout_s, async_op=async_op)

    def broadcast(
        self, tensor: Tensor, root: int, async_op: bool, timeout_s: float | None
    ) -> Any:
        """Copy the root's tensor to all."""
        return self._exchange.broadcast(
            movable(tensor.detach()), root, timeout_s=timeout_s, async_op=async_op
        )

    def all_gather(
        self, output: Tensor, mine: Tensor, async_op: bool, timeout_s: float | None
    ) -> Any:
        """Collect every rank's tensor in one, without a copy where ``output`` is contiguous."""
        if output.numel() != mine.numel() * self._size or output.dtype != mine.dtype:
            raise UsageError(
                f"output must have {self._size} x {mine.numel()} elements of {mine.dtype}, got "
                f"{output.numel()} of {output.dtype}"
            )
        target = flat(output)
        row = target.view(self._size, -1)[self._rank]
        source = flat(mine)
        if row.data_ptr() != source.data_ptr():
            row.copy_(source)

        def finish() -> None:
            if not output.is_contiguous():
                output.copy_(target.view(output.dtype).view(output.shape))

        return self._start("all_gather", target, finish, async_op, timeout_s)

    def all_gather_list(
        self, outs: Sequence[Tensor], mine: Tensor, async_op: bool, timeout_s: float | None
    ) -> Any:
        """Collect every rank's tensor; the list tells how large each is."""
        source = flat(mine)
        width = mine.element_size() // source.element_size()  # bytes stand for some types
        counts = [out.numel() * width for out in outs]
        if counts[self._rank] != source.numel():
            raise UsageError(
                f"output {self._rank} must have {mine.numel()} elements as the input has, got "
                f"{outs[self._rank].numel()}"
            )
        handle = self._exchange.all_gather_uneven(
            source, counts, timeout_s=timeout_s, async_op=True
        )

        def finish() -> None:
            for out, part in zip(outs, handle.result.split(counts), strict=True):
                out.detach().copy_(part.view(out.dtype).view(out.shape))

        whole = Handle.of([handle], finish)
        return whole if async_op else whole.wait()

    def gather(
        self,
        outs: Sequence[Tensor],
        mine: Tensor,
        root: int,
        async_op: bool,
        timeout_s: float | None,
    ) -> Any:
        """Collect every rank's tensor on the root."""
        handle = self._exchange.gather(flat(mine), root, timeout_s=timeout_s, async_op=True)

        def finish() -> None:
            if self._rank == root:
                for out, row in zip(outs, handle.result, strict=True):
                    out.detach().copy_(row.view(out.dtype).view(out.shape))

        whole = Handle.of([handle], finish)
        return whole if async_op else whole.wait()

    def scatter(
        self,
        out: Tensor,
        parts: Sequence[Tensor],
        root: int,
        async_op: bool,
        timeout_s: float | None,
    ) -> Any:
        """Give each rank its tensor of the root's list."""
        mine = flat(out)
        rows = (
            rows_of(parts) if self._rank == root else mine.new_empty(self._size, mine.numel())
        )
        if rows.shape != (self._size, mine.numel()):
            raise UsageError(
                f"scatter needs {self._size} tensors of {out.numel()} elements, got "
                f"{len(parts)} of {rows.shape[1]}"
            )

        def finish() -> None:
            out.detach().copy_(rows[self._rank].view(out.dtype).view(out.shape))

        return self._start("scatter", rows, finish, async_op, timeout_s, root=root)

    def reduce_scatter(
        self, out: Tensor, whole: Tensor, op: str, async_op: bool, timeout_s: float | None
    ) -> Any:
        """Reduce a tensor; each rank gets its part."""
        if whole.numel() != out.numel() * self._size or out.dtype != whole.dtype:
            raise UsageError(
                f"input must have {self._size} x {out.numel()} elements of {out.dtype}, got "
                f"{whole.numel()} of {whole.dtype}"
            )
        rows = whole.detach().reshape(self._size, -1).clone()
        return self._reduce_rows(out, rows, op, async_op, timeout_s)

    def reduce_scatter_list(
        self,
        out: Tensor,
        parts: Sequence[Tensor],
        op: str,
        async_op: bool,
        timeout_s: float | None,
    ) -> Any:
        """Reduce a list of tensors, of any sizes; each rank gets its own."""
        if len({part.numel() for part in parts}) == 1:
            return self._reduce_rows(out, rows_of(parts), op, async_op, timeout_s)
        buffer = torch.cat([flat(part) for part in parts])
        begin = sum(part.numel() for part in parts[: self._rank])

        def finish() -> None:
            out.detach().copy_(buffer[begin : begin + out.numel()].view(out.shape))

        sizes = [part.numel() for part in parts]
        return self._start(
            "reduce_scatter", buffer, finish, async_op, timeout_s, op=op, blocks=sizes
        )

    def _reduce_rows(
        self, out: Tensor, rows: Tensor, op: str, async_op: bool, timeout_s: float | None
    ) -> Any:
        def finish() -> None:
            out.detach().copy_(rows[self._rank].view(out.shape))

        return self._start("reduce_scatter", rows, finish, async_op, timeout_s, op=op)

    def all_to_all(
        self,
        out: Tensor,
        source: Tensor,
        out_sizes: Sequence[int],
        source_sizes: Sequence[int],
        async_op: bool,
        timeout_s: float | None,
    ) -> Any:
        """Exchange parts along the first axis."""
        if not out_sizes and not source_sizes:
            if out.numel() != source.numel() or source.numel() % self._size:
                raise UsageError(
                    f"even parts need equally many elements, a multiple of {self._size}, got "
                    f"{source.numel()} in and {out.numel()} out"
                )
            rows = flat(source).view(self._size, -1)
            handle = self._exchange.all_to_all(rows, timeout_s=timeout_s, async_op=True)

            def finish() -> None:
                out.detach().copy_(handle.result.view(-1).view(out.dtype).view(out.shape))

            whole = Handle.of([handle], finish)
            return whole if async_op else whole.wait()
        outs = _parts(out, out_sizes, self._size)
        sources = _parts(source, source_sizes, self._size)
        return self.all_to_all_list(outs, sources, async_op, timeout_s)

    def all_to_all_list(
        self,
        outs: Sequence[Tensor],
        sources: Sequence[Tensor],
        async_op: bool,
        timeout_s: float | None,
    ) -> Any:
        """Exchange tensors of any sizes, as messages: nobody has to know all sizes."""
        handles = []
        for distance in range(1, self._size):
            src = (self._rank - distance) % self._size
            handles.append(self.recv(outs[src], src, _EXCHANGE_TAG, timeout_s))
        for distance in range(1, self._size):
            dst = (self._rank + distance) % self._size
            handles.append(self.send(sources[dst], dst, _EXCHANGE_TAG, timeout_s))
        outs[self._rank].detach().copy_(sources[self._rank])
        if not handles:
            return self.barrier(async_op, timeout_s)
        whole = Handle.of(handles, lambda: None)
        return whole if async_op else whole.wait()

    def send(self, tensor: Tensor, peer: int, tag: int, timeout_s: float | None) -> Handle:
        """Send a tensor; always asynchronous."""
        handle: Handle = self._exchange.send(
            flat(tensor), peer, tag, timeout_s=timeout_s, async_op=True
        )
        return handle

    def recv(self, tensor: Tensor, peer: int, tag: int, timeout_s: float | None) -> Handle:
        """Receive a tensor; always asynchronous."""
        handle: Handle = self._exchange.recv(
            movable(tensor.detach()), peer, tag, timeout_s=timeout_s, async_op=True
        )
        return handle

    def barrier(self, async_op: bool, timeout_s: float | None) -> Any:
        """Wait for all."""
        return self._exchange.barrier(timeout_s=timeout_s, async_op=async_op)

    def _start(
        self,
        collective: str,
        buffer: Tensor,
        finish: Any,
        async_op: bool,
        timeout_s: float | None,
        *,
        op: str = "sum",
        root: int = 0,
        blocks: Sequence[int] = (),
    ) -> Any:
        return self._exchange.run_in_place(
            collective,
            buffer,
            finish,
            op=op,
            root=root,
            blocks=blocks,
            timeout_s=timeout_s,
            async_op=async_op,
        )


def _parts(tensor: Tensor, sizes: Sequence[int], ranks: int) -> list[Tensor]:
    if not sizes:
        if tensor.shape[0] % ranks:
            raise UsageError(
                f"{tensor.shape[0]} rows cannot be split evenly over {ranks} ranks"
            )
        sizes = [tensor.shape[0] // ranks] * ranks
    if len(sizes) != ranks or sum(sizes) != tensor.shape[0]:
        raise UsageError(
            f"split sizes must be {ranks} numbers that add up to {tensor.shape[0]}, got {sizes}"
        )
    return list(torch.split(tensor.detach(), list(sizes)))
