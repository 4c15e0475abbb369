"""The embedded store server: a thread a connection, values in memory, a version per key."""

import contextlib
import errno
import secrets
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from kfcore.errors import TransportError, UsageError
from kfcore.store import wire
from kfcore.store.ports import owner_of_port
from kfcore.store.wire import LineSocket

__all__ = ["StoreServer"]

HANDSHAKE_TIMEOUT_S = 5.0
# Connections that have not proved the secret yet; one more pushes out the oldest, so that
# strangers who stay cannot keep clients away.
MAX_HANDSHAKES = 128
# Threads for them, with those that are just ending.
_MAX_STRANGERS = 2 * MAX_HANDSHAKES
# One long poll; a client that wants to wait longer asks again.
MAX_POLL_S = 20.0
# Writes remembered for clients that lost the connection before they got the answer.
REMEMBERED_REQUESTS = 4096
_BACKLOG = 512


class StoreServer:
    """Serve one job's store until closed. A context manager.

    Threads: all methods may be called from any thread. Values live in this process only; a
    client that meets a restarted server is told so (`StoreClient`).

    Args:
        host: address to listen on; empty = all addresses, IPv4 and IPv6.
        port: port to listen on; 0 = let the system choose a free one.
        secret: what a client must prove to know; empty = anyone may connect.

    Raises:
        UsageError: the address cannot be listened on (the text names it and the reason).
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0, secret: str = "") -> None:
        self._secret = secret
        self._instance = secrets.token_hex(8)
        self._state = _State()
        self._strangers = threading.Semaphore(_MAX_STRANGERS)
        self._handshakes: OrderedDict[LineSocket, None] = OrderedDict()  # oldest first
        self._connections: set[LineSocket] = set()
        self._lock = threading.Lock()
        self._left = threading.Condition(self._lock)
        self._closed = False
        try:
            self._listener = _listen(host, port)
        except OSError as error:
            where = wire.format_address(host or "*", port)
            taken = error.errno == errno.EADDRINUSE
            owner = owner_of_port(port) if taken else ""
            raise UsageError(f"the store cannot listen on {where}: {error}{owner}") from error
        bound_port = self._listener.getsockname()[1]
        self.address = wire.format_address(host, bound_port)
        """``host:port`` to give to clients."""
        self.reachable_here = self.address if host else f"127.0.0.1:{bound_port}"
        """``host:port`` for clients in this process."""
        self._thread = threading.Thread(target=self._accept, name="kf-store", daemon=True)
        self._thread.start()

    def __enter__(self) -> "StoreServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening and cut off every client. Calling it again does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            connections = list(self._connections)
        self._state.close()
        # shutdown wakes the thread blocked in accept; close alone does not on Linux
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in connections:
            connection.close()
        self._thread.join(timeout=5.0)

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no client is connected.

        Args:
            timeout_s: seconds to wait at most, >= 0.

        Returns:
            Whether it came to that.
        """
        with self._left:
            return self._left.wait_for(lambda: not self._connections, timeout_s)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                if self._closed:
                    return
                time.sleep(0.05)  # out of descriptors for a moment: keep listening
                continue
            try:
                connection = LineSocket(sock)
            except OSError:  # it has gone already
                sock.close()
                continue
            self._make_room(connection)
            self._strangers.acquire()  # those pushed out end at once, so this does not last
            try:
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
            except RuntimeError:  # no thread to be had: this client may try again
                self._strangers.release()
                with self._lock:
                    self._handshakes.pop(connection, None)
                sock.close()

    def _make_room(self, newcomer: LineSocket) -> None:
        with self._lock:
            self._handshakes[newcomer] = None
            if len(self._handshakes) <= MAX_HANDSHAKES:
                return
            oldest, _ = self._handshakes.popitem(last=False)
        oldest.turn_away()

    def _serve(self, connection: LineSocket) -> None:
        sock = connection.sock
        try:
            try:
                sock.settimeout(HANDSHAKE_TIMEOUT_S)
                admitted = self._admit(connection)
            finally:
                with self._lock:
                    self._handshakes.pop(connection, None)
                self._strangers.release()
            if admitted:
                sock.settimeout(None)
                self._answer_requests(connection)
        except (OSError, TransportError, ValueError):
            pass  # a broken or hostile client loses its own connection, nothing else
        finally:
            with self._lock:
                self._connections.discard(connection)
                self._left.notify_all()
            sock.close()

    def _admit(self, connection: LineSocket) -> bool:
        server_nonce = wire.new_nonce()
        connection.send({"kf_store": wire.PROTOCOL, "nonce": server_nonce})
        reply = connection.receive(wire.HANDSHAKE_LINE_BYTES)
        with self._lock:
            if connection not in self._handshakes:
                return False  # it was turned away meanwhile
            del self._handshakes[connection]  # and cannot be any more
        client_nonce = reply.get("nonce")
        if not isinstance(client_nonce, str):
            return False
        expected = wire.proof(self._secret, "client", server_nonce, client_nonce)
        if not wire.proves(reply.get("proof"), expected):
            return False
        with self._lock:
            if self._closed:
                return False
            self._connections.add(connection)
        answer = wire.proof(self._secret, "server", server_nonce, client_nonce)
        connection.send({"proof": answer, "instance": self._instance})
        return True

    def _answer_requests(self, connection: LineSocket) -> None:
        while True:
            request = connection.receive()
            try:
                answer = self._state.answer(request)
            except (KeyError, TypeError, ValueError) as error:
                answer = {"error": f"bad store request {request.get('op')!r}: {error!r}"}
            connection.send(answer)


