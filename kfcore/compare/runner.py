"""Runs contenders in turn, a block of operations each, so that the machine's mood is shared."""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from kfcore import _native
from kfcore.compare.contenders import Contender, find_python, starts
from kfcore.compare.places import Place, ThisHost
from kfcore.errors import DeadlineError, InternalError, KfError, UsageError

__all__ = ["Case", "Sample", "compare", "floors"]

START_TIMEOUT_S = 180.0  # importing torch takes long on a busy machine
BLOCK_TIMEOUT_S = 120.0
BLOCK_BYTES = 64 << 20  # reduced in one block: large buffers get few operations
RESNET50_BYTES = 4 * 25_557_032


@dataclass(frozen=True)
class Case:
    """What is measured.

    Attributes:
        name: ``all_reduce`` (one buffer) or ``resnet50`` (161 gradients, one step).
        buffer_bytes: Size of the buffer, or of all of them together.
    """

    name: str
    buffer_bytes: int


@dataclass(frozen=True)
class Sample:
    """One contender's times in one case.

    Attributes:
        contender: Its name.
        case: What was measured.
        world_size: Number of ranks.
        times_s: All operations of all rounds, each as long as its slowest rank, in seconds.
        round_p50_s: Median of each round, in seconds.
    """

    contender: str
    case: Case
    world_size: int
    times_s: tuple[float, ...]
    round_p50_s: tuple[float, ...]

    @property
    def p50_s(self) -> float:
        """Median over all operations, in seconds."""
        return float(np.median(self.times_s))

    @property
    def algbw_gb_per_s(self) -> float:
        """``buffer_bytes`` over the median, in 1e9 bytes a second."""
        return self.case.buffer_bytes / self.p50_s / 1e9


class _Group:
    """The running ranks of one contender: stopped whenever it is not their turn."""

    def __init__(
        self, contender: Contender, python: str, place: Place, ranks_per_host: int
    ) -> None:
        self.contender = contender
        self._token = secrets.token_hex(8)
        self._folder = tempfile.TemporaryDirectory(prefix="kf-bench-")
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._streams: list[IO[str]] = []
        self._pids: list[int] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        # a path is reached from every network namespace
        path = f"{self._folder.name}/controller"
        try:
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(path)
                server.listen()
                for each in starts(
                    contender, python, place, ranks_per_host, (path, self._token)
                ):
                    process = place.start(each.host, each.words, each.variables, self._log)
                    self._processes.append(process)
                self._accept(server, place.count * ranks_per_host)
        except BaseException:
            self.close(kill=True)
            raise

    def _accept(self, server: socket.socket, world_size: int) -> None:
        server.settimeout(1.0)
        waited_s = 0.0
        while len(self._streams) < world_size:
            try:
                connection, _ = server.accept()
            except TimeoutError:
                waited_s += 1
                if waited_s > START_TIMEOUT_S:
                    raise DeadlineError(self._fault("did not start in time")) from None
                if all(process.poll() is not None for process in self._processes):
                    raise KfError(self._fault("ended before it was measured")) from None
                continue
            connection.settimeout(BLOCK_TIMEOUT_S)
            stream = connection.makefile("rw")
            hello = json.loads(stream.readline())
            if hello.get("token") != self._token or hello["world_size"] != world_size:
                raise KfError(self._fault(f"said {hello}, wanted {world_size} ranks"))
            self._streams.append(stream)
            self._pids.append(hello["pid"])
        self._signal(signal.SIGSTOP)

    def measure(self, case: Case, iterations: int, warmup: int) -> list[float]:
        """Time one block; the slowest rank counts. Everyone else stands still meanwhile."""
        order = {
            "case": case.name,
            "count": case.buffer_bytes // 4,
            "iterations": iterations,
            "warmup": warmup,
        }
        self._signal(signal.SIGCONT)
        try:
            for stream in self._streams:
                stream.write(json.dumps(order) + "\n")
                stream.flush()
            answers = [self._read(stream) for stream in self._streams]
        finally:
            self._signal(signal.SIGSTOP)
        return [float(t) for t in np.max([a["times_s"] for a in answers], axis=0)]

    def _read(self, stream: IO[str]) -> dict[str, Any]:
        try:
            line = stream.readline()
        except TimeoutError:
            raise DeadlineError(self._fault("did not answer in time")) from None
        if not line:
            raise KfError(self._fault("died"))
        answer: dict[str, Any] = json.loads(line)
        if "fault" in answer:
            raise InternalError(self._fault(f"reduced wrongly: {answer['fault']}"))
        return answer

    def _fault(self, what: str) -> str:
        self._log.seek(0)
        tail = self._log.read()[-2000:].decode(errors="replace").strip()
        return f"{self.contender.name} {what}" + (
            f"; its output ends with:\n{tail}" if tail else ""
        )

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def close(self, *, kill: bool = False) -> None:
        """End all ranks; ``kill``: at once, whatever they are doing."""
        self._signal(signal.SIGKILL if kill else signal.SIGCONT)
        for stream in self._streams:
            with contextlib.suppress(OSError):
                stream.close()
        for process in self._processes:
            if kill:
                process.terminate()  # a launcher takes its ranks along
            for number in (signal.SIGTERM, signal.SIGKILL):
                try:
                    process.wait(timeout=10)
                except subprocess.TimeoutExpired:
                    process.send_signal(number)
            process.wait()
        self._log.close()
        self._folder.cleanup()


