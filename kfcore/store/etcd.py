"""The same store on an etcd cluster, over etcd's JSON gateway (v3, etcd 3.4 and later).

A job's keys lie under ``kf/<job id>/``. etcd counts a key's versions as this package does: 0 =
never set, one more at each change. A value is stored as ``<request id> <value>``, so that a
compare-and-set whose answer was lost, and which is sent again, recognises its own work.
Source: etcd's ``rpc.proto`` and "etcd v3 API: gRPC gateway" (etcd.io).
"""

import base64
import contextlib
import http.client
import json
import secrets
import socket
import threading
import time
from typing import Any

from kfcore.errors import DeadlineError, TransportError, UsageError
from kfcore.store import wire
from kfcore.store.client import StoreClient

__all__ = ["SCHEME", "EtcdClient", "split_url"]

SCHEME = "etcd://"
ANSWER_TIMEOUT_S = 10.0
_PAUSE_S = 0.1


def split_url(url: str) -> tuple[list[tuple[str, int]], str]:
    """Take the address of a job on etcd apart.

    Args:
        url: ``etcd://host:port[,host:port...]/job``.

    Returns:
        Hosts and ports, and the job's name.

    Raises:
        UsageError: it does not read so.
    """
    places, slash, job = url.removeprefix(SCHEME).partition("/")
    if not url.startswith(SCHEME) or not slash or not job:
        raise UsageError(f"a store on etcd must read {SCHEME}HOST:PORT/JOB, got {url!r}")
    return [wire.parse_address(place) for place in places.split(",")], job


