"""A torch process group over a session of the core, for tensors in CPU memory.

Blocking calls are done when they return. Calls under way are `HandleWork`s; the session goes
on with them while the program computes.
"""

from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from kfcore.errors import UsageError
from kfcore.exchange import Exchange
from kfcore.handle import Handle
from kfcore.session import Session
from kfcore.torch.collectives import Transfers
from kfcore.torch.tensors import op_name
from kfcore.torch.works import DONE, Completer, HandleWork

__all__ = ["ProcessGroup"]

Tensor = torch.Tensor
Tensors = list[Tensor]
_Base: Any = dist.ProcessGroup  # its stubs know neither the old names nor the new ones all
_SMALL_BYTES = 4096
_UNSET_S = 0.0  # torch's "no time-out given" is -1 ms


class ProcessGroup(_Base):  # type: ignore[misc]
    """What ``init_process_group("kf")`` and ``new_group`` make.

    Both the names of torch 2.13 (``all_gather_single``, ...) and the older ones are there.

    Args:
        exchange: The session, or a group of it.
        session: The session; closed with the default group, see `owns`.
        rank: This worker's place in the group.
        size: Members.
        timeout: Longest time of an operation unless its call says otherwise.
        owns: Whether shutting this group down closes the session.
    """

    def __init__(
        self,
        exchange: Exchange,
        session: Session,
        rank: int,
        size: int,
        timeout: timedelta,
        *,
        owns: bool,
    ) -> None:
        super().__init__(rank, size)
        self._session: Session | None = session
        self._exchange: Exchange | None = exchange
        self.owns = owns
        self._place, self._members = rank, size
        self._timeout_s = timeout.total_seconds()
        self._completer = Completer()
        self._name, self._about = "", "undefined"
        self._store: Any = None
        self._together: list[Handle] | None = None
        # DistributedDataParallel's join gives a work to C++ and forgets it: without its Python
        # half it would wait for ever
        self._recent: deque[HandleWork] = deque(maxlen=64)

    @property
    def session(self) -> Session:
        """The session whose connections it uses.

        Raises:
            UsageError: The group was destroyed.
        """
        if self._session is None:
            raise UsageError("this process group was destroyed; make another")
        return self._session

    @property
    def exchange(self) -> Exchange:
        """The session, or the group of it that this one stands for.

        Raises:
            UsageError: The group was destroyed.
        """
        if self._exchange is None:
            raise UsageError("this process group was destroyed; make another")
        return self._exchange

    @property
    def _transfers(self) -> Transfers:
        return Transfers(self.exchange, self._place, self._members)

    # --- what every collective does -------------------------------------------------

    def _run(
        self,
        call: Callable[[bool, float | None], Any],
        tensors: Tensors,
        opts: Any = None,
    ) -> dist.Work:
        """Run ``call(async_op, timeout_s)``, which gives a handle where it is asynchronous."""
        limit_s = None
        if opts is not None:
            given_s = opts.timeout.total_seconds()
            limit_s = given_s if given_s > _UNSET_S and given_s != self._timeout_s else None
        if limit_s is None and self._timeout_s != self.session.timeout_s:
            limit_s = self._timeout_s
        if self._together is None and not getattr(opts, "asyncOp", True):
            call(False, limit_s)
            return DONE()
        handle = call(True, limit_s)
        if self._together is not None:
            self._together.append(handle)
        work = HandleWork(handle, tensors, self._completer)
        if sum(tensor.nbytes for tensor in tensors) <= _SMALL_BYTES:
            self._recent.append(work)
        return work

    # --- reductions -----------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None) -> dist.Work:
        """Reduce tensors in place; see `torch.distributed.all_reduce`."""
        tensors = [tensors] if isinstance(tensors, Tensor) else tensors
        opts = dist.AllreduceOptions() if opts is None else opts
        op = op_name(opts.reduceOp)
        return self._run(
            lambda *how: self._transfers.all_reduce(tensors, op, *how), tensors, opts
        )

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        """Reduce several tensors together, in place."""
        opts = dist.AllreduceCoalescedOptions() if opts is None else opts
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Tensors, opts: Any) -> dist.Work:
        """Reduce a tensor into the root's."""
        op, root, tensor = op_name(opts.reduceOp), opts.rootRank, tensors[0]
        return self._run(
            lambda *how: self._transfers.reduce(tensor, op, root, *how), tensors, opts
        )

    def reduce_scatter(
        self, output_tensors: Tensors, input_tensors: list[Tensors], opts: Any = None
    ) -> dist.Work:
        """Reduce lists of tensors; each rank gets its own."""
        opts = dist.ReduceScatterOptions() if opts is None else opts
        op, out, parts = op_name(opts.reduceOp), output_tensors[0], input_tensors[0]
        return self._run(
            lambda *how: self._transfers.reduce_scatter_list(out, parts, op, *how),
            output_tensors,
            opts,
        )

    def reduce_scatter_single(
        self, output: Tensor, source: Tensor, opts: Any = None
    ) -> dist.Work:
        """Reduce a tensor; each rank gets its part of it."""
        opts = dist.ReduceScatterOptions() if opts is None else opts
        op = op_name(opts.reduceOp)
        return self._run(
            lambda *how: self._transfers.reduce_scatter(output, source, op, *how),
            [output],
            opts,
        )

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> dist.Work:
        """Several `reduce_scatter_single` together."""
        opts = dist.ReduceScatterOptions() if opts is None else opts
        op = op_name(opts.reduceOp)
        calls = [
            lambda *how, out=out, whole=whole: self._transfers.reduce_scatter(
                out, whole, op, *how
            )
            for out, whole in zip(outputs, inputs, strict=True)
        ]
        return self._run(lambda *how: _all(calls, *how), outputs, opts)

    # --- moves ----------------------------------------------------------------------

    def broadcast(self, tensors: Any, opts: Any) -> dist.Work:
        """Copy the root's tensor to all."""
        tensors = [tensors] if isinstance(tensors, Tensor) else tensors
        root = opts.rootRank
        return self._run(
            lambda *how: self._transfers.broadcast(tensors[0], root, *how), tensors, opts
        )

    def allgather(
        self, output_tensors: list[Tensors], input_tensors: Tensors, opts: Any = None
    ) -> dist.Work:
        """Collect every rank's tensor on all; their sizes may differ."""
        outs, mine = output_tensors[0], input_tensors[0]
        return self._run(
            lambda *how: self._transfers.all_gather_list(outs, mine, *how), outs, opts
        )

    def allgather_coalesced(
        self, output_lists: list[Tensors], input_list: Tensors, opts: Any = None
    ) -> dist.Work:
        """Collect every rank's list of tensors on all: ``output_lists[rank][i]``."""
        calls = [
            lambda *how, at=at, mine=mine: self._transfers.all_gather_list(
                [outs[at] for outs in output_lists], mine, *how
            )
            for at, mine in enumerate(input_list)
        ]
        return self._run(
            lambda *how: _all(calls, *how), [t for outs in output_lists for t in outs], opts
        )

    def all_gather_single(self, output: Tensor, source: Tensor, opts: Any = None) -> dist.Work:
        """Collect every rank's tensor in one."""
        return self._run(
            lambda *how: self._transfers.all_gather(output, source, *how), [output], opts
        )

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> dist.Work:
        """Several `all_gather_single` together."""
        calls = [
            lambda *how, out=out, mine=mine: self._transfers.all_gather(out, mine, *how)
            for out, mine in zip(outputs, inputs, strict=True)
        ]
        return self._run(lambda *how: _all(calls, *how), outputs, opts)

    def gather(
        self, output_tensors: list[Tensors], input_tensors: Tensors, opts: Any
    ) -> dist.Work:
        """Collect every rank's tensor on the root."""
        root, mine = opts.rootRank, input_tensors[0]
        outs = output_tensors[0] if output_tensors else []
        return self._run(
            lambda *how: self._transfers.gather(outs, mine, root, *how), outs, opts
        )

    def scatter(
        self, output_tensors: Tensors, input_tensors: list[Tensors], opts: Any
    ) -> dist.Work:
        """Give each rank its tensor of the root's list."""
        root, out = opts.rootRank, output_tensors[0]
        parts = input_tensors[0] if input_tensors else []
        return self._run(
            lambda *how: self._transfers.scatter(out, parts, root, *how), output_tensors, opts
        )

    def all_to_all_single(
        self,
        output: Tensor,
        source: Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
    ) -> dist.Work:
        """Exchange parts of a tensor, cut along its first axis, evenly without sizes."""
        sizes = (list(output_split_sizes), list(input_split_sizes))
        return self._run(
            lambda *how: self._transfers.all_to_all(output, source, *sizes, *how),
            [output],
            opts,
        )

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        """Exchange lists of tensors of any sizes."""
        return self._run(
            lambda *how: self._transfers.all_to_all_list(outputs, inputs, *how), outputs, opts
        )

    def barrier(self, opts: Any = None) -> dist.Work:
        """Wait for all."""
        return self._run(self._transfers.barrier, [], opts)

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Wait for all; the error names who did not come, whatever ``wait_all_ranks`` is."""
        del wait_all_ranks
        limit_s = None if timeout is None else timeout.total_seconds()
        self.exchange.barrier(timeout_s=limit_s)

    # --- messages -------------------------------------------------------------------

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> dist.Work:
        """Send a tensor to a rank of this group."""
        handle = self._transfers.send(tensors[0], dst, tag, self._limit())
        return self._message(handle, tensors)

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> dist.Work:
        """Receive a tensor from a rank of this group."""
        handle = self._transfers.recv(tensors[0], src, tag, self._limit())
        return self._message(handle, tensors, src)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> dist.Work:
        """Refuse: messages of the core have a known sender."""
        raise NotImplementedError("the kf back end receives from a given rank: pass src=")

    def _message(self, handle: Handle, tensors: Tensors, source: int = -1) -> dist.Work:
        if self._together is not None:
            self._together.append(handle)
        return HandleWork(handle, tensors, None, source)

    def _limit(self) -> float | None:
        return None if self._timeout_s == self.session.timeout_s else self._timeout_s

    # --- several calls together -----------------------------------------------------

    def _start_coalescing(self, device: Any = None) -> None:
        del device
        self._together = []

    def _end_coalescing(self, device: Any = None) -> dist.Work:
        del device
        handles, self._together = self._together or [], None
        return HandleWork(Handle.of(handles, lambda: None), [], self._completer)

    # --- names, sizes, end ----------------------------------------------------------

    def getBackendName(self) -> str:  # noqa: N802 - torch's name, asked for by its C++ side
        """Name under which the back end is registered."""
        return "kf"

    def name(self) -> str:
        """Likewise."""
        return "kf"

    def getRank(self) -> int:  # noqa: N802
        """This worker's place in the group."""
        return self._place

    def rank(self) -> int:
        """Likewise."""
        return self._place

    def getSize(self) -> int:  # noqa: N802
        """Members of the group."""
        return self._members

    def size(self) -> int:
        """Likewise."""
        return self._members

    def getGroupName(self) -> str:  # noqa: N802
        """What torch calls this group."""
        return self._name

    def setGroupName(self, group_name: str) -> None:  # noqa: N802
        """Be called so."""
        self._name = group_name

    _set_group_name = setGroupName
    group_name = property(getGroupName)

    def getGroupDesc(self) -> str:  # noqa: N802
        """What the program says about this group."""
        return self._about

    def setGroupDesc(self, group_desc: str) -> None:  # noqa: N802
        """Say something about it."""
        self._about = group_desc

    _set_group_desc = setGroupDesc
    group_desc = property(getGroupDesc)

    def get_group_store(self) -> Any:
        """The torch store through which the members met."""
        return self._store

    def keep_store(self, store: Any) -> None:
        """Remember through which store the members met."""
        self._store = store

    def set_timeout(self, timeout: timedelta) -> None:
        """Give the operations that follow another longest time."""
        self._timeout_s = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def shutdown(self) -> None:
        """Leave: close the session if it is this group's own."""
        self._completer.stop()
        session, self._session, self._exchange = self._session, None, None
        if session is not None and self.owns:
            session.close()

    abort = shutdown

    # the names that torch had before 2.13
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced


def _all(calls: Sequence[Callable[..., Any]], async_op: bool, timeout_s: float | None) -> Any:
    """Start all, then wait for them or give one handle."""
    whole = Handle.of([call(True, timeout_s) for call in calls], lambda: None)
    return whole if async_op else whole.wait()
