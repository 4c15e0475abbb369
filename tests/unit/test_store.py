"""The embedded store: versions, waiting, authentication, hostile and broken connections."""

import errno
import json
import socket
import threading
import time

import pytest

from kfcore.config import Config
from kfcore.errors import DeadlineError, TransportError, UsageError
from kfcore.store import Entry, StoreClient, StoreServer, connect_store, wire
from kfcore.store.server import HANDSHAKE_TIMEOUT_S, MAX_HANDSHAKES


@pytest.fixture
def server():
    with StoreServer(secret="s3cret") as running:
        yield running


@pytest.fixture
def client(server):
    with StoreClient(server.address, "s3cret", reconnect_s=0.5) as connected:
        yield connected


def raw(server):
    host, port = wire.parse_address(server.address)
    sock = socket.create_connection((host, port), timeout=10)
    return sock, sock.makefile("rb")


def test_set_counts_versions_and_get_returns_the_newest(client):
    assert client.peek("k") == Entry("", 0)
    assert client.set("k", "a") == 1
    assert client.set("k", "b\nä") == 2
    assert client.get("k", 1) == "b\nä"
    assert client.peek("k") == Entry("b\nä", 2)
    client.set("k2", "")
    assert client.keys("k") == ["k", "k2"]


def test_get_blocks_until_another_client_sets_the_key(server, client):
    with StoreClient(server.address, "s3cret") as other:
        timer = threading.Timer(0.2, other.set, args=("late", "v"))
        timer.start()
        assert client.get("late", 10) == "v"
        timer.join()


def test_get_names_the_key_when_nobody_sets_it(client):
    with pytest.raises(DeadlineError, match=r"'view/1/rank/3' was not set within 0\.1 s"):
        client.get("view/1/rank/3", 0.1)
    client.set("after", "works")
    assert client.get("after", 1) == "works"


def test_compare_and_set_only_succeeds_on_the_expected_version(client):
    assert client.compare_and_set("v", 0, "one").done
    refused = client.compare_and_set("v", 0, "other")
    assert not refused.done
    assert refused.entry == Entry("one", 1)
    assert client.compare_and_set("v", 1, "two").entry == Entry("two", 2)


def test_compare_and_set_lets_exactly_one_of_many_win(server):
    clients = [StoreClient(server.address, "s3cret") for _ in range(8)]
    wins: list[list[int]] = [[] for _ in clients]

    def contend(index):
        for version in range(20):
            if clients[index].compare_and_set("view", version, str(index)).done:
                wins[index].append(version)
            clients[index].watch("view", version, 20)

    threads = [threading.Thread(target=contend, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(version for won in wins for version in won) == list(range(20))
    for connected in clients:
        connected.close()


def test_watch_waits_for_a_version_above_the_one_seen(server, client):
    version = client.set("doc", "1")
    with pytest.raises(DeadlineError, match="'doc' stayed at 1"):
        client.watch("doc", version, 0.1)
    with StoreClient(server.address, "s3cret") as other:
        timer = threading.Timer(0.2, other.set, args=("doc", "2"))
        timer.start()
        assert client.watch("doc", version, 10) == Entry("2", 2)
        timer.join()


def test_one_client_serves_overlapping_calls_from_threads(client):
    results = []
    waiter = threading.Thread(target=lambda: results.append(client.get("x", 10)))
    waiter.start()
    client.set("y", "not blocked by the waiter")
    client.set("x", "done")
    waiter.join(10)
    assert results == ["done"]


def test_wrong_secret_is_refused_and_learns_nothing(server, client):
    client.set("private", "value")
    with pytest.raises(TransportError, match="refused the job secret"):
        StoreClient(server.address, "guess", connect_timeout_s=5)
    sock, lines = raw(server)
    hello = json.loads(lines.readline())
    assert set(hello) == {"kf_store", "nonce"}
    sock.sendall(b'{"nonce":"00","proof":"00"}\n{"op":"keys","key":""}\n')
    assert lines.read() == b""
    assert client.get("private", 1) == "value"


def test_client_refuses_a_server_that_does_not_know_the_secret():
    with StoreServer(secret="") as impostor:
        impostor._secret = "other"
        original, calls = wire.proves, []

        def admit_anyone(given, expected):
            calls.append(expected)
            return len(calls) == 1 or original(given, expected)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(wire, "proves", admit_anyone)
            with pytest.raises(TransportError, match="does not know the job secret"):
                StoreClient(impostor.address, "mine", connect_timeout_s=5)


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00" * 4096,
        b"[" * 600,
        b"[]\n",
        b'{"nonce":"\\ud800","proof":"\\ud800"}\n',
        b'{"nonce":1}\n',
        b"",
    ],
)
def test_garbage_before_the_proof_disturbs_nobody(server, client, garbage):
    sock, lines = raw(server)
    sock.sendall(garbage)
    try:
        sock.shutdown(socket.SHUT_WR)
        assert lines.readline().startswith(b'{"kf_store"')
        assert lines.read() == b""
    except OSError as error:  # unread garbage makes the kernel reset instead of close
        if error.errno not in (errno.ECONNRESET, errno.ENOTCONN):
            raise
    sock.close()
    assert client.set("still", "here") == 1