def _listen(host: str, port: int) -> socket.socket:
    if not host and socket.has_dualstack_ipv6():
        return socket.create_server(
            ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG
        )
    family = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM)[0][0]  # noqa: S104
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


class _State:
    """The values themselves; each method is atomic."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[str, int]] = {}
        self._done: OrderedDict[str, int] = OrderedDict()  # request id -> version it made
        self._changed = threading.Condition()
        self._closed = False
        self._operations: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "set": self._set,
            "compare_and_set": self._compare_and_set,
            "watch": self._watch,
            "keys": self._keys,
        }

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out one request; a malformed one raises KeyError, TypeError or ValueError."""
        operation = self._operations[request["op"]]
        with self._changed:
            return operation(request)

    def _set(self, request: dict[str, Any]) -> dict[str, Any]:
        return self._once(request, lambda _: True)

    def _compare_and_set(self, request: dict[str, Any]) -> dict[str, Any]:
        expected = int(request["expected_version"])
        return self._once(request, lambda version: version == expected)

    def _once(self, request: dict[str, Any], allowed: Callable[[int], bool]) -> dict[str, Any]:
        """Write if allowed.

        A request that was carried out and comes again, because its answer was lost with the
        connection, gets that answer again. One that was refused may be judged anew: versions
        never return to an older value.
        """
        key, value, request_id = _text(request, "key"), _text(request, "value"), request["id"]
        if request_id in self._done:
            return {"ok": True, "value": value, "version": self._done[request_id]}
        old_value, version = self._entries.get(key, ("", 0))
        if not allowed(version):
            return {"ok": False, "value": old_value, "version": version}
        version += 1
        self._entries[key] = (value, version)
        self._done[request_id] = version
        while len(self._done) > REMEMBERED_REQUESTS:
            self._done.popitem(last=False)
        self._changed.notify_all()
        return {"ok": True, "value": value, "version": version}

    def _watch(self, request: dict[str, Any]) -> dict[str, Any]:
        key, since = _text(request, "key"), int(request["since_version"])
        wait_s = min(float(request["wait_s"]), MAX_POLL_S)
        deadline = time.monotonic() + wait_s
        while True:
            value, version = self._entries.get(key, ("", 0))
            left_s = deadline - time.monotonic()
            if version > since or left_s <= 0 or self._closed:
                return {"ok": version > since, "value": value, "version": version}
            self._changed.wait(left_s)

    def _keys(self, request: dict[str, Any]) -> dict[str, Any]:
        prefix = _text(request, "key")
        return {"ok": True, "keys": sorted(k for k in self._entries if k.startswith(prefix))}


def _text(request: dict[str, Any], name: str) -> str:
    value = request[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} must be text")
    return value
