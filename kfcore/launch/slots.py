"""Which host gets the next worker: slots, and hosts that cool down after a failure. Pure."""

from collections.abc import Iterable

from kfcore.launch.hosts import Host

__all__ = ["SlotBook"]


class SlotBook:
    """Keeps account of slots. Times are seconds of any one clock.

    A host where a worker failed gets none for a while; one that a worker left in order, or that
    was taken off the list and put on it again, is as good as new.

    Args:
        hosts: In order of preference.
        cooldown_s: How long a host gets no worker after a failure, >= 0.

    Example:
        >>> book = SlotBook([Host("a", 1), Host("b", 1)], cooldown_s=5)
        >>> book.take(now=0), book.take(now=0), book.take(now=0)
        (('a', 0), ('b', 0), None)
        >>> book.give_back(("a", 0), failed=True, now=1)
        >>> book.take(now=5.9), book.take(now=6)
        (None, ('a', 0))
    """

    def __init__(self, hosts: Iterable[Host], cooldown_s: float) -> None:
        self._cooldown_s = cooldown_s
        self._slots = {host.name: host.slots for host in hosts}
        self._taken: set[tuple[str, int]] = set()
        self._cool_at: dict[str, float] = {}

    @property
    def slots(self) -> int:
        """Of all hosts together."""
        return sum(self._slots.values())

    def set_hosts(self, hosts: Iterable[Host]) -> tuple[list[str], list[str]]:
        """Replace the list of hosts.

        Args:
            hosts: The new list.

        Returns:
            Names of hosts that are new, and of those that are no longer there.
        """
        new = {host.name: host.slots for host in hosts}
        added = [name for name in new if name not in self._slots]
        removed = [name for name in self._slots if name not in new]
        self._slots = new
        return added, removed

    def take(self, now: float) -> tuple[str, int] | None:
        """Take a slot.

        Args:
            now: The time.

        Returns:
            Host and local index of a free slot on a host that is not cooling down, or None.
        """
        for name, slots in self._slots.items():
            if self._cool_at.get(name, now) > now:
                continue
            for index in range(slots):
                if (name, index) not in self._taken:
                    self._taken.add((name, index))
                    return name, index
        return None

    def give_back(self, slot: tuple[str, int], *, failed: bool, now: float) -> None:
        """A worker ended.

        Args:
            slot: What `take` gave.
            failed: Whether it failed there, rather than left.
            now: The time.
        """
        self._taken.discard(slot)
        if failed:
            self._cool_at[slot[0]] = now + self._cooldown_s

    def cooling_s(self, host: str, now: float) -> float:
        """Seconds until a host is used again, 0 when it is.

        Args:
            host: Its name.
            now: The time.

        Returns:
            Seconds, >= 0.
        """
        return max(0.0, self._cool_at.get(host, now) - now)
