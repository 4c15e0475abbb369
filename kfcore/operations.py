"""What sessions and groups have in common: how a call becomes an operation of the core."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kfcore import _native
from kfcore.checks import text, whole_number
from kfcore.errors import UsageError
from kfcore.handle import Handle, check_timeout
from kfcore.staging import Staged, stage
from kfcore.trace import Trace

__all__ = ["Operations", "Shared"]


class Shared:
    """State of one session that its groups use too.

    Args:
        native: The core's session.
        timeout_s: Longest time of an operation unless its call says otherwise, in seconds.
    """

    def __init__(self, native: _native.Session, timeout_s: float) -> None:
        self.native = native
        self.timeout_s = check_timeout(timeout_s)
        self.check_call_sites = False
        self.trace: Trace | None = None
        self._under_way: list[Handle] = []
        self._most = 64

    def keep(self, handle: Handle) -> None:
        """Keep what a call under way needs, also when its caller drops the handle."""
        if len(self._under_way) >= self._most:
            self._under_way = [each for each in self._under_way if not each.done()]
            self._most = max(64, 2 * len(self._under_way))
        self._under_way.append(handle)

    def drop_all(self) -> None:
        """Forget all calls; the core must have let go of their memory."""
        self._under_way.clear()


class Operations:
    """Runs calls among some ranks.

    Args:
        shared: The session's state.
        group: The ranks; None: all of the view.
        rank: This rank among them.
        size: How many they are.
    """

    def __init__(
        self, shared: Shared, group: _native.Group | None, rank: int, size: int
    ) -> None:
        self._shared = shared
        self._native = shared.native
        self._group = group
        self._rank = rank
        self._size = size
        # The short way for plain calls among all ranks; see native/bindings/bind_caller.cc.
        self._caller = _native.Caller(shared.native, np.ndarray) if group is None else None

    def _perform(
        self,
        collective: str,
        arrays: Sequence[Any],
        finish: Callable[[], Any],
        *,
        ops: str | Sequence[str] = "sum",
        root: int = 0,
        name: str | None,
        timeout_s: float | None,
        async_op: bool,
        blocks: Sequence[int] = (),
        writes: bool = True,
        norms: _native.NormSums | None = None,
    ) -> Any:
        staged = stage(arrays, ops, writes=writes)
        root = whole_number(root, "root")
        if async_op or self._group is not None or blocks or self._must_look():
            call = _native.call(
                collective,
                staged.pieces,
                root,
                self._named(name),
                list(blocks),
                self._site(),
                norms,
            )
            return self._start(call, collective, staged, finish, timeout_s, async_op)
        self._native.run(
            collective, staged.pieces, root, self._named(name), self._limit(timeout_s), norms
        )
        staged.write_back()
        return finish()

    def run_in_place(
        self,
        collective: str,
        array: Any,
        finish: Callable[[], Any],
        *,
        op: str = "sum",
        root: int = 0,
        blocks: Sequence[int] = (),
        timeout_s: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Run a collective on a buffer laid out as the core wants it; for adapters.

        Args:
            collective: Of `kfcore.schedule`, e.g. ``all_gather``.
            array: Rows of all ranks, changed in place.
            finish: Called once it is done; what it returns is the result.
            op: See `all_reduce`.
            root: Rank that has the data, or gets it.
            blocks: Elements of each rank; default: equally many.
            timeout_s: Longest time to wait, in seconds; default: the session's.
            async_op: Return a :class:`~kfcore.handle.Handle` at once.

        Returns:
            What ``finish`` returned, or the handle.

        Raises:
            UsageError: An argument is not usable.
            TransportError: The session failed.
        """
        return self._perform(
            collective,
            [array],
            finish,
            ops=op,
            root=root,
            name=None,
            timeout_s=timeout_s,
            async_op=async_op,
            blocks=blocks,
        )

    def _start(
        self,
        call: _native.Call,
        what: str,
        staged: Staged,
        finish: Callable[[], Any],
        timeout_s: float | None,
        async_op: bool,
        message: tuple[Callable[..., _native.Started], int, int] | None = None,
    ) -> Any:
        limit_s = self._limit(timeout_s)
        rest = (call, self._group, async_op, limit_s)
        if message is None:
            started = _native.start(self._native, *rest)
        else:
            begin, peer, tag = message
            started = begin(self._native, peer, tag, *rest)
        trace = self._shared.trace

        def complete() -> Any:
            staged.write_back()
            staged.kept.clear()
            if trace is not None:
                trace.add(what, *started.times())
            return finish()

        if async_op:
            handle = Handle(self._native, [started], limit_s, complete)
            self._shared.keep(handle)
            return handle
        _native.wait(self._native, started, limit_s)
        return complete()

    def _limit(self, timeout_s: float | None) -> float:
        return self._shared.timeout_s if timeout_s is None else check_timeout(timeout_s)

    def _must_look(self) -> bool:
        return self._shared.trace is not None or self._shared.check_call_sites

    def _site(self) -> str:
        """File and line of the caller outside this package, when ranks compare them."""
        if not self._shared.check_call_sites:
            return ""
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get("__package__") == "kfcore":
            frame = frame.f_back
        file = frame.f_code.co_filename.rpartition("/")[2]
        return f"{file}:{frame.f_lineno}"

    @staticmethod
    def _named(name: str | None) -> str:
        if name is None:
            return ""
        if not text(name, "name"):
            raise UsageError("name must not be empty; leave it out for an unnamed operation")
        return name
