"""Workers on other hosts: one ``ssh`` a worker, which runs `kfcore.launch.stub` there."""

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kfcore.address import interfaces, outward_host, route_to
from kfcore.config import Config
from kfcore.errors import UsageError
from kfcore.launch import stub
from kfcore.launch.hosts import Place
from kfcore.launch.process import Worker
from kfcore.launch.spec import WorkerResult, worker_result

__all__ = ["RemoteWorker", "is_here", "store_host"]

# How long the far end may take to say that a killed worker has gone.
_LAST_WORD_S = 2.0
_SIGNALLED = range(129, 128 + 65)


class RemoteWorker(Worker):
    """One worker on another host, seen through its ssh client.

    Args:
        place: Rank and host.
        command: Program and arguments; paths are those of the other host.
        env: Variables set there.
        defaults: Variables set there unless they are set.
        ssh: How to reach a host: a program and arguments, to which host and command are added.

    Raises:
        UsageError: The ssh program cannot be executed.
    """

    def __init__(
        self,
        place: Place,
        command: Sequence[str],
        env: Mapping[str, str],
        defaults: Mapping[str, str],
        ssh: Sequence[str],
    ) -> None:
        self._killed_at: float | None = None
        far = f"exec {shlex.quote(sys.executable)} -I -S {shlex.quote(stub.__file__)}"
        read_end, self._orders = os.pipe()
        try:
            super().__init__(place.rank, [*ssh, place.host, far], None, stdin=read_end)
        except BaseException:
            os.close(self._orders)
            raise
        finally:
            os.close(read_end)
        self.host = place.host
        order = {
            "cwd": str(Path.cwd()),
            "env": dict(env),
            "defaults": dict(defaults),
            "share": place.local_world_size,
            "command": list(command),
        }
        self._say(json.dumps(order))

    def signal_group(self, number: int) -> None:
        """Have the far end send a signal; SIGKILL cuts the connection too if nothing comes."""
        if self.result is not None:
            return
        if number != signal.SIGKILL:
            self._say(str(number))
        elif self._killed_at is None:
            self._killed_at = time.monotonic()
            self._say(str(number))
        elif time.monotonic() - self._killed_at > _LAST_WORD_S:
            super().signal_group(signal.SIGKILL)

    def collect(self) -> WorkerResult:
        """Wait for the end, as `Worker.collect`; a host that went silent is given up."""
        if self.result is None and self._killed_at is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LAST_WORD_S)
            super().signal_group(signal.SIGKILL)
        if self.result is None:
            ended = super().collect()
            if ended.signal is None and ended.exit_code in _SIGNALLED:
                ended = worker_result(self.rank, 128 - ended.exit_code, ended.wall_s)
            self.result = replace(ended, host=self.host)
        return self.result

    def close(self) -> None:
        """Close the connection's ends."""
        os.close(self._orders)
        super().close()

    def _say(self, line: str) -> None:
        # a far end that has gone needs no orders; its exit code tells
        with contextlib.suppress(OSError):
            os.write(self._orders, line.encode() + b"\n")


def is_here(name: str) -> bool:
    """Whether a host's name or address is this host's, which needs no ssh."""
    if name in ("localhost", socket.gethostname()):
        return True
    try:
        found = {str(item[4][0]) for item in socket.getaddrinfo(name, None)}
    except OSError:  # a name that only ssh knows
        return False
    return bool(found & {interface.host for interface in interfaces()})


def store_host(names: Iterable[str], interface: str | None) -> str:
    """Where the launcher's store has to listen so that all workers reach it.

    Args:
        names: Hosts that workers may run on.
        interface: As `kfcore.config.Config.interface`.

    Returns:
        Loopback when all workers run here; else the address from which this host sends to the
        first other host.

    Raises:
        UsageError: No way leads there; the text names the address and the option to set.
    """
    away = [name for name in names if not is_here(name)]
    if not away:
        return "127.0.0.1"
    if interface is not None:
        return outward_host(Config(interface=interface))
    try:
        family, _, _, _, target = socket.getaddrinfo(away[0], 9, type=socket.SOCK_DGRAM)[0]
    except OSError:  # a name that only ssh knows
        return outward_host(Config())
    try:
        return route_to(family, target)
    except OSError as error:
        raise UsageError(
            f"no address of this host leads to {away[0]} ({target[0]}): {error}; "
            "set --interface to a network interface that does"
        ) from error