@contextlib.contextmanager
def _groups(
    contenders: Sequence[Contender],
    pythons: Mapping[str, str],
    place: Place,
    ranks_per_host: int,
) -> Iterator[list[_Group]]:
    groups: list[_Group] = []
    done = False
    try:
        for contender in contenders:
            python = find_python(contender, pythons)
            groups.append(_Group(contender, python, place, ranks_per_host))
        yield groups
        done = True
    finally:
        for group in groups:
            group.close(kill=not done)


def compare(
    contenders: Sequence[Contender],
    cases: Sequence[Case],
    *,
    world_size: int,
    rounds: int = 5,
    pythons: Mapping[str, str] | None = None,
    place: Place | None = None,
    on_block: Callable[[str], None] | None = None,
    on_sample: Callable[[Sample], None] | None = None,
    on_lost: Callable[[str], None] | None = None,
) -> list[Sample]:
    """Measure contenders against each other.

    In each round of each case every contender runs one block of operations, in an order that
    rotates from round to round, while all others are stopped (SIGSTOP).

    Args:
        contenders: Who takes part; each is verified against closed-form values first.
        cases: What is measured.
        world_size: Number of ranks; equally many on each host of the place.
        rounds: Blocks a contender and case, >= 1.
        pythons: Interpreters by name of contender; see `find_python`.
        place: Where the ranks run; None: on this host.
        on_block: Told before each block what comes.
        on_sample: Told each sample as soon as it is complete.
        on_lost: Told of a contender that failed; it has no sample of that case and takes no
            further part. None: its failure is raised.

    Returns:
        One sample for each case and contender that lasted, in that order.

    Raises:
        UsageError: ``rounds`` or ``world_size`` is below 1, or the hosts cannot have equally
            many ranks.
        KfError: A contender did not start, died, or hung.
        InternalError: A contender's sums were wrong.
    """
    if rounds < 1 or world_size < 1:
        raise UsageError(f"rounds and world_size must be >= 1, got {rounds} and {world_size}")
    hosts: Place = place or ThisHost()
    if world_size % hosts.count:
        raise UsageError(
            f"world_size must be a multiple of the {hosts.count} hosts, got {world_size}"
        )
    samples: list[Sample] = []
    with _groups(contenders, pythons or {}, hosts, world_size // hosts.count) as groups:
        for case in cases:
            iterations = min(200, max(3, BLOCK_BYTES // max(case.buffer_bytes, 1)))
            times: dict[str, list[list[float]]] = {g.contender.name: [] for g in groups}
            for index in range(rounds):
                turn = index % max(1, len(groups))
                for group in [*groups[turn:], *groups[:turn]]:
                    name = group.contender.name
                    if on_block is not None:
                        on_block(f"{case.name} {case.buffer_bytes} {name}")
                    warmup = max(2, iterations // 10)
                    try:
                        times[name].append(group.measure(case, iterations, warmup))
                    except KfError as error:
                        if on_lost is None:
                            raise
                        on_lost(f"{case.name} {case.buffer_bytes}: {error}")
                        groups.remove(group)
                        group.close(kill=True)
            for group in groups:
                samples.append(_sample(group.contender.name, case, world_size, times))
                if on_sample is not None:
                    on_sample(samples[-1])
    return samples


def _sample(
    name: str, case: Case, world_size: int, times: Mapping[str, list[list[float]]]
) -> Sample:
    blocks = times[name]
    return Sample(
        name,
        case,
        world_size,
        tuple(t for block in blocks for t in block),
        tuple(float(np.median(block)) for block in blocks),
    )


def floors(sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Physical floors of a two-process all-reduce here, by the program ``floor_bench``.

    Args:
        sizes: Buffer sizes in bytes, >= 4.

    Returns:
        Rows with ``case``, ``bytes``, ``min_us``, ``p50_us``; ``native/bench/floor_bench.cc``
        says what the cases are.

    Raises:
        UsageError: The program was not installed with this package.
    """
    program = Path(_native.__file__).with_name("floor_bench")
    if not program.exists():
        raise UsageError(f"{program} is missing; install the package with `pip install .`")
    done = subprocess.run(
        [str(program), *map(str, sizes)], capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]
