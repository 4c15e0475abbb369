"""From a worker's configuration to its job's store, wherever that is."""

import errno
import ipaddress
import socket

from kfcore.config import Config
from kfcore.errors import UsageError
from kfcore.store import wire
from kfcore.store.client import StoreClient
from kfcore.store.etcd import SCHEME, EtcdClient
from kfcore.store.meeting import is_meeting, meet
from kfcore.store.server import StoreServer
from kfcore.timeouts import store_reconnect_s

__all__ = ["connect_store", "open_store"]


def open_store(
    address: str, secret: str = "", connect_timeout_s: float = 30.0, reconnect_s: float = 5.0
) -> StoreClient:
    """Connect to a store wherever it is.

    Args:
        address: ``host:port``, or ``etcd://host:port/job``.
        secret: The job secret; etcd asks for none.
        connect_timeout_s: How long to keep trying the first connection, seconds.
        reconnect_s: How long a lost store is looked for before a call gives up, seconds.

    Returns:
        The client.

    Raises:
        DeadlineError: No store within connect_timeout_s.
        TransportError: The store refused the secret.
        UsageError: A malformed address.
    """
    if address.startswith(SCHEME):
        return EtcdClient(address, connect_timeout_s=connect_timeout_s, reconnect_s=reconnect_s)
    return StoreClient(
        address, secret, connect_timeout_s=connect_timeout_s, reconnect_s=reconnect_s
    )


def connect_store(config: Config) -> StoreClient | None:
    """Connect a worker to its job's store, starting the store where the job has no launcher.

    Args:
        config: this worker's configuration.

    Returns:
        The client (closing it closes a store it started), or None for a job without a store.

    Raises:
        DeadlineError: no store within config.timeout_s.
        TransportError: the store refused the job secret.
        UsageError: this worker must host the store and cannot listen on its address.
    """
    address = config.store_address
    if address is None:
        return None
    server = _serve(config) if config.hosts_store else None
    try:
        if is_meeting(address):
            address = meet(
                address, None if server is None else server.address, config.timeout_s
            )
        client = open_store(
            address if server is None else server.reachable_here,
            config.job_secret,
            config.timeout_s,
            store_reconnect_s(config.timeout_s),
        )
    except BaseException:
        if server is not None:
            server.close()
        raise
    if server is not None:
        client.own(server)
        client.address = address  # as the others know it
    return client


def _serve(config: Config) -> StoreServer:
    """Listen where the others will look; on all addresses if that name is not ours here."""
    if config.store_address is None or is_meeting(config.store_address):
        return StoreServer(_meeting_host(config), 0, config.job_secret)
    host, port = wire.parse_address(config.store_address)
    if _means_another_place(host, config):
        return StoreServer("", port, config.job_secret)
    return StoreServer(host, port, config.job_secret)


def _meeting_host(config: Config) -> str:
    if config.local_world_size == config.world_size:
        return "127.0.0.1"
    from kfcore.address import outward_host  # noqa: PLC0415 - it reads this package

    return outward_host(config)


def _means_another_place(host: str, config: Config) -> bool:
    """Whether other hosts cannot reach us under what a name means here.

    Debian and Ubuntu let a host's own name mean 127.0.1.1; a service's name may mean an
    address that only leads to this host. An address given in figures is taken at its word.
    """
    try:
        ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        return False
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(f"the store's host {host!r} has no address here: {error}") from error
    family, _, _, _, place = found[0]
    spans_hosts = config.local_world_size not in (None, config.world_size)
    if ipaddress.ip_address(place[0]).is_loopback:
        return spans_hosts
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(place)
        except OSError as error:
            return error.errno == errno.EADDRNOTAVAIL
    return False
