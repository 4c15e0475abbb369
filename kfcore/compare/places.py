"""Where the ranks of a contender run: on this host, or on hosts made of network namespaces."""

import ctypes
import importlib.util
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

from kfcore.config import environment_with
from kfcore.errors import UsageError

__all__ = ["Cluster", "Place", "ThisHost", "cluster", "parse_rate_mbit"]

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_UNITS = {"kbit": 1e-3, "mbit": 1.0, "gbit": 1e3}
HOSTS_TOOL = Path("tools/hosts.py")


class Place(Protocol):
    """Hosts on which processes are started."""

    count: int
    interface: str | None

    def address(self, host: int) -> str:
        """Where the others reach a host."""
        ...

    def namespace(self, host: int) -> str | None:
        """Name of its network namespace; None: this process's own."""
        ...

    def start(
        self, host: int, words: Sequence[str], variables: Mapping[str, str], log: IO[bytes]
    ) -> "subprocess.Popen[bytes]":
        """Start a program that ends when this process does, however that ends."""
        ...


class ThisHost:
    """The machine itself."""

    count: int = 1
    interface: str | None = None

    def address(self, host: int) -> str:  # noqa: ARG002 - there is one
        """Loopback."""
        return "127.0.0.1"

    def namespace(self, host: int) -> str | None:  # noqa: ARG002 - there is one
        """None."""
        return None

    def start(
        self,
        host: int,  # noqa: ARG002 - there is one
        words: Sequence[str],
        variables: Mapping[str, str],
        log: IO[bytes],
    ) -> "subprocess.Popen[bytes]":
        """Start a program here."""
        return _start(words, variables, log)


class Cluster:
    """Hosts of ``tools/hosts.py``, which needs root.

    Args:
        hosts: An open ``Hosts``.
    """

    interface: str | None = "eth0"

    def __init__(self, hosts: Any) -> None:
        self._hosts = hosts
        self.count = int(hosts.count)

    def address(self, host: int) -> str:
        """IP address on the bridge."""
        return str(self._hosts.address(host))

    def namespace(self, host: int) -> str | None:
        """Name of the network namespace."""
        return str(self._hosts.name(host))

    def start(
        self, host: int, words: Sequence[str], variables: Mapping[str, str], log: IO[bytes]
    ) -> "subprocess.Popen[bytes]":
        """Start a program on a host, which has a name of its own there."""
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', f"kfhost{host}"]
        inside = ["ip", "netns", "exec", str(self.namespace(host)), *named]
        return _start([*inside, *words], variables, log)


@contextmanager
def cluster(count: int, rate_mbit: float | None) -> Iterator[Cluster]:
    """Make hosts and take them down again.

    Args:
        count: Number of hosts, >= 2.
        rate_mbit: Rate of each host's link in Mbit/s; None: as fast as the kernel is.

    Yields:
        The hosts.

    Raises:
        UsageError: They cannot be made here; the text says why.
    """
    if not HOSTS_TOOL.exists():
        raise UsageError(f"--hosts needs {HOSTS_TOOL}: run this in a checkout of the project")
    spec = importlib.util.spec_from_file_location("kf_hosts_tool", HOSTS_TOOL)
    if spec is None or spec.loader is None:
        raise UsageError(f"{HOSTS_TOOL} cannot be loaded")
    tool = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = tool
    spec.loader.exec_module(tool)
    reason = tool.why_not()
    if reason:
        raise UsageError(f"--hosts cannot be made here: {reason}")
    # Gloo asks what the host's own name resolves to
    names = "127.0.0.1 localhost\n{address} kfhost{host}\n"
    with tool.Hosts(count, rate_mbit=rate_mbit, hosts_file=names) as hosts:
        yield Cluster(hosts)


def parse_rate_mbit(text: str) -> float:
    """Read a rate such as ``1gbit`` or ``100mbit``, in powers of 1000.

    Args:
        text: A positive number with ``kbit``, ``mbit`` or ``gbit``.

    Returns:
        Mbit/s.

    Raises:
        UsageError: Anything else.

    Example:
        >>> parse_rate_mbit("1.5gbit")
        1500.0
    """
    body = text.strip().lower()
    number, unit = body[:-4], body[-4:]
    try:
        rate = float(number) * _UNITS[unit]
    except (ValueError, KeyError):
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise UsageError(f"a rate is a number > 0 with kbit, mbit or gbit, got {text!r}")
    return rate


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _start(
    words: Sequence[str], variables: Mapping[str, str], log: IO[bytes]
) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        list(words),
        env=environment_with(variables),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        preexec_fn=_die_with_parent,  # noqa: PLW1509 - one system call, and no threads yet
    )
