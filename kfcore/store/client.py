"""The store's client: blocking calls with deadlines, and reconnection with back-off."""

import secrets
import socket
import threading
import time
from typing import Any

from kfcore.errors import DeadlineError, InternalError, TransportError, UsageError
from kfcore.store import wire
from kfcore.store.server import MAX_POLL_S, StoreServer
from kfcore.store.wire import Entry, LineSocket, Swap

__all__ = ["StoreClient"]

# Longest that one answer may take beyond the time the server was asked to wait.
ANSWER_TIMEOUT_S = 10.0
HOST_LINGER_S = 5.0
_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.5


class StoreClient:
    """Talk to a `StoreServer`. A context manager.

    Threads: calls may overlap; each uses a connection of its own, kept for the next call.

    Args:
        address: the server's ``host:port``.
        secret: the job secret.
        connect_timeout_s: how long to keep trying the first connection, seconds. A host name
            that does not resolve yet is tried again, as is a server that is not up yet.
        reconnect_s: how long a lost server is looked for before a call gives up, seconds.

    Raises:
        DeadlineError: no connection within connect_timeout_s; the text names the address.
        TransportError: the server refused the secret, or is no store.
        UsageError: a malformed address.
    """

    def __init__(
        self,
        address: str,
        secret: str = "",
        *,
        connect_timeout_s: float = 30.0,
        reconnect_s: float = 5.0,
    ) -> None:
        self.address = address
        self._host, self._port = wire.parse_address(address)
        self._secret = secret
        self._reconnect_s = reconnect_s
        self._name = secrets.token_hex(8)
        self._instance: str | None = None
        self._idle: list[LineSocket] = []
        self._busy: set[LineSocket] = set()
        self._lock = threading.Lock()
        self._requests = 0
        self._closed = False
        self._owned_server: StoreServer | None = None
        deadline = time.monotonic() + connect_timeout_s
        try:
            self._idle.append(self._connect_until(deadline))
        except OSError as error:
            raise DeadlineError(
                f"no store at {address} within {connect_timeout_s:g} s: {error}"
            ) from error

    def __enter__(self) -> "StoreClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def own(self, server: StoreServer) -> None:
        """Serve this store from here on: closing the client closes the server too."""
        self._owned_server = server

    def close(self) -> None:
        """Close all connections; calls under way in other threads fail. Again: does nothing.

        A client that hosts the store waits for the others to leave it, HOST_LINGER_S at most.
        """
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for connection in self._busy:  # wakes the threads that wait for an answer
                connection.hang_up()
        for connection in idle:
            connection.close()
        if self._owned_server is not None:
            self._owned_server.wait_idle(HOST_LINGER_S)
            self._owned_server.close()

    def set(self, key: str, value: str) -> int:
        """Set a key whatever it holds.

        Args:
            key: any text.
            value: text; key and value together up to 1 MiB as JSON.

        Returns:
            The key's new version, >= 1.

        Raises:
            TransportError: the store is lost.
            UsageError: the value is too long.
        """
        return int(self._write("set", key, value)["version"])

    def compare_and_set(self, key: str, expected_version: int, value: str) -> Swap:
        """Set a key only if its version is the expected one.

        Args:
            key: any text.
            expected_version: version seen last; 0 = the key must not exist yet.
            value: text, as in `set`.

        Returns:
            Whether it was done, and the entry that the key holds now.

        Raises:
            TransportError: the store is lost.
            UsageError: the value is too long.
        """
        answer = self._write("compare_and_set", key, value, expected_version=expected_version)
        return Swap(bool(answer["ok"]), _entry(answer))

    def get(self, key: str, timeout_s: float) -> str:
        """Wait until a key exists and return its value.

        Args:
            key: any text.
            timeout_s: seconds to wait, >= 0.

        Returns:
            The value.

        Raises:
            DeadlineError: nobody set the key in time; the text names it.
            TransportError: the store is lost.
        """
        return self.watch(key, 0, timeout_s).value

    def peek(self, key: str) -> Entry:
        """Return what a key holds now, without waiting.

        Args:
            key: any text.

        Returns:
            The entry; version 0 when the key was never set.

        Raises:
            TransportError: the store is lost.
        """
        return _entry(self._poll(key, 0, 0.0))

    def watch(self, key: str, since_version: int, timeout_s: float) -> Entry:
        """Wait until a key's version exceeds since_version.

        Changes in between may be skipped; the newest entry is returned.

        Args:
            key: any text.
            since_version: last version seen; 0 = wait until the key exists.
            timeout_s: seconds to wait, >= 0.

        Returns:
            The newest entry.

        Raises:
            DeadlineError: no change in time; the text names the key.
            TransportError: the store is lost.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            answer = self._poll(key, since_version, min(left_s, MAX_POLL_S))
            if answer["ok"]:
                return _entry(answer)
            if time.monotonic() >= deadline:
                what = "was not set" if not since_version else f"stayed at {since_version}"
                raise DeadlineError(
                    f"store key {key!r} {what} within {timeout_s:g} s at {self.address}"
                )

    def keys(self, prefix: str = "") -> list[str]:
        """List keys.

        Args:
            prefix: what the keys start with.

        Returns:
            The keys, sorted.

        Raises:
            TransportError: the store is lost.
        """
        answer = self._call({"op": "keys", "key": prefix}, 0.0)
        return [str(key) for key in answer["keys"]]

    def _write(self, op: str, key: str, value: str, **more: Any) -> dict[str, Any]:
        with self._lock:
            self._requests += 1
            request_id = f"{self._name}:{self._requests}"
        request = {"op": op, "key": key, "value": value, "id": request_id, **more}
        return self._call(request, 0.0)

    def _poll(self, key: str, since_version: int, wait_s: float) -> dict[str, Any]:
        request = {
            "op": "watch",
            "key": key,
            "since_version": since_version,
            "wait_s": wait_s,
        }
        return self._call(request, wait_s)

    def _call(self, request: dict[str, Any], wait_s: float) -> dict[str, Any]:
        """Send a request, reconnecting on failure until reconnect_s after the first one."""
        give_up: float | None = None
        while True:
            try:
                connection = self._take(give_up)
                with self._lock:
                    self._busy.add(connection)
                try:
                    connection.sock.settimeout(wait_s + ANSWER_TIMEOUT_S)
                    connection.send(request)
                    answer = connection.receive()
                except BaseException:
                    connection.close()
                    raise
                finally:
                    with self._lock:
                        self._busy.discard(connection)
                break
            except OSError as error:
                now = time.monotonic()
                if give_up is None:
                    give_up = now + self._reconnect_s
                if now >= give_up:
                    raise TransportError(
                        f"the job's store at {self.address} was lost: {error}"
                    ) from error
        self._give_back(connection)
        if "error" in answer:
            raise InternalError(str(answer["error"]))
        return answer

    def _take(self, give_up: float | None) -> LineSocket:
        with self._lock:
            if self._closed:
                raise UsageError(f"the client of the store at {self.address} is closed")
            if give_up is None and self._idle:
                return self._idle.pop()
            if give_up is not None:  # what was idle broke too: it is the same server
                stale, self._idle = self._idle, []
                for connection in stale:
                    connection.close()
        return self._connect_until(time.monotonic() if give_up is None else give_up)

    def _give_back(self, connection: LineSocket) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    def _connect_until(self, deadline: float) -> LineSocket:
        pause_s = _FIRST_PAUSE_S
        silences = 0
        while True:
            try:
                return self._connect(max(1.0, deadline - time.monotonic()))
            except OSError as error:
                # A server that dies in mid-handshake falls silent too, but only once.
                silences += isinstance(error, _SilenceError)
                if silences > 1:
                    raise TransportError(str(error)) from error
                if time.monotonic() + pause_s > deadline:
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _connect(self, timeout_s: float) -> LineSocket:
        sock = socket.create_connection((self._host, self._port), timeout=timeout_s)
        connection = LineSocket(sock)
        try:
            self._introduce(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _introduce(self, connection: LineSocket) -> None:
        hello = connection.receive(wire.HANDSHAKE_LINE_BYTES)
        _let_in(hello)
        server_nonce = hello.get("nonce")
        if hello.get("kf_store") != wire.PROTOCOL or not isinstance(server_nonce, str):
            raise TransportError(f"{self.address} is no store of protocol {wire.PROTOCOL}")
        nonce = wire.new_nonce()
        own_proof = wire.proof(self._secret, "client", server_nonce, nonce)
        connection.send({"nonce": nonce, "proof": own_proof})
        try:
            welcome = connection.receive(wire.HANDSHAKE_LINE_BYTES)
        except ConnectionResetError:
            raise  # it hung up before it had read our proof, so it judged nothing
        except ConnectionError as error:
            raise _SilenceError(
                f"the store at {self.address} refused the job secret"
            ) from error
        _let_in(welcome)
        expected = wire.proof(self._secret, "server", server_nonce, nonce)
        if not wire.proves(welcome.get("proof"), expected):
            raise TransportError(f"the store at {self.address} does not know the job secret")
        instance = str(welcome.get("instance"))
        with self._lock:
            if self._instance is None:
                self._instance = instance
        if instance != self._instance:
            raise TransportError(
                f"the store at {self.address} was restarted and lost its values"
            )


class _SilenceError(ConnectionError):
    """The server hung up on our proof: it knows another secret, or it just died."""


def _let_in(line: dict[str, Any]) -> None:
    if line.get("busy"):
        raise ConnectionError("the store has too many strangers at its door")


def _entry(answer: dict[str, Any]) -> Entry:
    return Entry(str(answer["value"]), int(answer["version"]))
