"""Remembers how steps were exchanged: a steady job computes each of its patterns once."""

from collections import OrderedDict
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfcore.sync_mode import SyncMode
from kfsim.network import Links
from kfsim.systems.base import Exchange, StepWork, System

__all__ = ["Recall"]

Times = NDArray[np.float64]

_TIMES = ("model", "step", "begin_s", "compute_s")
# Everything that decides a step beside its times: a field added to StepWork counts by itself.
_SETTINGS = tuple(item.name for item in fields(StepWork) if item.name not in _TIMES)
_KEPT = 8
_QUANTUM_S = 2.0**-30  # 0.93 ns, as in native/src/replay
# Starts that differ by this part of the step are taken for the same pattern. A ring carries
# waves of microseconds (its last chunk is a little longer) around for ever; without this no
# pattern of a large steady job would come twice. The finish moves by no more than the starts.
_SAME = 1e-5


class Recall:
    """A system's answers to the last few patterns of starts and compute times.

    A system is a function of the work and the links, and a later start only moves its answer;
    so a pattern that came before gets the same answer, moved: compute times must be equal to
    the nanosecond, starts to 1e-5 of the step.

    Args:
        system: The system under test.
    """

    def __init__(self, system: System) -> None:
        self._system = system
        self._kept: OrderedDict[Any, tuple[Times, Exchange]] = OrderedDict()
        self.steps = 0
        self.recalled = 0

    def exchange(self, work: StepWork, links: Links) -> Exchange:
        """As `System.exchange`, at the price of a look-up where the pattern is known.

        Args:
            work: What the ranks compute, and when.
            links: The network, as it is in this step.

        Returns:
            When each rank has its averaged gradients, and what went over the wire.
        """
        first_s = float(work.begin_s.min())
        begin_s = work.begin_s - first_s
        settings = tuple(getattr(work, name) for name in _SETTINGS)
        # Only modes that do not average every step ask which step it is.
        step = 0 if work.mode == SyncMode() else work.step
        key = (links.state, work.model.name, step, settings, _ticks(work.compute_s))
        known = self._kept.get(key)
        self.steps += 1
        self.recalled += 1
        if known is None or not self._same(begin_s, *known):
            self.recalled -= 1
            done = self._system.exchange(replace(work, begin_s=begin_s), links)
            known = self._kept[key] = (begin_s, done)
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        done = known[1]
        return replace(done, finish_s=done.finish_s + first_s)

    @staticmethod
    def _same(begin_s: Times, known_s: Times, done: Exchange) -> bool:
        limit_s = _SAME * float(done.finish_s.max())
        return float(np.abs(begin_s - known_s).max()) <= limit_s


def _ticks(times_s: Times) -> bytes:
    return np.rint(times_s * (1 / _QUANTUM_S)).astype(np.int64).tobytes()
