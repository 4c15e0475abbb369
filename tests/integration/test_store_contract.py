"""What every store promises: the embedded one, and a real etcd server."""

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kfcore.errors import DeadlineError, TransportError, UsageError
from kfcore.membership import RosterStore, found_job
from kfcore.store import Entry, StoreServer, open_store
from kfcore.store.etcd import EtcdClient, split_url

pytestmark = pytest.mark.processes
ROOT = Path(__file__).resolve().parents[2]
ETCD = shutil.which("etcd")
needs_etcd = pytest.mark.skipif(ETCD is None, reason="no etcd (Debian: etcd-server)")


def free_url():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


def start_etcd(folder):
    """A server on free ports; on others when somebody was faster."""
    for _ in range(10):
        client, peer = free_url(), free_url()
        options = {
            "data-dir": folder,
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "log-level": "error",
        }
        command = [ETCD, "--unsafe-no-fsync", *(f"--{k}={v}" for k, v in options.items())]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        url = client.replace("http", "etcd")
        while process.poll() is None:
            try:
                EtcdClient(f"{url}/probe", connect_timeout_s=1).close()
            except DeadlineError:
                continue
            return process, url
    raise AssertionError("etcd did not start")


@pytest.fixture(scope="module")
def etcd(tmp_path_factory):
    process, url = start_etcd(tmp_path_factory.mktemp("etcd") / "data")
    yield url
    process.kill()
    process.wait()


@pytest.fixture(params=["embedded", pytest.param("etcd", marks=needs_etcd)])
def connect(request):
    """Makes clients of one empty store."""
    made = []

    def embedded():
        made.append(open_store(server.address, "s3cret"))
        return made[-1]

    def on_etcd():
        made.append(open_store(f"{url}/{request.node.name}"))
        return made[-1]

    if request.param == "embedded":
        with StoreServer(secret="s3cret") as server:
            yield embedded
            for client in made:
                client.close()
    else:
        url = request.getfixturevalue("etcd")
        yield on_etcd
        for client in made:
            client.close()


def test_versions_count_changes_of_a_key(connect):
    client = connect()
    assert client.peek("k") == Entry("", 0)
    assert client.set("k", "a b") == 1
    assert client.set("k", "b\nä") == 2
    assert client.peek("k") == Entry("b\nä", 2)
    client.set("k2", "")
    client.set("other", "x")
    assert client.keys("k") == ["k", "k2"]
    assert client.get("k2", 1) == ""


def test_compare_and_set_needs_the_version_seen_last(connect):
    client = connect()
    assert client.compare_and_set("v", 0, "one").done
    refused = client.compare_and_set("v", 0, "other")
    assert (refused.done, refused.entry) == (False, Entry("one", 1))
    assert client.compare_and_set("v", 1, "two").entry == Entry("two", 2)


def test_one_of_many_wins_each_version(connect):
    clients = [connect() for _ in range(4)]
    wins = []

    def contend(client):
        for version in range(10):
            if client.compare_and_set("view", version, "x").done:
                wins.append(version)
            client.watch("view", version, 60)

    threads = [threading.Thread(target=contend, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert sorted(wins) == list(range(10))


def test_waiting_calls_return_when_the_key_changes(connect):
    client, other = connect(), connect()
    seen = []
    waiter = threading.Thread(target=lambda: seen.append(client.get("late", 60)))
    waiter.start()
    time.sleep(0.1)
    version = other.set("late", "v")
    waiter.join(60)
    assert seen == ["v"]
    waiter = threading.Thread(target=lambda: seen.append(client.watch("late", version, 60)))
    waiter.start()
    time.sleep(0.1)
    other.set("late", "w")
    waiter.join(60)
    assert seen[1] == Entry("w", 2)


def test_nobody_sets_the_key(connect):
    with pytest.raises(DeadlineError, match=r"'never' was not set within 0\.2 s"):
        connect().get("never", 0.2)


def test_a_value_that_is_too_long_is_refused(connect):
    with pytest.raises(UsageError, match="must be <= 1048576 bytes"):
        connect().set("k", "x" * (1 << 20))


def test_a_request_sent_again_is_done_once(connect):
    client = connect()
    request = {"op": "compare_and_set", "key": "k", "value": "v", "id": "me:1"}
    for _ in range(2):  # the first answer was lost
        answer = client._call({**request, "expected_version": 0}, 0.0)
        assert (answer["ok"], answer["version"]) == (True, 1)


def test_closing_wakes_who_waits(connect):
    client = connect()
    errors = []

    def wait():
        try:
            client.watch("never", 0, 100)
        except (UsageError, TransportError, DeadlineError) as error:
            errors.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(0.1)
    client.close()
    waiter.join(60)
    assert len(errors) == 1


def test_members_agree_through_it(connect):
    rosters = [RosterStore(connect()) for _ in range(2)]
    found_job(connect(), founders=2, min_size=1, max_size=4)
    rosters[0].change(lambda roster: roster.resize(3, "more"))
    roster, _ = rosters[1].read()
    assert (roster.target, roster.max_size) == (3, 4)


@needs_etcd
def test_a_lost_server_is_an_error_and_one_that_returns_is_found(tmp_path):
    process, url = start_etcd(tmp_path / "data")
    client = EtcdClient(f"{url}/job", reconnect_s=0.2)
    client.set("k", "v")
    process.kill()
    process.wait()
    with pytest.raises(TransportError, match="was lost"):
        client.peek("k")
    client.close()


@needs_etcd
def test_a_job_runs_on_etcd_and_leaves_nothing_there(etcd, tmp_path):
    program = tmp_path / "sum.py"
    program.write_text(
        "import numpy, kfcore\n"
        "with kfcore.init() as session:\n"
        "    print(session.all_reduce(numpy.ones(1))[0])\n"
    )
    command = [sys.executable, "-m", "kfcore", "run", "-n", "2", "--store", etcd, str(program)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == ["[0] 2.0", "[1] 2.0"]
    with EtcdClient(f"{etcd}/probe") as probe:
        probe._prefix = ""
        assert not [key for key in probe.keys("kf/") if "view/" in key]


@pytest.mark.parametrize("url", ["etcd://h:1", "etcd://h/job", "h:1/job", "etcd:///job"])
def test_malformed_addresses_are_refused(url):
    with pytest.raises(UsageError):
        split_url(url)


def test_several_hosts_can_be_named():
    assert split_url("etcd://a:1,[::1]:2/j") == ([("a", 1), ("::1", 2)], "j")
