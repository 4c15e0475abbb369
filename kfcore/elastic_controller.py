"""A controller whose workers change: views come from outside, resizes are asked for there."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kfcore import _native, progress
from kfcore.configuration import plain
from kfcore.controller import Controller
from kfcore.errors import UsageError
from kfcore.events import event
from kfcore.membership.member import Member
from kfcore.policy.actions import Action, Exclude, Resize

__all__ = ["ElasticController"]


class ElasticController(Controller):
    """A `Controller` of a job with a `Member`; made by `kfcore.ElasticJob`."""

    member: Member

    def log_to(self, on_event: Callable[[dict[str, Any]], None], *, record: bool) -> None:
        """Send events somewhere from now on.

        Args:
            on_event: Receives each event.
            record: Also what policies see.
        """
        self._on_event, self._record = on_event, record

    def fix(self, rules: Mapping[str, str]) -> None:
        """Say which settings cannot change; the number of workers can.

        Args:
            rules: Why, by setting.
        """
        self._fixed = {**self._fixed, **rules}
        self._fixed.pop("world_size", None)

    def propose(self, action: Action, *, policy: str = "") -> None:
        """As `Controller.propose`; a change of members is asked of the roster.

        Args:
            action: What should change.
            policy: Who asks; empty for the caller.

        Raises:
            UsageError: it cannot be.
            ConflictingProposals: another policy wants a different value; all is dropped.
        """
        if not isinstance(action, Resize | Exclude):
            super().propose(action, policy=policy)
            return
        roster = self.member.roster
        size = self.world_size - 1
        if isinstance(action, Resize):
            size = int(action.setting()[1])
        if not roster.min_size <= size <= roster.max_size:
            raise UsageError(
                f"{policy or 'the caller'} asked for world_size {size}: it must be in "
                f"[{roster.min_size}, {roster.max_size}], the job's limits"
            )
        self._emit(
            "proposed", "world_size", self.world_size, size, reason=action.reason, policy=policy
        )
        if isinstance(action, Exclude):
            # refuses a rank that does not exist
            action.to_changes(policy, step=self.step, world_size=self.world_size)
        if self._rank != 0:  # the roster needs to hear it once
            return
        if isinstance(action, Resize):
            self.member.resize(size, action.reason)
        else:
            self.member.exclude(self.member.view.members[action.rank], action.reason)

    def enter_view(self, version: int, world_size: int, rank: int, configuration: int) -> None:
        """Go on in another view.

        Monitors begin anew, on all workers alike; so does what policies see of them.

        Args:
            version: Of the view.
            world_size: Its members, >= 1.
            rank: This worker's, in [0, world_size).
            configuration: Version of the configuration that all agreed on.
        """
        self._engine.enter_view(version, world_size, self.step, configuration)
        self._rank = rank
        self._read_settings()
        self._block.resize(world_size, rank)
        self._monitors.reset()
        self.metrics = self._monitors.first()
        self.signals = {}

    def use_schedule(self, spec: str) -> None:
        """Take another schedule, because the one in force does not exist in this view.

        Args:
            spec: That of the session.
        """
        self._replace({"schedule": spec})
        self._read_settings()

    @property
    def configuration(self) -> int:
        """Version of the configuration in force."""
        return self._engine.config_version

    def capture(self) -> dict[str, Any]:
        """Everything that a newcomer needs to be equal to this controller."""
        return {
            "progress": progress.capture(self),
            "settings": {s.name: s.value for s in self._engine.settings()},
            "proposed": [
                [change.name, change.value, change.reason, change.policy]
                for change in self._engine.proposal()
            ],
        }

    def restore(self, tree: dict[str, Any]) -> None:
        """Become equal to the controller that gave this.

        Args:
            tree: What `capture` gave.

        Raises:
            UsageError: it is of another job.
        """
        progress.restore(self, tree["progress"])
        self._replace(tree["settings"])
        self._read_settings()
        self._engine.propose([_native.Change(*change) for change in tree["proposed"]])

    def note_view(
        self, old: Sequence[str], new: Sequence[str], reason: str, times_ms: Mapping[str, float]
    ) -> None:
        """Log a change of members.

        Args:
            old: Ids of the members before, by rank.
            new: Ids of the members now, by rank.
            reason: Why.
            times_ms: What took how long, by name, milliseconds.
        """
        if self._on_event is None:
            return
        places = {member: rank for rank, member in enumerate(new)}
        self._on_event(
            event(
                self.step,
                self.view_version,
                "view",
                "members",
                old=list(old),
                new=list(new),
                reason=reason,
                ranks={str(rank): places.get(member) for rank, member in enumerate(old)},
                **{f"{name}_ms": round(value, 3) for name, value in times_ms.items()},  # type: ignore[arg-type]
            )
        )

    def _replace(self, values: dict[str, Any]) -> None:
        """Another engine with other values; what was proposed goes with the old one."""
        settings = [
            _native.Setting(
                old.name,
                old.kind,
                values.get(old.name, old.value),
                old.minimum,
                old.maximum,
                old.integral,
            )
            for old in self._engine.settings()
        ]
        proposed = self._engine.proposal()
        before = self._engine
        self._engine = _native.Engine(settings, self.view_version)
        size = int(plain("world_size", self._engine.value("world_size")))
        self._engine.enter_view(self.view_version, size, self.step, before.config_version)
        self._engine.propose(proposed)