def test_strangers_who_stay_keep_nobody_out(server, client):
    strangers = []
    for count in range(3 * MAX_HANDSHAKES):
        sock = socket.create_connection(wire.parse_address(server.address), timeout=5)
        sock.sendall([b"", b'{"nonce":', b"garbage"][count % 3])
        strangers.append(sock)
    began = time.monotonic()
    with StoreClient(server.address, "s3cret", connect_timeout_s=5) as late:
        assert late.set("in", "time") == 1
    assert time.monotonic() - began < HANDSHAKE_TIMEOUT_S  # not when they were timed out
    assert threading.active_count() < 3 * MAX_HANDSHAKES
    assert client.get("in", 1) == "time"
    for sock in strangers:
        sock.close()


@pytest.mark.parametrize(
    "request_line",
    [{}, {"op": "drop"}, {"op": ["x"]}, {"op": "set", "key": 1, "value": "", "id": "1"},
     {"op": "watch", "key": "k", "since_version": "x", "wait_s": 0},
     {"op": "set", "key": "k", "value": "v", "id": []}],
)  # fmt: skip
def test_malformed_requests_are_answered_with_an_error(client, request_line):
    connection = client._take(None)
    connection.send(request_line)
    assert "bad store request" in connection.receive()["error"]
    client._give_back(connection)
    assert client.set("k", "v") == 1


def test_value_longer_than_a_line_is_refused_before_sending(client):
    with pytest.raises(UsageError, match="must be <= 1048576 bytes"):
        client.set("k", "x" * (1 << 20))
    assert client.set("k", "x") == 1


def test_write_repeated_after_a_lost_answer_counts_once(client):
    request = {"op": "compare_and_set", "key": "k", "value": "v", "id": "a:1"}
    first = client._call({**request, "expected_version": 0}, 0)
    again = client._call({**request, "expected_version": 0}, 0)
    assert first == again == {"ok": True, "value": "v", "version": 1}
    assert client.peek("k").version == 1


def test_client_reconnects_after_its_connections_broke(server, client):
    client.set("k", "v")
    for connection in list(server._connections):
        connection.close()
    assert client.get("k", 5) == "v"


def test_lost_server_ends_waiting_calls_with_its_address(server):
    client = StoreClient(server.address, "s3cret", reconnect_s=0.3)
    timer = threading.Timer(0.2, server.close)
    timer.start()
    start = time.monotonic()
    with pytest.raises(TransportError, match=rf"store at {server.address} was lost"):
        client.get("never", 60)
    assert time.monotonic() - start < 10
    timer.join()


