"""All-reduces of the real core between hosts made of network namespaces, and simulated ones.

The constants of the simulated network (share of the rate that payload gets, latency) are fitted
on rings between two and four hosts at the first rate without disturbance; all other rows are
predictions.
"""

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from experiments._shared.real_hosts import load_hosts, why_not
from experiments._shared.record import RowWriter, read_rows
from experiments._shared.runner import NotHere, Progress
from experiments.e12_sim_vs_real.model import (
    BACKGROUND_FLOWS,
    CONFIGURATION,
    DISTURBANCES,
    SLOW_SHARE,
    Row,
    configurations,
    fit,
    fitted,
    judge,
    simulate,
)
from kfcore.errors import KfError

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TRAFFIC = HERE.parent / "e05_interference" / "traffic.py"
SIZES = {"quick": (65536, 1 << 20), "full": (65536, 1 << 20, 16 << 20, 100_000_000)}
HOSTS = {"quick": (2, 4), "full": (2, 4, 8)}
RATES_MBIT = {"quick": (500,), "full": (200, 1000, 2000, 5000)}
REPEATS = {"quick": 1, "full": 2}
PORT = 29431
TIMEOUT_S = 1200
FLOW_STARTS_S = 1.0  # until the background flow has its share
KEY = (*CONFIGURATION, "repeat")
COLUMNS = (*KEY, "use", "real_s", "simulated_s", "error")


def run(out: Path, seed: int, quick: bool, progress: Progress) -> dict[str, Any]:  # noqa: ARG001
    """Measures, fits, predicts; a row a configuration and repeat, written as soon as known."""
    reason = why_not()
    if reason is not None:
        raise NotHere(f"hosts of network namespaces: {reason}")
    size = "quick" if quick else "full"
    rate = RATES_MBIT[size][0]
    networks = _networks(size)
    constants: dict[str, float] | None = None
    held: list[Row] = []  # measured before the constants are known
    path = out / "rows.csv"
    with RowWriter(path, COLUMNS, key=KEY) as rows:
        for done, network in enumerate(networks):
            count, speed, disturbance, repeat = network
            progress(
                done, len(networks), f"{count} hosts, {speed} Mbit/s, {disturbance}, {repeat}"
            )
            if constants is None and not _fits(network, size):
                known = [row for row in _with_real(path) if fitted(row, rate)]
                constants = fit([*known, *(row for row in held if fitted(row, rate))])
                _write(rows, held, constants, rate)
                held.clear()
            asked = [
                {**row, "repeat": repeat}
                for row in configurations(count, speed, disturbance, SIZES[size])
            ]
            asked = [row for row in asked if not rows.has(**{name: row[name] for name in KEY})]
            measured = _measure(count, speed, disturbance, asked) if asked else []
            if constants is None:
                held += measured
            else:
                _write(rows, measured, constants, rate)
    progress(len(networks), len(networks), "done")
    verdict = judge(read_rows(path), rate)
    return {"constants": constants, "repeats": REPEATS[size], **verdict}


def _networks(size: str) -> list[tuple[int, int, str, int]]:
    """Hosts, rate, disturbance, repeat; those that the constants are fitted on come first."""
    order = itertools.product(range(REPEATS[size]), HOSTS[size], RATES_MBIT[size], DISTURBANCES)
    networks = [(count, rate, what, repeat) for repeat, count, rate, what in order]
    return sorted(networks, key=lambda network: not _fits(network, size))


def _fits(network: tuple[int, int, str, int], size: str) -> bool:
    count, rate, disturbance, _ = network
    return count in (2, 4) and rate == RATES_MBIT[size][0] and disturbance == "none"


def _with_real(path: Path) -> list[Row]:
    return [row for row in read_rows(path) if row["real_s"] is not None]


def _write(
    rows: RowWriter, measured: list[Row], constants: dict[str, float], rate: int
) -> None:
    for row in measured:
        simulated_s = simulate(row, constants)
        rows.add(
            **row,
            use="fit" if fitted(row, rate) else "predict",
            simulated_s=simulated_s,
            error=simulated_s / row["real_s"] - 1.0,
        )


def _measure(count: int, rate: int, disturbance: str, asked: list[Row]) -> list[Row]:
    """Medians of the real core; the slowest rank counts (kfcore.bench)."""
    words = [sys.executable, str(HERE / "worker.py")]
    for spec, some in itertools.groupby(asked, key=lambda row: row["schedule"]):
        words.append(f"{spec}:{','.join(str(row['buffer_bytes']) for row in some)}")
    with _network(count, rate, disturbance) as made:
        running = []
        for rank in range(count):
            env = {
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "RANK": str(rank),
                "WORLD_SIZE": str(count),
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
                "MASTER_ADDR": made.address(0),
                "MASTER_PORT": str(PORT),
            }
            running.append(
                made.start(rank, words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            )
        texts = [process.communicate(timeout=TIMEOUT_S) for process in running]
    for rank, process in enumerate(running):
        if process.returncode != 0:
            raise KfError(f"rank {rank} of {count}: {texts[rank][1].decode()[-500:]}")
    found = {(row["schedule"], row["buffer_bytes"]): row for row in json.loads(texts[0][0])}
    return [
        {**row, "real_s": found[row["schedule"], row["buffer_bytes"]]["p50_s"]} for row in asked
    ]


@contextmanager
def _network(count: int, rate: int, disturbance: str) -> Iterator[Any]:
    """Hosts; the last one is disturbed, where that is asked, for a flow by one host more."""
    flow = disturbance == "background flow"
    with load_hosts().Hosts(count + flow, rate_mbit=rate, shape_ingress=True) as made:
        if disturbance == "slow link":
            made.set_rate(count - 1, rate * SLOW_SHARE)
        if flow:
            address = made.address(count - 1)
            made.start(count - 1, [sys.executable, str(TRAFFIC), "sink", address])
            _wait_for_sink(made, count, address)
            words = ["source", address, str(BACKGROUND_FLOWS)]
            made.start(count, [sys.executable, str(TRAFFIC), *words])
            time.sleep(FLOW_STARTS_S)
        yield made


def _wait_for_sink(made: Any, host: int, address: str) -> None:
    """Until somebody listens; a connection without bytes is no traffic."""
    code = (
        "import socket, sys, time\n"
        "for _ in range(600):\n"
        "    try: socket.create_connection((sys.argv[1], 29900), timeout=1).close(); break\n"
        "    except OSError: time.sleep(0.1)\n"
        "else: sys.exit(1)\n"
    )
    if made.start(host, [sys.executable, "-c", code, address]).wait() != 0:
        raise KfError("e12_sim_vs_real: the background flow has nobody to send to")
