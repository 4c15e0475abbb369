"""What store server and client send each other: bounded lines of JSON after a mutual proof.

Handshake, each line ending in a newline:

1. server: ``{"kf_store": 1, "nonce": HEX}``
2. client: ``{"nonce": HEX, "proof": HMAC-SHA256(secret, "client" server_nonce client_nonce)}``
3. server: ``{"proof": HMAC-SHA256(secret, "server" ...), "instance": HEX}``

A side whose proof is wrong is cut off without an answer, so it learns nothing but a nonce. A
server with too many strangers says ``{"busy": true}`` to the oldest and hangs up: try again.
Then requests ``{"op": ..., "key": ..., ...}`` and answers ``{"ok": ...}`` or ``{"error": ...}``
alternate. The secret itself never travels; the text is not encrypted.
"""

import contextlib
import hashlib
import hmac
import json
import secrets
import socket
from dataclasses import dataclass
from typing import Any

from kfcore.errors import TransportError, UsageError

__all__ = ["Entry", "LineSocket", "Swap", "format_address", "parse_address", "proof"]

PROTOCOL = 1
NONCE_BYTES = 32
# Nobody who has not proved the secret can make us hold more than this.
HANDSHAKE_LINE_BYTES = 512
# Bounds a value; a control document for thousands of members stays far below it.
LINE_BYTES = 1 << 20
_MAX_PORT = 65535


@dataclass(frozen=True)
class Entry:
    """A key's value and its version: 0 = never set, then one more at every change."""

    value: str
    version: int


@dataclass(frozen=True)
class Swap:
    """Outcome of a compare-and-set: whether it was done, and the entry afterwards."""

    done: bool
    entry: Entry


def parse_address(address: str) -> tuple[str, int]:
    """Split an address.

    Args:
        address: ``host:port`` or ``[ipv6]:port``.

    Returns:
        Host without brackets, and port.

    Raises:
        UsageError: no port, a port outside [1, 65535], or an unbracketed IPv6 host.
    """
    host, colon, port_text = address.rpartition(":")
    if not colon or not host or not port_text.isdecimal():
        raise UsageError(f"address must be HOST:PORT, got {address!r}")
    port = int(port_text)
    if not 1 <= port <= _MAX_PORT:
        raise UsageError(f"port must be in [1, {_MAX_PORT}], got {port} in {address!r}")
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1], port
    if ":" in host:
        raise UsageError(f"an IPv6 host needs brackets, as in [::1]:{port}; got {address!r}")
    return host, port


def format_address(host: str, port: int) -> str:
    """``host:port``, with brackets round an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def new_nonce() -> str:
    """A fresh random challenge, hexadecimal."""
    return secrets.token_hex(NONCE_BYTES)


def proof(secret: str, role: str, server_nonce: str, client_nonce: str) -> str:
    """Show knowledge of secret for these two challenges; role keeps the two sides apart."""
    text = f"kf-store {PROTOCOL} {role} {server_nonce} {client_nonce}"
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()


def proves(given: object, expected: str) -> bool:
    """Whether a received proof is the expected one, in time that does not tell how close."""
    return isinstance(given, str) and hmac.compare_digest(given.encode(), expected.encode())


class LineSocket:
    """JSON objects, one a line, over a connected TCP socket. Not safe for two threads at once.

    Args:
        sock: connected; owned from here on.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()

    def send(self, message: dict[str, Any]) -> None:
        """Send one object.

        Args:
            message: what `json` can write, at most LINE_BYTES long.

        Raises:
            UsageError: the line is longer than both sides accept; nothing was sent.
            OSError: the connection failed.
        """
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        if len(line) > LINE_BYTES:
            raise UsageError(f"store line must be <= {LINE_BYTES} bytes, got {len(line)}")
        self.sock.sendall(line)

    def receive(self, limit_bytes: int = LINE_BYTES) -> dict[str, Any]:
        """Receive one object.

        Args:
            limit_bytes: longest line to accept, bytes.

        Returns:
            The object.

        Raises:
            TransportError: a line that is too long, or is not a JSON object.
            ConnectionError: the other side closed the connection.
            OSError: the connection failed, or the socket's own timeout passed.
        """
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) >= limit_bytes:
                raise TransportError(f"store line longer than {limit_bytes} bytes")
            data = self.sock.recv(min(65536, limit_bytes - len(self._buffer)))
            if not data:
                raise ConnectionError("connection closed by the other side")
            self._buffer += data
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            raise TransportError("store line is not JSON") from None
        if not isinstance(message, dict):
            raise TransportError("store line is not a JSON object")
        return message

    def turn_away(self) -> None:
        """Say that there is no room now, and hang up, waking a thread that reads."""
        with contextlib.suppress(OSError):  # already gone, or it does not read
            self.sock.send(b'{"busy":true}\n', socket.MSG_DONTWAIT)
            self.sock.shutdown(socket.SHUT_RDWR)

    def hang_up(self) -> None:
        """End the connection, waking a thread that reads from it, which then closes it."""
        with contextlib.suppress(OSError):  # already gone
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection, waking a thread that reads from it."""
        self.hang_up()
        self.sock.close()
