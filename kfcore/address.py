"""Which of this host's addresses the other workers are told.

Without a choice by the user it is the address from which this host reaches the job's store,
asked of the kernel's routing table: never what the host's own name resolves to, which Debian
and Ubuntu map to a loopback address.
"""

import contextlib
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfcore.config import Config
from kfcore.errors import UsageError
from kfcore.store.wire import parse_address

__all__ = ["Interface", "advertised_host", "interfaces", "outward_host", "select"]

_SIOCGIFADDR = 0x8915  # <linux/sockios.h>
# For route look-ups only: addresses kept for documentation (RFC 5737, RFC 3849).
_ANYWHERE, _ANYWHERE_6 = ("192.0.2.1", 9), ("2001:db8::1", 9)
_OPTION = "set KF_INTERFACE (kf run --interface) to a network interface"
_GLOBAL_SCOPE = ("00", "10")  # of /proc/net/if_inet6: global, and the host's own loopback


@dataclass(frozen=True)
class Interface:
    """One address of one network interface.

    Attributes:
        name: such as ``eth0``.
        host: IPv4 or IPv6 address, without brackets.
    """

    name: str
    host: str


def interfaces() -> list[Interface]:
    """List this host's addresses that others can be told: each interface's IPv4, then IPv6."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:  # no IPv4 address
                continue
            found.append(Interface(name, socket.inet_ntoa(answer[20:24])))
    try:
        lines = Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines()
    except OSError:  # a kernel without IPv6
        lines = []
    for line in lines:
        digits, _, _, scope, _, name = line.split()
        if scope in _GLOBAL_SCOPE:
            found.append(Interface(name, str(ipaddress.IPv6Address(int(digits, 16)))))
    return found


def select(choice: str, present: Sequence[Interface]) -> list[Interface]:
    """Pick interfaces as a user names them.

    Args:
        choice: comma-separated; each part an interface's name, the beginning of one, or a CIDR
            block; ``^`` at the front turns all of it into what must not be used.
        present: addresses to choose from.

    Returns:
        Those chosen, in the order of the parts; with ``^``, the others except loopback.

    Raises:
        UsageError: nothing is left; the text lists the interfaces present.
    """
    exclude = choice.startswith("^")
    parts = [part.strip() for part in choice.removeprefix("^").split(",") if part.strip()]
    named = [i for part in parts for i in present if _matches(part, i)]
    if exclude:
        named = [i for i in present if i not in named and not _is_loopback(i.host)]
    if not named:
        listed = ", ".join(f"{i.name} {i.host}" for i in present) or "none"
        raise UsageError(f"no network interface matches {choice!r}; present: {listed}")
    return list(dict.fromkeys(named))


def _matches(part: str, interface: Interface) -> bool:
    if "/" in part:
        try:
            block = ipaddress.ip_network(part, strict=False)
        except ValueError as error:
            raise UsageError(f"interface {part!r} is no CIDR block: {error}") from None
        return ipaddress.ip_address(interface.host) in block
    return interface.name.startswith(part)


def _is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host).is_loopback


def advertised_host(config: Config, store_address: str | None = None) -> str:
    """Choose the address at which this worker listens and which it tells the others.

    Args:
        config: `Config.interface` if it is set, else the route to the store. A route over
            loopback is not believed when workers run on other hosts.
        store_address: ``host:port`` of the store; `Config.store_address` when None.

    Returns:
        An IPv4 or IPv6 address, without brackets; loopback for a single process.

    Raises:
        UsageError: no interface matches, or no route leads to the store; the text names both
            the address and the option to set.
    """
    target = config.store_address if store_address is None else store_address
    if target is None:
        return "127.0.0.1"
    host, port = parse_address(target.removeprefix("etcd://").partition("/")[0].split(",")[0])
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        if config.interface is not None:
            chosen = select(config.interface, interfaces())
            version = 6 if family == socket.AF_INET6 else 4
            same = [i for i in chosen if ipaddress.ip_address(i.host).version == version]
            return (same or chosen)[0].host
        own = route_to(family, place)
    except OSError as error:
        raise UsageError(
            f"no address of this host leads to the store at {target}: {error}; {_OPTION}"
        ) from error
    spans_hosts = config.local_world_size not in (None, config.world_size)
    return outward_host(config) if spans_hosts and _is_loopback(own) else own


def route_to(family: int, place: Any) -> str:
    """This host's address from which the kernel would send to a place; nothing is sent.

    Args:
        family: ``AF_INET`` or ``AF_INET6``.
        place: Socket address of that family.

    Returns:
        The address, without brackets.

    Raises:
        OSError: There is no route.
    """
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(place)
        return str(probe.getsockname()[0])


def outward_host(config: Config) -> str:
    """The address under which other hosts are most likely to reach this one.

    Args:
        config: `Config.interface` if it is set.

    Returns:
        That interface's address; else that of the default route; else the first one that is
        not loopback.

    Raises:
        UsageError: there is only loopback.
    """
    if config.interface is not None:
        return select(config.interface, interfaces())[0].host
    for family, place in ((socket.AF_INET, _ANYWHERE), (socket.AF_INET6, _ANYWHERE_6)):
        with contextlib.suppress(OSError):
            own = route_to(family, place)
            if not _is_loopback(own):
                return own
    outward = [i.host for i in interfaces() if not _is_loopback(i.host)]
    if not outward:
        raise UsageError(
            f"this host has only loopback addresses, which workers elsewhere cannot reach; "
            f"bring an interface up, or {_OPTION}"
        )
    return outward[0]
