"""Operations under way as torch sees them: works and futures.

A failure must reach torch as an error of its C++ side: `torch.futures.Future.set_exception`
only stores a Python object as the value, and DistributedDataParallel's reducer crashes the
process when it finds one. A callback that raises makes a real error, so every future that is
given away is made by `then`.
"""

import queue
import threading
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from kfcore.handle import Handle

__all__ = ["DONE", "Completer", "HandleWork"]

Future = torch.futures.Future


def _outcome(future: "Future[Any]") -> Any:
    """Give the value on, or raise what an operation failed with."""
    value, error = future.value()
    if error is not None:
        raise error
    return value


class Completer:
    """Waits for operations in the order in which they were started, and completes futures.

    Its thread starts with the first future that somebody asks for and ends when nothing more
    can come.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Handle, Any, Future[Any]] | None] | None = None
        self._lock = threading.Lock()

    def future(self, handle: Handle, value: Any) -> "Future[Any]":
        """A future of an operation.

        Args:
            handle: The operation.
            value: The future's value once it is done.

        Returns:
            Completed by the thread, or failed with a RuntimeError that carries the text.
        """
        inner: Future[Any] = Future()
        outer = inner.then(_outcome)
        if handle.done():  # DistributedDataParallel's join takes the value right after wait()
            _complete(handle, value, inner)
            return outer
        with self._lock:
            if self._queue is None:
                self._queue = queue.SimpleQueue()
                thread = threading.Thread(
                    target=_complete_all, args=(self._queue,), name="kf-futures", daemon=True
                )
                weakref.finalize(self, self._queue.put, None)
                thread.start()
            self._queue.put((handle, value, inner))
        return outer

    def stop(self) -> None:
        """Let the thread end after what it has to do."""
        with self._lock:
            if self._queue is not None:
                self._queue.put(None)
                self._queue = None


def _complete_all(todo: "queue.SimpleQueue[tuple[Handle, Any, Future[Any]] | None]") -> None:
    while (entry := todo.get()) is not None:
        _complete(*entry)
        del entry


def _complete(handle: Handle, value: Any, future: "Future[Any]") -> None:
    try:
        handle.wait()
    except BaseException as error:
        future.set_result((None, error))
    else:
        future.set_result((value, None))


class HandleWork(dist.Work):
    """One operation under way.

    Args:
        handle: The core's.
        result: Tensors it leaves its result in.
        completer: Completes its future; None: a thread of its own does, for messages, which
            may be done in any order.
        source: Rank that a message comes from.
    """

    def __init__(
        self,
        handle: Handle,
        result: list[torch.Tensor],
        completer: Completer | None,
        source: int = -1,
    ) -> None:
        super().__init__()
        self._handle = handle
        self._tensors = result
        self._completer = completer
        self._source = source
        self._error: Exception | None = None
        self._future: Future[Any] | None = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait for it.

        Args:
            timeout: Longest time; zero or less: the operation's own.

        Returns:
            True.

        Raises:
            KfError: What the session failed with.
        """
        limit_s = timeout.total_seconds()
        try:
            self._handle.wait(limit_s if limit_s > 0 else None)
        except Exception as error:
            self._error = error
            raise
        return True

    def synchronize(self) -> None:
        """Wait for it; there are no streams on the CPU."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether it is done or has failed."""
        return self._handle.done()

    def is_success(self) -> bool:
        """Whether it is done and has not failed."""
        if not self._handle.done():
            return False
        try:
            return self.wait()
        except Exception:
            return False

    def exception(self) -> Exception | None:
        """What it failed with, as far as that is known."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """The tensors that hold its result."""
        return self._tensors

    def source_rank(self) -> int:
        """Rank that a message came from."""
        return self._source

    _source_rank = source_rank

    def get_future(self) -> "Future[Any]":
        """A future whose value is `result`."""
        if self._future is None:
            completer = self._completer or Completer()
            self._future = completer.future(self._handle, self._tensors)
        return self._future


class DoneWork(dist.Work):
    """An operation that was done before the call returned."""

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:  # noqa: ARG002
        """Return at once."""
        return True

    def synchronize(self) -> None:
        """Return at once."""

    def is_completed(self) -> bool:
        """Always."""
        return True

    def is_success(self) -> bool:
        """Always; a failed call has raised."""
        return True

    def exception(self) -> None:
        """None: a failed call has raised."""

    def get_future(self) -> "Future[Any]":
        """A completed future."""
        future: Future[Any] = Future()
        future.set_result([])
        return future


DONE: Callable[[], DoneWork] = DoneWork
