"""The end of a roll call: who has answered, who is dead, when the next view may begin."""

import time

from kfcore import _native
from kfcore.membership.door import Life, knock
from kfcore.membership.watch import RosterWatch

__all__ = ["RollCall"]

_KNOCK_S = 0.25
_TURN_S = 0.3  # after which the next survivor tries what the one before should have done


class RollCall:
    """One survivor's view of the roll call of one view.

    Args:
        member_id: The survivor.
        secret: The job secret.
        heartbeat_s: Silence after which a member counts as lost, seconds.
        watch: The roster.
        version: View whose roll is called.
    """

    def __init__(
        self,
        member_id: str,
        secret: str,
        heartbeat_s: float,
        watch: RosterWatch,
        version: int,
    ) -> None:
        self._id, self._secret, self._heartbeat_s = member_id, secret, heartbeat_s
        self._watch, self._version = watch, version
        self._began_s = time.monotonic()
        self._silent_since: dict[str, float] = {}

    def turn(self, seen: _native.Roster) -> None:
        """Answer, or conclude the call if everybody is accounted for.

        Args:
            seen: The roster, in which this roll is called.

        Raises:
            TransportError: the store is lost.
        """
        version = self._version
        here = [member.id for member in seen.members if member.id in seen.present]
        if self._id not in here:
            self._watch.change(lambda roster: roster.call_roll(version, self._id, ""))
            return
        if time.monotonic() - self._began_s < _TURN_S * here.index(self._id):
            return  # one before us is at it
        absent = [member for member in seen.members if member.id not in seen.present]
        dead = self._dead(absent)
        if len(dead) < len(absent):
            return
        names = [
            f"rank {rank} ({member.id}) {dead[member.id]}"
            for rank, member in enumerate(seen.members)
            if member.id in dead
        ]
        reason = (
            ", ".join(names) or f"all workers live, but a session failed: {seen.call_reason}"
        )
        self._watch.change(lambda roster: roster.conclude(version, list(dead), reason))

    def _dead(self, absent: list[_native.Member]) -> dict[str, str]:
        """How each of those that are lost was lost."""
        dead: dict[str, str] = {}
        asked_s = time.monotonic()
        lives = knock([(m.id, m.door) for m in absent], self._secret, _KNOCK_S)
        for member_id, life in lives.items():
            if life is Life.ALIVE:
                self._silent_since.pop(member_id, None)
                continue
            quiet_s = time.monotonic() - self._silent_since.setdefault(member_id, asked_s)
            if life is Life.DEAD:
                dead[member_id] = "died"
            elif quiet_s >= self._heartbeat_s:
                dead[member_id] = f"was silent for {quiet_s:.1f} s"
        return dead
