"""Hosts made of network namespaces: they reach each other and leave nothing behind."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
import hosts  # noqa: E402

pytestmark = [
    pytest.mark.namespaces,
    pytest.mark.skipif(hosts.why_not() is not None, reason=str(hosts.why_not())),
]

SERVER = """
import socket, sys
with socket.create_server((sys.argv[1], 0), family=socket.{family}) as server:
    print(server.getsockname()[1], flush=True)
    connection, peer = server.accept()
    print(peer[0], connection.recv(64).decode(), flush=True)
"""
CLIENT = """
import socket, sys
socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10).sendall(b"hello")
"""


@pytest.mark.parametrize("ipv6", [False, True])
def test_hosts_reach_each_other(ipv6: bool) -> None:
    family = "AF_INET6" if ipv6 else "AF_INET"
    with hosts.Hosts(3, rate_mbit=500, ipv6=ipv6) as made:
        serve = [sys.executable, "-c", SERVER.format(family=family), made.address(0)]
        server = made.start(0, serve, stdout=subprocess.PIPE)
        assert server.stdout is not None
        port = server.stdout.readline().decode().strip()
        client = made.start(2, [sys.executable, "-c", CLIENT, made.address(0), port])
        assert client.wait(timeout=20) == 0
        assert server.stdout.readline().decode().split() == [made.address(2), "hello"]


def test_a_host_sees_its_own_hosts_file() -> None:
    with hosts.Hosts(1, hosts_file="127.0.1.1 worker{host}\n") as made:
        process = made.start(0, ["cat", "/etc/hosts"], stdout=subprocess.PIPE)
        assert process.communicate(timeout=10)[0] == b"127.0.1.1 worker0\n"


def test_nothing_is_left_when_the_block_fails() -> None:
    made = hosts.Hosts(2)

    def fail() -> None:
        with made:
            made.start(1, ["sleep", "60"])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not [name for name in hosts.namespaces() if name.startswith(made.name(0)[:-1])]


def test_a_killed_makers_hosts_are_swept() -> None:
    command = [sys.executable, str(TOOLS / "hosts.py"), "--hosts", "2", "--", "sleep", "60"]
    maker = subprocess.Popen(command)
    mine = f"{hosts.PREFIX}{maker.pid}-"
    deadline = time.monotonic() + 20
    while f"{mine}1" not in hosts.namespaces() and time.monotonic() < deadline:
        time.sleep(0.05)  # the tool needs a moment to make them
    maker.send_signal(signal.SIGKILL)
    maker.wait()
    assert [name for name in hosts.namespaces() if name.startswith(mine)]
    hosts.sweep()
    assert not [name for name in hosts.namespaces() if name.startswith(mine)]


def test_bad_values_are_refused() -> None:
    with pytest.raises(ValueError, match=r"count must be in \[1, 250\], got 0"):
        hosts.Hosts(0)
    with pytest.raises(ValueError, match="rate_mbit must be > 0, got -1"):
        hosts.Hosts(2, rate_mbit=-1)
