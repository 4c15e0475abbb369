"""A notice to leave (SIGTERM, a cloud's warning): all workers stop at one step and save."""

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from kfcore.errors import UsageError
from kfcore.exits import EXIT_PREEMPTED
from kfcore.policy.actions import Stop
from kfcore.policy.base import Actions, Policy
from kfcore.policy.observation import LocalStep, Observation
from kfcore.policy.signals import Signal, Sum

__all__ = ["EXIT_PREEMPTED", "Preemption"]


class Preemption(Policy):
    """Stops the job everywhere at the same boundary once any worker was told to leave.

    The notice rides in the control block, so it costs no message. After it, the step under way
    and at most two more are finished; then the loop ends, the state is committed, and there is
    time to save it: the grace must cover this. Leave with `EXIT_PREEMPTED`, which ``kf run``
    takes for an orderly end.

    Attributes:
        asked: Workers that were told to leave, agreed by all; 0: none.

    Example:
        >>> preemption = Preemption()
        >>> with preemption.listening():
        ...     signal.raise_signal(signal.SIGTERM)
        >>> preemption.signals(LocalStep())["preempted"]
        Sum(value=1.0)
    """

    def __init__(self) -> None:
        self.asked = 0
        self._local_notice = threading.Event()

    def notice(self) -> None:
        """Say that this worker has to leave; from any thread or signal handler."""
        self._local_notice.set()

    @contextmanager
    def listening(self, *numbers: signal.Signals) -> Iterator[None]:
        """Take signals for a notice while inside.

        Args:
            *numbers: Which; none: SIGTERM.

        Raises:
            UsageError: this is not the main thread, the only one that may handle signals.
        """
        if threading.current_thread() is not threading.main_thread():
            raise UsageError(
                "signals can be listened to in the main thread only; call notice()"
            )

        def heard(_number: int, _frame: FrameType | None) -> None:
            self.notice()

        before = {
            number: signal.signal(number, heard) for number in numbers or (signal.SIGTERM,)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def signals(self, local: LocalStep) -> Mapping[str, Signal]:  # noqa: ARG002
        """Whether this worker was told to leave."""
        return {"preempted": Sum(float(self._local_notice.is_set()))}

    def after_step(self, seen: Observation) -> Actions:
        """Stop if any was."""
        asked = int(seen.signals["preempted"])
        if asked and not self.asked:
            self.asked = asked
            return Stop(reason=f"{asked} of {seen.world_size} workers were told to leave")
        return None

    def state(self) -> dict[str, Any]:
        """Nothing: a job that goes on later was not told to leave."""
        return {}
