"""Members of a simulated job: the roster of the core, moved by a fault plan instead of sockets.

The moves are those that real workers make (docs/membership.md), in the same order, so that the
views and their numbers are the same for the same plan. What it takes is modelled:

* a killed worker is known to be lost after ``detect_s``, and the next view is open after
  ``reopen_s``; the survivors repeat the step with the gradients they have;
* a joiner is ready ``join_s`` after it was asked for and is taken in at the next boundary,
  where it gets the state, at a pause of ``state_s``; the others train on until then;
* an orderly change costs ``leave_s``.
"""

from collections.abc import Callable
from typing import Any

from kfcore import _native
from kfcore.elastic_controller import ElasticController
from kfcore.errors import UsageError
from kfcore.faults import Fault, FaultPlan
from kfcore.view import View
from kfsim.scenario import ResizeCost

__all__ = ["SimMembers"]

MOST_WORKERS = 8192


class SimMembers:
    """Stands for `kfcore.Member` of all ranks at once.

    Args:
        world_size: Workers at the start.
        plan: What goes wrong.
        costs: What it takes, in seconds.
        on_event: Receives the event of each fault.
    """

    def __init__(
        self,
        world_size: int,
        plan: FaultPlan,
        costs: ResizeCost,
        on_event: Callable[[dict[str, Any]], None],
    ) -> None:
        self._plan, self._costs, self._on_event = plan, costs, on_event
        self.roster = _native.make_roster(world_size, 1, MOST_WORKERS)
        self._born = 0
        for rank in range(world_size):
            self.roster.arrive(rank, self._newborn())
        self._due: list[float] = []  # when joiners are ready, seconds, in order
        self._target = 0  # the roster's, as acted upon

    @property
    def view(self) -> View:
        """The view under way."""
        ids = tuple(member.id for member in self.roster.members)
        return View(int(self.roster.version), ids)

    def resize(self, world_size: int, reason: str) -> None:
        """Ask for another number of workers; as `kfcore.Member.resize`.

        Args:
            world_size: How many.
            reason: For the log.
        """
        self.roster.resize(world_size, reason)

    def exclude(self, member_id: str, reason: str) -> None:
        """Ask for a member to be left out; as `kfcore.Member.exclude`.

        Args:
            member_id: Whose.
            reason: For the log.
        """
        self.roster.exclude(member_id, reason)

    def enter_step(self, step: int, now_s: float, controller: ElasticController) -> float:
        """Let happen what the plan has for a step.

        Args:
            step: That all ranks enter.
            now_s: Simulated time, seconds.
            controller: Of the job; goes on in the view without those that died.

        Returns:
            Seconds that the survivors lose to deaths in this step.

        Raises:
            UsageError: nobody is left.
        """
        dead: list[str] = []
        for fault in self._plan.at(step):
            self._on_event(fault.event(int(self.roster.version)))
            self._happen(fault, now_s, dead)
        if not dead:
            return 0.0
        self._lose(dead, controller)
        return self._costs.detect_s + self._costs.reopen_s

    def delays_s(self, step: int) -> list[float]:
        """By rank, seconds that a step takes longer by the plan.

        Args:
            step: From 1.

        Returns:
            Sum of what slows a rank down and how long it is stopped.
        """
        stops = {f.rank: f.seconds for f in self._plan.at(step) if f.kind == "stop"}
        size = len(self.roster.members)
        return [self._plan.delay_s(step, r) + stops.get(r, 0.0) for r in range(size)]

    def boundary(self, now_s: float, controller: ElasticController) -> float:
        """Change the members between two steps, if that is wanted.

        Args:
            now_s: Simulated time, seconds.
            controller: Of the job.

        Returns:
            Seconds that it takes all members.
        """
        self._ask_for_joiners(now_s)
        while self._due and self._due[0] <= now_s:
            del self._due[0]
            self.roster.join(self._newborn())
        if not self.roster.change_wanted:
            return 0.0
        old = self.view.members
        self.roster.install(self.roster.version)
        joined = len(set(self.view.members) - set(old))
        for member in self.view.members:
            self.roster.settle(member)
        self._enter(old, controller)
        return self._costs.state_s if joined else self._costs.leave_s

    def _happen(self, fault: Fault, now_s: float, dead: list[str]) -> None:
        ids = self.view.members
        who = ids[fault.rank] if fault.rank is not None and fault.rank < len(ids) else None
        if fault.kind == "join":
            self.roster.resize(len(ids) + fault.workers, "the fault plan")
            self._ask_for_joiners(now_s)
        elif fault.kind == "cut" and who is not None and (fault.peer or 0) < len(ids):
            raise UsageError(
                "cut: the simulator does not break single links; use kill, or interference"
            )
        elif who is None:
            return
        elif fault.kind == "leave":
            self.roster.leave(who)
        elif fault.kind == "kill" or (fault.kind == "stop" and self._is_expelled(fault)):
            dead.append(who)

    def _is_expelled(self, fault: Fault) -> bool:
        """Whether the others lose patience with a stopped worker."""
        return fault.seconds == 0 or fault.seconds > 2 * self._costs.heartbeat_s

    def _ask_for_joiners(self, now_s: float) -> None:
        """Have as many workers started as are newly wanted and not under way."""
        if self.roster.target == self._target:  # who leaves later is not replaced
            return
        self._target = int(self.roster.target)
        there = len(self.roster.members) + len(self.roster.joiners) + len(self._due)
        for _ in range(int(self.roster.target) - there):
            self._due.append(now_s + self._costs.join_s)

    def _lose(self, dead: list[str], controller: ElasticController) -> None:
        old, version = self.view.members, self.roster.version
        ranks = {member: rank for rank, member in enumerate(old)}
        names = ", ".join(f"rank {ranks[who]} ({who})" for who in dead)
        if len(dead) == len(old):
            raise UsageError("the fault plan leaves no worker alive")
        for member in old:
            if member not in dead:
                self.roster.call_roll(version, member, f"{names} died")
        self.roster.conclude(version, dead, f"{names} died")
        self._enter(old, controller)

    def _enter(self, old: tuple[str, ...], controller: ElasticController) -> None:
        view = self.view
        controller.enter_view(view.version, len(view.members), 0, controller.configuration)
        controller.note_view(old, view.members, str(self.roster.reason), {})

    def _newborn(self) -> _native.Member:
        self._born += 1
        return _native.Member(f"worker-{self._born - 1}", "", "", "", self._born)