class EtcdClient(StoreClient):
    """A `StoreClient` that keeps the job's keys on etcd. A context manager.

    The job secret is not asked for by etcd: whoever reaches it can read and change the job's
    keys. Workers still prove the secret to each other.

    Args:
        url: See `split_url`; the next host is tried when one fails.
        connect_timeout_s: How long to keep trying the first connection, seconds.
        reconnect_s: How long a lost cluster is looked for before a call gives up, seconds.

    Raises:
        DeadlineError: No answer within connect_timeout_s; the text names the address.
        UsageError: A malformed address.
    """

    def __init__(
        self, url: str, *, connect_timeout_s: float = 30.0, reconnect_s: float = 5.0
    ) -> None:
        self.address = url
        self._places, job = split_url(url)
        self._prefix = f"kf/{job}/"
        self._name = secrets.token_hex(8)
        self._requests = 0
        self._lock = threading.Lock()
        self._closed = False
        self._owned_server = None
        self._free: list[http.client.HTTPConnection] = []
        self._watching: set[http.client.HTTPConnection] = set()
        self._reconnect_s = connect_timeout_s
        try:
            self.keys("")
        except TransportError as error:
            raise DeadlineError(
                f"no etcd at {url} within {connect_timeout_s:g} s: {error.__cause__}"
            ) from error
        self._reconnect_s = reconnect_s

    def close(self) -> None:
        """Close all connections. Calling it again does nothing."""
        with self._lock:
            self._closed = True
            free, self._free = self._free, []
            watching = list(self._watching)
        for connection in watching:  # wakes the thread that waits there
            with contextlib.suppress(OSError, AttributeError):
                connection.sock.shutdown(socket.SHUT_RDWR)
        for connection in free:
            connection.close()

    def clear(self) -> None:
        """Delete all keys of the job: it is over.

        Raises:
            TransportError: etcd is lost.
        """
        self._ask("kv/deleterange", self._below(self._prefix))

    def _call(self, request: dict[str, Any], wait_s: float) -> dict[str, Any]:
        if len(json.dumps(request)) > wire.LINE_BYTES:  # as on the embedded store
            size = len(json.dumps(request))
            raise UsageError(f"store line must be <= {wire.LINE_BYTES} bytes, got {size}")
        key = self._prefix + request["key"]
        if request["op"] == "keys":
            answer = self._ask("kv/range", {**self._below(key), "keys_only": True})
            names = [_text(kv["key"]) for kv in answer.get("kvs", ())]
            return {"keys": sorted(name[len(self._prefix) :] for name in names)}
        if request["op"] == "watch":
            return self._watch(key, int(request["since_version"]), wait_s)
        return self._store(key, request)

    def _store(self, key: str, request: dict[str, Any]) -> dict[str, Any]:
        put = {"key": _code(key), "value": _code(f"{request['id']} {request['value']}")}
        look = {"requestRange": {"key": _code(key)}}
        compare = []
        if "expected_version" in request:
            seen = str(request["expected_version"])
            compare.append(
                {"key": _code(key), "target": "VERSION", "result": "EQUAL", "version": seen}
            )
        answer = self._ask(
            "kv/txn",
            {"compare": compare, "success": [{"requestPut": put}, look], "failure": [look]},
        )
        kvs = answer["responses"][-1]["response_range"].get("kvs", ())
        value, version, request_id = _kv(kvs)
        done = bool(answer.get("succeeded")) or request_id == request["id"]
        return {"ok": done, "value": value, "version": version}

    def _watch(self, key: str, since: int, wait_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + wait_s
        while True:
            answer = self._ask("kv/range", {"key": _code(key)})
            value, version, _ = _kv(answer.get("kvs", ()))
            left_s = deadline - time.monotonic()
            if version > since or left_s <= 0 or self._closed:
                return {"ok": version > since, "value": value, "version": version}
            after = int(answer["header"]["revision"]) + 1
            create = {"create_request": {"key": _code(key), "start_revision": str(after)}}
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                self._wait_for_event(create, left_s)

    def _wait_for_event(self, create: dict[str, Any], wait_s: float) -> None:
        """Return when the key has changed, or after wait_s, seconds."""
        deadline = time.monotonic() + wait_s
        connection = self._dial(self._places[0], wait_s)
        with self._lock:
            self._watching.add(connection)
        try:
            connection.request("POST", "/v3/watch", json.dumps(create))
            response = connection.getresponse()
            while (left_s := deadline - time.monotonic()) > 0 and not self._closed:
                if connection.sock is not None:
                    connection.sock.settimeout(left_s)
                line = response.readline()
                if not line or "events" in json.loads(line).get("result", {}):
                    return
        finally:
            with self._lock:
                self._watching.discard(connection)
            connection.close()

    def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request, to one host after another on failure, until reconnect_s are over."""
        give_up = time.monotonic() + self._reconnect_s
        while True:
            try:
                return self._once(path, body)
            except (OSError, http.client.HTTPException) as error:
                with self._lock:
                    if self._closed:
                        raise UsageError(f"the client of {self.address} is closed") from error
                    self._places = [*self._places[1:], self._places[0]]
                    self._free.clear()
                if time.monotonic() + _PAUSE_S > give_up:
                    raise TransportError(
                        f"the job's store at {self.address} was lost: {error}"
                    ) from error
                time.sleep(_PAUSE_S)

    def _once(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            if self._closed:
                raise UsageError(f"the client of the store at {self.address} is closed")
            connection = self._free.pop() if self._free else None
        connection = connection or self._dial(self._places[0], ANSWER_TIMEOUT_S)
        try:
            connection.request("POST", f"/v3/{path}", json.dumps(body))
            response = connection.getresponse()
            text = response.read()
            if response.status != http.HTTPStatus.OK:
                raise ConnectionError(f"etcd answered {response.status}: {text[:200]!r}")
        except BaseException:
            connection.close()
            raise
        with self._lock:
            keep = not self._closed
            if keep:
                self._free.append(connection)
        if not keep:
            connection.close()
        answer: dict[str, Any] = json.loads(text)
        return answer

    @staticmethod
    def _dial(place: tuple[str, int], timeout_s: float) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(*place, timeout=timeout_s)

    @staticmethod
    def _below(prefix: str) -> dict[str, str]:
        """The range of all keys that begin with a prefix."""
        raw = prefix.encode()
        return {"key": _code(prefix), "range_end": _base(raw[:-1] + bytes([raw[-1] + 1]))}


def _base(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


def _code(text: str) -> str:
    return _base(text.encode())


def _text(code: str) -> str:
    return base64.b64decode(code).decode()


def _kv(kvs: Any) -> tuple[str, int, str]:
    """Value, version and request id of the first key, if there is one."""
    if not kvs:
        return "", 0, ""
    request_id, _, value = _text(kvs[0].get("value", "")).partition(" ")
    return value, int(kvs[0].get("version", 0)), request_id
