"""From a description of a job to its end: the store, the workers, the signals passed on."""

import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import BinaryIO

from kfcore.address import outward_host
from kfcore.config import Config
from kfcore.errors import TransportError, UsageError
from kfcore.launch.hosts import Place
from kfcore.launch.note import read_job, take_index
from kfcore.launch.spec import LaunchResult, LaunchSpec, resolve_command
from kfcore.launch.ssh import store_host
from kfcore.launch.supervisor import Supervisor
from kfcore.store import StoreServer, open_store
from kfcore.store.etcd import EtcdClient

__all__ = ["join", "launch"]

_JOIN_S = 10.0  # for the first connection to the job's store
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def launch(
    spec: LaunchSpec,
    *,
    stdout: BinaryIO | None = None,
    stderr: BinaryIO | None = None,
) -> LaunchResult:
    """Run a job to its end.

    Starts the job's store on a free port (of loopback, unless workers run elsewhere), then the
    workers with their ``KF_*`` variables, over ssh on other hosts. When one fails, the others
    are stopped within the grace time. SIGINT, SIGTERM and SIGHUP are passed on (when called
    from the main thread); a second one kills at once.
    Workers cannot outlive the calling thread, however it ends.

    Args:
        spec: the job.
        stdout: gets the workers' standard output; the launcher's own when None.
        stderr: gets the workers' standard error, and a last line that names the first failure.

    Returns:
        How the job and each worker ended.

    Raises:
        UsageError: the program, a script or the log folder cannot be used; nothing runs then.
    """
    command = resolve_command(spec.command)
    places = spec.places()
    out = sys.stdout.buffer if stdout is None else stdout
    err = sys.stderr.buffer if stderr is None else stderr
    with ExitStack() as stack:
        secret = spec.secret or secrets.token_hex(32)
        job_id = secrets.token_hex(8)
        if spec.store is None:
            host = _store_host(spec, places)
            address = stack.enter_context(StoreServer(host, secret=secret)).address
        else:
            address = f"{spec.store.rstrip('/')}/{job_id}"
            etcd = EtcdClient(address, connect_timeout_s=_JOIN_S)
            stack.callback(etcd.close)
            stack.callback(_forget, etcd)
        job = Config(
            world_size=spec.world_size,
            store_address=address,
            job_id=job_id,
            job_secret=secret,
            timeout_s=spec.timeout_s,
            policies=spec.policies,
            interface=spec.interface,
            faults=None if spec.faults is None else str(spec.faults.resolve()),
            record=spec.record,
            log_dir=None if spec.log_dir is None else str(spec.log_dir),
        )
        if spec.elastic is None:
            return _drive(Supervisor(spec, out, err, command, job), places)
        from kfcore.launch.elastic import ElasticSupervisor  # noqa: PLC0415 - loads the core

        return _drive(ElasticSupervisor(spec, out, err, command, job), places)


def join(
    spec: LaunchSpec, address: str, secret: str, *, stdout: BinaryIO | None = None
) -> LaunchResult:
    """Start workers that join a running elastic job, and see them to their end.

    Args:
        spec: What to start here; an empty command stands for the job's own.
        address: Of the job's store.
        secret: Of the job.
        stdout: As for `launch`.

    Returns:
        How these workers ended.

    Raises:
        UsageError: no such job, it cannot be joined, or the program cannot be used.
        TransportError: the store refused the secret.
    """
    with open_store(address, secret, _JOIN_S) as store:
        known = read_job(store)
        command = resolve_command(spec.command) if spec.command else list(known["command"])
        job = Config(
            store_address=address,
            job_id=known["job_id"],
            job_secret=secret,
            timeout_s=known["timeout_s"],
            policies=tuple(known["policies"]),
            faults=known["faults"],
            record=known["record"],
            interface=spec.interface,
            log_dir=None if spec.log_dir is None else str(spec.log_dir),
        )
        places = [
            replace(place, rank=take_index(store), host="localhost") for place in spec.places()
        ]
    out = sys.stdout.buffer if stdout is None else stdout
    return _drive(Supervisor(spec, out, sys.stderr.buffer, command, job), places)


def _store_host(spec: LaunchSpec, places: list[Place]) -> str:
    if spec.elastic is None:
        return store_host([place.host for place in places], spec.interface)
    if spec.discovery is not None:  # hosts may come that nobody knows yet
        with suppress(UsageError):
            return outward_host(Config(interface=spec.interface))
    return store_host([host.name for host in spec.hosts], spec.interface)


def _forget(etcd: EtcdClient) -> None:
    """Delete the job's keys; a cluster that is lost has them to itself."""
    with suppress(TransportError):
        etcd.clear()


def _drive(supervisor: Supervisor, places: list[Place]) -> LaunchResult:
    try:
        with _signals(supervisor.interrupt):
            supervisor.start(places)
            supervisor.run()
        return supervisor.result()
    finally:
        supervisor.close()


@contextmanager
def _signals(note: Callable[[int], None]) -> Iterator[None]:
    """Give FORWARDED signals to note; outside the main thread they stay as they are."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in FORWARDED}
    try:
        for number, handler in before.items():
            if handler != signal.SIG_IGN:  # as set by nohup, and to be kept
                signal.signal(number, lambda received, _: note(received))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