def test_restarted_server_is_noticed_instead_of_looking_empty():
    first = StoreServer(secret="s")
    _, port = wire.parse_address(first.address)
    client = StoreClient(first.address, "s", reconnect_s=5)
    client.set("k", "v")
    first.close()
    with (
        StoreServer(port=port, secret="s"),
        pytest.raises(TransportError, match="was restarted and lost its values"),
    ):
        client.peek("k")


def test_connecting_waits_for_a_server_that_starts_later():
    probe = StoreServer(secret="s")
    _, port = wire.parse_address(probe.address)
    probe.close()
    started = []
    timer = threading.Timer(0.3, lambda: started.append(StoreServer(port=port, secret="s")))
    timer.start()
    with StoreClient(f"127.0.0.1:{port}", "s", connect_timeout_s=10) as client:
        assert client.set("k", "v") == 1
    timer.join()
    started[0].close()


def test_connecting_to_nothing_names_the_address():
    server = StoreServer()
    server.close()
    with pytest.raises(DeadlineError, match=rf"no store at {server.address} within 0\.2 s"):
        StoreClient(server.address, connect_timeout_s=0.2)


def test_taken_port_is_a_usage_error_that_names_it(server):
    _, port = wire.parse_address(server.address)
    with pytest.raises(UsageError, match=rf"cannot listen on 127\.0\.0\.1:{port}: .*in use"):
        StoreServer(port=port)


def test_store_works_over_ipv6():
    if not socket.has_ipv6:
        pytest.skip("no IPv6 on this machine")
    try:
        server = StoreServer("::1")
    except UsageError:
        pytest.skip("no IPv6 loopback on this machine")
    with server, StoreClient(server.address) as client:
        assert server.address.startswith("[::1]:")
        assert client.set("k", "v") == 1


def test_closed_client_says_so(server):
    client = StoreClient(server.address, "s3cret")
    client.close()
    client.close()
    with pytest.raises(UsageError, match="is closed"):
        client.peek("k")


def test_no_threads_or_connections_are_left_behind(server):
    before = threading.active_count()
    for _ in range(5):
        with StoreClient(server.address, "s3cret") as client:
            client.set("k", "v")
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before
    assert not server._connections


@pytest.mark.parametrize(
    ("address", "parts"), [("h:1", ("h", 1)), ("[::1]:65535", ("::1", 65535))]
)
def test_addresses_are_split_and_put_together_again(address, parts):
    assert wire.parse_address(address) == parts
    assert wire.format_address(*parts) == address


@pytest.mark.parametrize("address", ["", "h", "h:", ":1", "h:x", "h:0", "h:65536", "::1:5"])
def test_malformed_addresses_are_refused(address):
    with pytest.raises(UsageError):
        wire.parse_address(address)


def test_connect_store_follows_the_configuration(server):
    assert connect_store(Config()) is None
    config = Config(world_size=2, store_address=server.address, job_secret="s3cret")
    with connect_store(config) as client:
        assert client.set("k", "v") == 1


def test_connect_store_hosts_the_store_where_no_launcher_does():
    probe = StoreServer()
    probe.close()
    address = probe.address
    with (
        connect_store(Config(0, 2, store_address=address, hosts_store=True)) as host,
        connect_store(Config(1, 2, store_address=address)) as guest,
    ):
        guest.set("k", "v")
        assert host.get("k", 1) == "v"
    with pytest.raises(DeadlineError):
        StoreClient(address, connect_timeout_s=0.1)


def test_host_of_the_store_leaves_after_its_guests():
    probe = StoreServer()
    probe.close()
    host = connect_store(Config(0, 2, store_address=probe.address, hosts_store=True))
    guest = connect_store(Config(1, 2, store_address=probe.address))
    closing = threading.Thread(target=host.close)
    closing.start()
    time.sleep(0.2)
    assert guest.set("late", "x") == 1
    guest.close()
    closing.join(4)
    assert not closing.is_alive()
