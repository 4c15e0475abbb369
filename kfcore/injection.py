"""Carries a fault plan out inside a real worker, at step boundaries."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from kfcore.errors import KfError
from kfcore.faults import Fault, FaultPlan
from kfcore.store.wire import parse_address

__all__ = ["Injector"]


class _Job(Protocol):
    """The part of a session or member that faults need."""

    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...


class Injector:
    """Makes happen to this process what a plan has for its rank.

    Args:
        plan: What, and at which step.
    """

    def __init__(self, plan: FaultPlan) -> None:
        self._plan = plan
        self._done = 0  # all faults of steps up to this one have happened

    def enter(
        self,
        step: int,
        session: _Job,
        view_version: int,
        log: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        """Called when this worker has its gradients for a step, before the exchange.

        Args:
            step: From 1. A step that is repeated brings no fault again.
            session: A session, or a member.
            view_version: Of the view under way.
            log: Receives the event of each fault, whoever it happens to.
        """
        delay_s = self._plan.delay_s(step, session.rank)
        if delay_s > 0:
            time.sleep(delay_s)
        if step <= self._done:
            return
        self._done = step
        for fault in self._plan.at(step):
            if log is not None:
                log(fault.event(view_version))
            self._happen(fault, session)

    def _happen(self, fault: Fault, session: _Job) -> None:
        me = session.rank
        if fault.kind == "join" and me == 0:
            _ask(session, "resize", session.world_size + fault.workers, "the fault plan")
        elif fault.kind == "cut" and me in (fault.rank, fault.peer):
            _cut(session, fault.peer if me == fault.rank else fault.rank)
        elif fault.rank != me:
            return
        elif fault.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault.kind == "leave" and not _ask(session, "leave"):
            os.kill(os.getpid(), signal.SIGTERM)
        elif fault.kind == "stop":
            _stop(fault.seconds)


def _ask(session: Any, what: str, *arguments: Any) -> bool:
    """Ask a member for a change; False where workers cannot change."""
    request = getattr(session, what, None)
    if request is None:
        return False
    with contextlib.suppress(KfError):  # refused: out of limits, as the log will show
        request(*arguments)
    return True


def _stop(seconds: float) -> None:
    """Stop this process; another one, of the same group, lets it go on."""
    if seconds > 0:
        text = f"sleep {seconds}; kill -CONT {os.getpid()}"
        subprocess.Popen(  # noqa: S603 - our own text
            ["/bin/sh", "-c", text],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    os.kill(os.getpid(), signal.SIGSTOP)


def _cut(session: Any, peer: int | None) -> None:
    """Shut down this process's connections to a peer, as a broken link would."""
    with contextlib.suppress(KfError):
        roster = getattr(session, "roster", None)  # of a member, whose view has ids only
        addresses: list[str] = (
            list(session.view.members)
            if roster is None
            else [member.address for member in roster.members]
        )
        if peer is None or peer >= len(addresses):
            return
        target = parse_address(addresses[peer])
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(Path("/proc/self/fd") / name).startswith("socket:"):
                    _shut(int(name), target)


def _shut(fd: int, target: tuple[str, int]) -> None:
    with socket.socket(fileno=os.dup(fd)) as copy:
        if (
            copy.family in (socket.AF_INET, socket.AF_INET6)
            and copy.getpeername()[:2] == target
        ):
            copy.shutdown(socket.SHUT_RDWR)
