#!/usr/bin/env python3
"""Several hosts on one machine: network namespaces on a bridge, each with a shaped link.

As a command it makes the hosts, runs one command on each, waits, and takes everything down
whatever happens:

    python tools/hosts.py --hosts 4 --rate-mbit 1000 -- hostname -I

``{host}`` and ``{address}`` in the command become the host's index and address. As a library
(tests and benchmarks): ``with Hosts(4, rate_mbit=1000) as hosts: hosts.start(0, ["cmd"])``.

Needs Linux, root and iproute2. The kernel's token bucket filter (tbf) gives rate but no delay.
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

PREFIX = "kfh"  # a namespace is called kfh<pid of its maker>-<index>; the bridge kfh<pid>-br
MTU_BYTES = 1500
QUEUE_MS = 400  # deep enough that TCP does not lose packets to the filter itself
IP = shutil.which("ip") or "/usr/sbin/ip"


def why_not() -> str | None:
    """Say why hosts cannot be made here.

    Returns:
        A reason in words, or None when they can.
    """
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not Path(IP).exists():
        return "iproute2 is not installed (Debian: apt-get install iproute2)"
    probe = subprocess.run([IP, "netns", "list"], capture_output=True, text=True, check=False)
    return None if probe.returncode == 0 else f"ip netns: {probe.stderr.strip()}"


def run_ip(*arguments: str) -> None:
    """Run one ``ip`` command and raise RuntimeError with its own words if it fails."""
    done = subprocess.run([IP, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def namespaces() -> list[str]:
    """Names of all network namespaces that some process of this tool made."""
    done = subprocess.run([IP, "netns", "list"], capture_output=True, text=True, check=True)
    names = [line.split()[0] for line in done.stdout.splitlines() if line.strip()]
    return [name for name in names if name.startswith(PREFIX)]


def sweep() -> list[str]:
    """Remove hosts whose maker no longer lives (it was killed before it could clean up).

    Returns:
        The names of the removed namespaces.
    """
    stale = []
    for name in namespaces():
        maker = name[len(PREFIX) :].split("-")[0]
        if maker.isdigit() and not Path(f"/proc/{maker}").exists():
            remove_namespace(name)
            stale.append(name)
    return stale


def remove_namespace(name: str) -> None:
    """Stop what runs in a namespace and delete it with its links and its hosts file."""
    done = subprocess.run(
        [IP, "netns", "pids", name], capture_output=True, text=True, check=False
    )
    for pid in done.stdout.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    subprocess.run([IP, "netns", "del", name], capture_output=True, check=False)
    shutil.rmtree(f"/etc/netns/{name}", ignore_errors=True)


class Hosts:
    """A set of hosts, alive inside a ``with`` block.

    Args:
        count: Number of hosts, in ``[1, 250]``.
        rate_mbit: Rate of each host's link in Mbit/s (1e6 bit/s), or None for no shaping.
        ipv6: Address hosts with IPv6 instead of IPv4.
        shape_ingress: Shape the way to the host as well as the way from it (as a switch would).
        hosts_file: Text of ``/etc/hosts`` as each host sees it; ``{host}`` and ``{address}``
            are replaced. None keeps the machine's own.

    Raises:
        ValueError: ``count`` or ``rate_mbit`` is out of range.
        RuntimeError: A command of iproute2 failed; nothing is left behind.
    """

    def __init__(
        self,
        count: int,
        *,
        rate_mbit: float | None = None,
        ipv6: bool = False,
        shape_ingress: bool = False,
        hosts_file: str | None = None,
    ) -> None:
        if not 1 <= count <= 250:
            raise ValueError(f"count must be in [1, 250], got {count}")
        if rate_mbit is not None and rate_mbit <= 0:
            raise ValueError(f"rate_mbit must be > 0, got {rate_mbit}")
        self.count = count
        self.rate_mbit = rate_mbit
        self.ipv6 = ipv6
        self.shape_ingress = shape_ingress
        self.hosts_file = hosts_file
        self._tag = f"{PREFIX}{os.getpid()}"
        self._processes: list[subprocess.Popen[bytes]] = []

    def name(self, host: int) -> str:
        """Name of a host's namespace."""
        return f"{self._tag}-{host}"

    def address(self, host: int) -> str:
        """IP address of a host on the bridge."""
        return f"fd00:6b66::{host + 1:x}" if self.ipv6 else f"10.77.0.{host + 1}"

    def __enter__(self) -> "Hosts":
        sweep()
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def start(
        self, host: int, command: Sequence[str], **options: object
    ) -> "subprocess.Popen[bytes]":
        """Start a command on a host.

        Args:
            host: Index of the host, in ``[0, count)``.
            command: Program and arguments.
            **options: Passed on to ``subprocess.Popen``.

        Returns:
            The process; it is killed when the ``with`` block ends.
        """
        full = [IP, "netns", "exec", self.name(host), *command]
        process = subprocess.Popen(full, **options)  # type: ignore[call-overload]
        self._processes.append(process)
        return process

    def set_rate(self, host: int, rate_mbit: float) -> None:
        """Change the rate of a host's link while it runs.

        Args:
            host: Index of the host, in ``[0, count)``.
            rate_mbit: New rate in Mbit/s.
        """
        self._shape(self.name(host), "eth0", rate_mbit)
        if self.shape_ingress:
            self._shape(f"{self._tag}-br", f"port{host}", rate_mbit)

    def close(self) -> None:
        """Kill what still runs; remove namespaces, links and hosts files. May be repeated."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
        for process in self._processes:
            process.wait()
        self._processes.clear()
        for name in namespaces():
            if name.startswith(f"{self._tag}-"):
                remove_namespace(name)

    def _make(self) -> None:
        bridge = f"{self._tag}-br"
        run_ip("netns", "add", bridge)
        run_ip("-n", bridge, "link", "add", "br0", "mtu", str(MTU_BYTES), "type", "bridge")
        run_ip("-n", bridge, "link", "set", "br0", "up")
        for host in range(self.count):
            self._make_host(host, bridge)

    def _make_host(self, host: int, bridge: str) -> None:
        name = self.name(host)
        port = f"port{host}"
        if self.hosts_file is not None:
            folder = Path(f"/etc/netns/{name}")
            folder.mkdir(parents=True, exist_ok=True)
            text = self.hosts_file.format(host=host, address=self.address(host))
            (folder / "hosts").write_text(text)
        run_ip("netns", "add", name)
        run_ip(
            "-n",
            name,
            "link",
            "add",
            "eth0",
            "type",
            "veth",
            "peer",
            "name",
            port,
            "netns",
            bridge,
        )
        run_ip("-n", bridge, "link", "set", port, "master", "br0", "up")
        run_ip("-n", name, "link", "set", "lo", "up")
        prefix = f"{self.address(host)}/{64 if self.ipv6 else 24}"
        # nodad: duplicate address detection would leave an IPv6 address unusable for a second
        run_ip(
            "-n", name, "addr", "add", prefix, "dev", "eth0", *(["nodad"] if self.ipv6 else [])
        )
        run_ip("-n", name, "link", "set", "eth0", "up")
        if self.rate_mbit is not None:
            self.set_rate(host, self.rate_mbit)

    @staticmethod
    def _shape(namespace: str, device: str, rate_mbit: float) -> None:
        # A bucket must hold what the link carries between two timer ticks (250 Hz), or the rate
        # is not reached, and at least one 64 KiB segment as TCP hands it down.
        burst_bytes = max(64 * 1024, int(rate_mbit * 1e6 / 8 / 250))
        tbf = f"tbf rate {int(rate_mbit * 1e6)}bit burst {burst_bytes} latency {QUEUE_MS}ms"
        tc = shutil.which("tc") or "/usr/sbin/tc"
        run_ip(
            "netns",
            "exec",
            namespace,
            tc,
            "qdisc",
            "replace",
            "dev",
            device,
            "root",
            *tbf.split(),
        )


@contextlib.contextmanager
def stop_on_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into SystemExit, so that ``with`` blocks clean up."""

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    old = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command on every host.

    Args:
        arguments: Command line without the program's name; None reads ``sys.argv``.

    Returns:
        The first non-zero exit code of the commands, or 0.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--hosts", type=int, default=2, help="number of hosts (default 2)")
    parser.add_argument("--rate-mbit", type=float, help="rate of each link in Mbit/s")
    parser.add_argument("--ipv6", action="store_true", help="address the hosts with IPv6")
    parser.add_argument("--shape-ingress", action="store_true", help="shape both directions")
    parser.add_argument("--sweep", action="store_true", help="only remove hosts left behind")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- program arguments")
    options = parser.parse_args(arguments)
    reason = why_not()
    if reason:
        print(f"hosts.py: {reason}", file=sys.stderr)
        return 2
    if options.sweep:
        print("\n".join(sweep()))
        return 0
    command = [word for word in options.command if word != "--"]
    if not command:
        parser.error("no command given")
    with (
        stop_on_signals(),
        Hosts(
            options.hosts,
            rate_mbit=options.rate_mbit,
            ipv6=options.ipv6,
            shape_ingress=options.shape_ingress,
        ) as hosts,
    ):
        running = []
        for host in range(options.hosts):
            values = {"{host}": str(host), "{address}": hosts.address(host)}
            words = list(command)
            for key, value in values.items():
                words = [word.replace(key, value) for word in words]
            running.append(hosts.start(host, words))
        codes = [process.wait() for process in running]
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main())
