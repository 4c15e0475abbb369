"""Which address a worker tells the others."""

import ipaddress

import pytest

from kfcore.address import Interface, advertised_host, interfaces, select
from kfcore.config import Config
from kfcore.errors import UsageError

PRESENT = [
    Interface("lo", "127.0.0.1"),
    Interface("eth0", "10.0.0.5"),
    Interface("eth1", "192.168.7.5"),
    Interface("docker0", "172.17.0.1"),
    Interface("lo", "::1"),
    Interface("eth0", "2001:db8::5"),
]


@pytest.mark.parametrize(
    ("choice", "hosts"),
    [
        ("eth1", ["192.168.7.5"]),
        ("eth", ["10.0.0.5", "192.168.7.5", "2001:db8::5"]),
        ("10.0.0.0/24", ["10.0.0.5"]),
        ("2001:db8::/32", ["2001:db8::5"]),
        ("eth1,eth0", ["192.168.7.5", "10.0.0.5", "2001:db8::5"]),
        ("^lo,docker", ["10.0.0.5", "192.168.7.5", "2001:db8::5"]),
        ("^eth0", ["192.168.7.5", "172.17.0.1"]),
        ("lo", ["127.0.0.1", "::1"]),
    ],
)
def test_interface_is_chosen_by_name_prefix_block_list_or_exclusion(choice, hosts):
    assert [i.host for i in select(choice, PRESENT)] == hosts


def test_unknown_interface_is_refused_with_those_present():
    with pytest.raises(UsageError, match=r"matches 'nope'; present: lo 127\.0\.0\.1, eth0 10"):
        select("nope", PRESENT)
    with pytest.raises(UsageError, match=r"'10\.0\.0\.0/99' is no CIDR block"):
        select("10.0.0.0/99", PRESENT)


def test_this_hosts_interfaces_include_loopback():
    assert Interface("lo", "127.0.0.1") in interfaces()
    for interface in interfaces():
        ipaddress.ip_address(interface.host)


def test_route_to_the_store_decides_without_a_choice():
    assert advertised_host(Config()) == "127.0.0.1"
    loopback = Config(world_size=2, store_address="127.0.0.1:1")
    assert advertised_host(loopback) == "127.0.0.1"
    outside = [i for i in interfaces() if i.name != "lo" and ":" not in i.host]
    for interface in outside:
        config = Config(world_size=2, store_address=f"{interface.host}:1")
        assert advertised_host(config) == interface.host


def test_chosen_interface_wins_over_the_route():
    config = Config(world_size=2, store_address="192.0.2.1:1", interface="lo")
    assert advertised_host(config) == "127.0.0.1"


def test_store_that_cannot_be_reached_names_the_option_to_set():
    config = Config(world_size=2, store_address="no-such-host.invalid:1")
    with pytest.raises(UsageError, match=r"no-such-host\.invalid:1: .*set KF_INTERFACE"):
        advertised_host(config)
