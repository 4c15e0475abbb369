"""The door: where a member tells others that it lives, whatever its main thread does.

A question is 16 random bytes; the answer is HMAC-SHA256 of them and the member's id under the
job secret. A dead process refuses the connection, a stopped one takes it and says nothing.
"""

import contextlib
import enum
import hashlib
import hmac
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Iterable

from kfcore.store.wire import format_address, parse_address

__all__ = ["Door", "Life", "knock"]

_ASK_BYTES = 16
_ANSWER_BYTES = 32
_MOST_ASKING = 256
_POLL_S = 0.5


class Life(enum.Enum):
    """What a knock showed."""

    ALIVE = "alive"
    DEAD = "dead"
    """Its machine says that nobody is there."""
    SILENT = "silent"
    """No answer in time: stopped, hung, or cut off."""


class Door:
    """Answers knocks from a thread of its own until closed.

    Args:
        host: Address to listen on.
        member_id: Whose door it is.
        secret: The job secret.
    """

    def __init__(self, host: str, member_id: str, secret: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=128)
        self._listener.setblocking(False)
        self.address = format_address(host, self._listener.getsockname()[1])
        self._member_id, self._secret = member_id, secret
        self._closed = False
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="kf-door", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering. Closing twice is harmless."""
        if not self._closed:
            self._closed = True
            with contextlib.suppress(OSError):
                self._wake.send(b"\0")
            self._thread.join()
            self._wake.close()

    def _serve(self) -> None:
        asking: dict[socket.socket, bytes] = {}
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ, self._listener)
            selector.register(self._woken, selectors.EVENT_READ, self._woken)
            while not self._closed:
                for key, _ in selector.select():
                    sock: socket.socket = key.data
                    if sock is self._listener:
                        self._accept(selector, asking)
                    elif sock is not self._woken and self._answered(sock, asking):
                        selector.unregister(sock)
                        del asking[sock]
                        sock.close()
        for sock in (*asking, self._listener, self._woken):
            sock.close()

    def _accept(
        self, selector: selectors.BaseSelector, asking: dict[socket.socket, bytes]
    ) -> None:
        with contextlib.suppress(OSError):
            sock, _ = self._listener.accept()
            sock.setblocking(False)
            if len(asking) >= _MOST_ASKING:  # strangers that say nothing: the oldest goes
                oldest = next(iter(asking))
                selector.unregister(oldest)
                del asking[oldest]
                oldest.close()
            asking[sock] = b""
            selector.register(sock, selectors.EVENT_READ, sock)

    def _answered(self, sock: socket.socket, asking: dict[socket.socket, bytes]) -> bool:
        """Read on; True when this caller is done with."""
        try:
            data = sock.recv(_ASK_BYTES - len(asking[sock]))
        except BlockingIOError:
            return False
        except OSError:
            return True
        asking[sock] += data
        if data and len(asking[sock]) < _ASK_BYTES:
            return False
        if data:
            with contextlib.suppress(OSError):
                sock.send(_answer(self._secret, self._member_id, asking[sock]))
        return True


def _answer(secret: str, member_id: str, ask: bytes) -> bytes:
    text = b"kf-door " + member_id.encode() + b" " + ask
    return hmac.new(secret.encode(), text, hashlib.sha256).digest()


def knock(doors: Iterable[tuple[str, str]], secret: str, timeout_s: float) -> dict[str, Life]:
    """Knock at several doors at once.

    Args:
        doors: Member id and address of each.
        secret: The job secret.
        timeout_s: After which a door is silent, seconds.

    Returns:
        By member id, what it showed.
    """
    found: dict[str, Life] = {}
    callers = [_Caller(member_id, address, secret) for member_id, address in doors]
    deadline = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        for caller in callers:
            caller.begin(selector)
        while pending := [caller for caller in callers if caller.life is None]:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            for key, _ in selector.select(min(left_s, _POLL_S)):
                key.data.step(selector)
        for caller in pending if callers else []:
            caller.end(selector, Life.SILENT)
    for caller in callers:
        found[caller.member_id] = caller.life or Life.SILENT
    return found


class _Caller:
    """One knock under way."""

    def __init__(self, member_id: str, address: str, secret: str) -> None:
        self.member_id = member_id
        self.life: Life | None = None
        self._host, self._port = parse_address(address)
        self._ask = secrets.token_bytes(_ASK_BYTES)
        self._expected = _answer(secret, member_id, self._ask)
        self._heard = b""
        self._sock = socket.socket(
            socket.AF_INET6 if ":" in self._host else socket.AF_INET, socket.SOCK_STREAM
        )
        self._sock.setblocking(False)

    def begin(self, selector: selectors.BaseSelector) -> None:
        try:
            self._sock.connect((self._host, self._port))
        except BlockingIOError:
            pass
        except OSError as error:
            self.life = Life.DEAD if isinstance(error, ConnectionRefusedError) else Life.SILENT
            self._sock.close()
            return
        selector.register(self._sock, selectors.EVENT_WRITE, self)

    def step(self, selector: selectors.BaseSelector) -> None:
        error = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            dead = isinstance(OSError(error, ""), ConnectionRefusedError | ConnectionResetError)
            self.end(selector, Life.DEAD if dead else Life.SILENT)
            return
        try:
            if self._ask:
                self._sock.send(self._ask)
                self._ask = b""
                selector.modify(self._sock, selectors.EVENT_READ, self)
            else:
                self._listen(selector)
        except BlockingIOError:
            pass
        except ConnectionError:  # it died with our question in hand
            self.end(selector, Life.DEAD)

    def _listen(self, selector: selectors.BaseSelector) -> None:
        data = self._sock.recv(_ANSWER_BYTES - len(self._heard))
        self._heard += data
        if data and len(self._heard) < _ANSWER_BYTES:
            return
        if hmac.compare_digest(self._heard, self._expected):
            self.end(selector, Life.ALIVE)
        else:  # another program has the port now; or the door closes: the next knock will tell
            self.end(selector, Life.DEAD if data else Life.SILENT)

    def end(self, selector: selectors.BaseSelector, life: Life) -> None:
        self.life = life
        selector.unregister(self._sock)
        self._sock.close()
