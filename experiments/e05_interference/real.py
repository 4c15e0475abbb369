"""The real side of e05: six hosts as network namespaces, and one that disturbs the first."""

import json
import subprocess
import sys
import time
from pathlib import Path

from experiments._shared.real_hosts import job_environment, load_hosts
from kfcore.errors import DeadlineError, KfError

HERE = Path(__file__).resolve().parent
HOSTS, RATE_MBIT, STREAMS = 6, 200, 2
DISTURBED_FROM, STEPS = 15, 30
DEADLINE_S = 300.0


def real_rates(out: Path, policies: list[str], seed: int) -> list[tuple[int, float, int]]:  # noqa: ARG001
    """Step, samples/s of one worker, and the star's root, as rank 0 measured them."""
    folder = out / "real"
    folder.mkdir(exist_ok=True)
    log = folder / "steps.jsonl"
    log.unlink(missing_ok=True)
    with load_hosts().Hosts(HOSTS + 1, rate_mbit=RATE_MBIT, shape_ingress=True) as hosts:
        sink = [sys.executable, str(HERE / "traffic.py"), "sink", hosts.address(0)]
        hosts.start(0, sink)
        ranks = []
        for rank in range(HOSTS):
            with (folder / f"rank{rank}.log").open("wb") as output:
                command = [sys.executable, str(HERE / "worker.py"), str(STEPS), str(log)]
                environment = job_environment(rank, HOSTS, hosts.address(0), policies)
                ranks.append(
                    hosts.start(rank, command, env=environment, stdout=output, stderr=output)
                )
        _wait(lambda: len(_lines(log)) >= DISTURBED_FROM - 1, ranks, folder)
        address = hosts.address(0)
        source = [sys.executable, str(HERE / "traffic.py"), "source", address, str(STREAMS)]
        hosts.start(HOSTS, source, stderr=subprocess.DEVNULL)  # it is cut off at the end
        _wait(lambda: all(rank.poll() is not None for rank in ranks), ranks, folder)
    rows = [json.loads(line) for line in _lines(log)]
    return [(row["step"], row["samples_per_s"], row["root"]) for row in rows]


def _lines(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8").splitlines() if log.exists() else []


def _wait(done, ranks, folder: Path) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + DEADLINE_S
    while not done():
        failed = [i for i, rank in enumerate(ranks) if rank.poll() not in (None, 0)]
        if failed:
            raise KfError(f"rank {failed[0]} failed; see {folder.name}/rank{failed[0]}.log")
        if time.monotonic() > deadline:
            raise DeadlineError(f"the real job did not end within {DEADLINE_S:g} s")
        time.sleep(0.02)
