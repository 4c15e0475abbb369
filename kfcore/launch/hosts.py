"""Which hosts a job runs on, as people write it, and which rank runs where. Pure but for files.

``-H a:2,b:2`` and host files in the forms of Open MPI, Horovod, DeepSpeed and KungFu
(``host slots=N``), and of MPICH (``host:N``). A host that is named again gets more slots, as
in Open MPI. A host without a number has one slot.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kfcore.errors import UsageError

__all__ = ["Host", "Place", "parse_hosts", "place", "read_hostfile"]

MAX_SLOTS = 8192
_SLOTS = ("slots",)
# Understood and not needed: an upper limit of Open MPI's, an address of KungFu's for ssh.
_IGNORED = ("max_slots", "max-slots", "public_addr")


@dataclass(frozen=True)
class Host:
    """A machine and how many workers it may run.

    Attributes:
        name: Host name or address, without brackets.
        slots: In [1, 8192].
    """

    name: str
    slots: int


@dataclass(frozen=True)
class Place:
    """Where one rank runs.

    Attributes:
        rank: In [0, world_size).
        host: Name of the host.
        local_rank: Index among the ranks of that host.
        local_world_size: Number of ranks of that host.
    """

    rank: int
    host: str
    local_rank: int
    local_world_size: int


def parse_hosts(text: str) -> list[Host]:
    """Read a list as given to ``-H``.

    Args:
        text: ``host[:slots],...``; an IPv6 address in brackets. What follows a second colon
            (KungFu's public address) is not needed.

    Returns:
        The hosts in order, each once.

    Raises:
        UsageError: No host, or a number of slots outside [1, 8192].

    Example:
        >>> parse_hosts("a:2,b,a:1")
        [Host(name='a', slots=3), Host(name='b', slots=1)]
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    hosts = [_host(part, f"hosts {text!r}: {part}") for part in parts]
    return _added_up(hosts, f"hosts {text!r}")


def read_hostfile(path: str | Path) -> list[Host]:
    """Read a host file: a host a line, ``#`` begins a comment.

    Args:
        path: The file; any line ends.

    Returns:
        The hosts in order, each once.

    Raises:
        UsageError: The file cannot be read, or a line breaks a rule; the text has file, line
            number and line.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"host file {path} cannot be read: {reason}") from error
    hosts = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if words:
            hosts.append(_line(words, f"{path}:{number}: {line.strip()}"))
    return _added_up(hosts, f"host file {path}")


def place(hosts: Iterable[Host], world_size: int | None) -> list[Place]:
    """Give ranks to hosts, filling one after another.

    Args:
        hosts: In order.
        world_size: Number of workers, >= 1; None: as many as there are slots.

    Returns:
        One place a rank, in order of rank. Hosts that get none are left out.

    Raises:
        UsageError: More workers than slots.
    """
    hosts = list(hosts)
    slots = sum(host.slots for host in hosts)
    wanted = slots if world_size is None else world_size
    if wanted > slots:
        listed = ", ".join(f"{host.name}:{host.slots}" for host in hosts)
        raise UsageError(f"{wanted} workers do not fit {slots} slots ({listed})")
    places: list[Place] = []
    for host in hosts:
        here = min(host.slots, wanted - len(places))
        first = len(places)
        places.extend(Place(first + i, host.name, i, here) for i in range(here))
    return places


def _host(text: str, where: str) -> Host:
    """``host``, ``host:slots``, ``host:slots:public``, with an IPv6 address in brackets."""
    if text.startswith("["):
        name, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise UsageError(f"{where}: an IPv6 address reads [ADDRESS]:SLOTS")
        rest = rest[1:]
    else:
        name, _, rest = text.partition(":")
        if rest.count(":") > 1 or (rest.count(":") == 1 and not rest.split(":")[0].isdecimal()):
            raise UsageError(f"{where}: an IPv6 address needs brackets: [ADDRESS]:SLOTS")
    slots = rest.partition(":")[0]
    return Host(_name(name, where), _slots(slots, where) if slots else 1)


def _line(words: list[str], where: str) -> Host:
    head, *settings = words
    host = _host(head, where)
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise UsageError(f"{where}: {setting!r} is not KEY=VALUE")
        if key in _SLOTS:
            host = Host(host.name, _slots(value, where))
        elif key not in _IGNORED:
            raise UsageError(f"{where}: unknown key {key}")
    return host


def _name(name: str, where: str) -> str:
    # it becomes an argument of ssh: it must not be taken for an option
    if (
        not name
        or name.startswith("-")
        or any(c.isspace() or not c.isprintable() for c in name)
    ):
        raise UsageError(f"{where}: {name!r} is no host name")
    return name


def _slots(text: str, where: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_SLOTS:
        raise UsageError(f"{where}: slots must be in [1, {MAX_SLOTS}], got {text!r}")
    return int(text)


def _added_up(hosts: list[Host], where: str) -> list[Host]:
    if not hosts:
        raise UsageError(f"{where}: no host in it")
    total: dict[str, int] = {}
    for host in hosts:
        total[host.name] = total.get(host.name, 0) + host.slots
    for name, slots in total.items():
        if slots > MAX_SLOTS:
            raise UsageError(f"{where}: {name} has {slots} slots; the most is {MAX_SLOTS}")
    return [Host(name, slots) for name, slots in total.items()]
