"""All-reduces of the real core between hosts made of network namespaces, and simulated ones.

The constants of the simulated network (share of the rate that payload gets, latency) are fitted
on rings between two and four hosts at the first rate without disturbance; all other rows are
predictions.
"""

import itertools
import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from experiments._shared.record import RowWriter
from experiments._shared.runner import NotHere, Progress
from kfcore.errors import KfError
from kfsim.cluster import Cluster
from kfsim.network import Links

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SCHEDULES = (
    "ring",
    "star",
    "binary_tree",
    "double_binary_tree",
    "multi_binary_tree_star",
    "halving_doubling",
)
SIZES = {"quick": (65536, 1 << 20), "full": (65536, 1 << 20, 16 << 20, 100_000_000)}
HOSTS = {"quick": (2, 4), "full": (2, 4, 8)}
RATES_MBIT = {"quick": (500,), "full": (200, 1000, 2000)}
SLOW_SHARE = 0.25  # what the slow host's link keeps
REPEATS = {"quick": 1, "full": 3}
PORT = 29431
TIMEOUT_S = 600
SEGMENT_BYTES = 256 * 1024  # native/include/kf/session.h
COLUMNS = (
    "hosts",
    "rate_mbit",
    "disturbance",
    "schedule",
    "buffer_bytes",
    "repeat",
    "use",
    "real_s",
    "simulated_s",
    "error",
)


def run(out: Path, seed: int, quick: bool, progress: Progress) -> dict[str, Any]:  # noqa: ARG001
    """Measures, fits, predicts; a row a configuration and repeat."""
    tools = _hosts_tool()
    size = "quick" if quick else "full"
    cases = list(
        itertools.product(
            HOSTS[size],
            RATES_MBIT[size],
            ("none", "slow link"),
            SCHEDULES,
            range(REPEATS[size]),
        )
    )
    measured: list[dict[str, Any]] = []
    for done, (count, rate, disturbance, spec, repeat) in enumerate(cases):
        progress(done, len(cases), f"{spec}, {count} hosts, {rate} Mbit/s, {disturbance}")
        for row in _measure(tools, count, rate, disturbance, spec, SIZES[size]):
            key = {"hosts": count, "rate_mbit": rate, "disturbance": disturbance}
            measured.append({**key, "schedule": spec, "repeat": repeat, **row})
    constants = _fit([row for row in measured if _fitted(row, RATES_MBIT[size][0])])
    with RowWriter(out / "rows.csv", COLUMNS, key=COLUMNS[:6]) as rows:
        for row in measured:
            if rows.has(**{name: row[name] for name in COLUMNS[:6]}):
                continue
            simulated_s = _simulate(row, constants)
            rows.add(
                **row,
                use="fit" if _fitted(row, RATES_MBIT[size][0]) else "predict",
                simulated_s=simulated_s,
                error=simulated_s / row["real_s"] - 1.0,
            )
    progress(len(cases), len(cases), "done")
    return {
        "constants": constants,
        "repeats": REPEATS[size],
        **judge(measured, constants, size),
    }


def judge(rows: list[dict[str, Any]], constants: dict[str, float], size: str) -> dict[str, Any]:
    """Errors of the predicted rows, and how often the really fastest schedule was picked."""
    medians: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        medians.setdefault(tuple(row[name] for name in COLUMNS[:5]), []).append(row["real_s"])
    errors, best = [], {}
    for key, times in medians.items():
        row = dict(zip(COLUMNS[:5], key, strict=True))
        real_s, simulated_s = statistics.median(times), _simulate(row, constants)
        if not _fitted(row, RATES_MBIT[size][0]):
            errors.append(abs(simulated_s / real_s - 1.0))
        group = (row["hosts"], row["rate_mbit"], row["disturbance"], row["buffer_bytes"])
        best.setdefault(group, []).append((real_s, simulated_s, row["schedule"]))
    # A pick counts as right if what it really costs is within 2 % of the really best.
    right = sum(
        min(group, key=lambda one: one[1])[0] <= 1.02 * min(one[0] for one in group)
        for group in best.values()
    )
    return {
        "median_error": float(np.median(errors)),
        "p95_error": float(np.percentile(errors, 95)),
        "best_picked": right,
        "best_asked": len(best),
    }


def _hosts_tool() -> Any:
    sys.path.insert(0, str(ROOT / "tools"))
    import hosts  # noqa: PLC0415 - a tool, not a package

    reason = hosts.why_not()
    if reason is not None:
        raise NotHere(f"hosts of network namespaces: {reason}")
    return hosts


def _measure(
    tools: Any, count: int, rate: int, disturbance: str, spec: str, sizes: tuple[int, ...]
) -> list[dict[str, Any]]:
    """Medians of the real core; the slowest rank counts (kfcore.bench)."""
    words = [sys.executable, str(HERE / "worker.py"), spec, *map(str, sizes)]
    with tools.Hosts(count, rate_mbit=rate, shape_ingress=True) as made:
        if disturbance == "slow link":
            made.set_rate(count - 1, rate * SLOW_SHARE)
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
            raise KfError(f"rank {rank} of {spec}: {texts[rank][1].decode()[-500:]}")
    found = json.loads(texts[0][0])
    return [{"buffer_bytes": row["buffer_bytes"], "real_s": row["p50_s"]} for row in found]


def _fitted(row: dict[str, Any], rate: int) -> bool:
    return (
        row["schedule"] == "ring"
        and row["hosts"] in (2, 4)
        and row["rate_mbit"] == rate
        and row["disturbance"] == "none"
    )


def _simulate(row: dict[str, Any], constants: dict[str, float]) -> float:
    cluster = Cluster(
        hosts=row["hosts"],
        nic_gbps=row["rate_mbit"] / 1000,
        tcp_efficiency=constants["tcp_efficiency"],
        latency_us=constants["latency_us"],
        # tools/hosts.py fills its buckets so far; the first bytes pass at once
        burst_kib=max(64.0, row["rate_mbit"] * 1e6 / 8 / 250 / 1024),
    )
    links = Links(cluster)
    if row["disturbance"] == "slow link":
        links.throttle(((row["hosts"] - 1, SLOW_SHARE),))
    zeros = np.zeros(row["hosts"])
    done = links.run(row["schedule"], row["buffer_bytes"], zeros, segment_bytes=SEGMENT_BYTES)
    return float(done.finish_s.max())


def _fit(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Least squares of logarithms over a grid of both constants."""
    best, least = {"tcp_efficiency": 0.95, "latency_us": 100.0}, math.inf
    for share in np.linspace(0.8, 0.96, 17):
        for latency_us in np.geomspace(20, 1000, 18):
            trial = {"tcp_efficiency": float(share), "latency_us": float(latency_us)}
            loss = sum(math.log(_simulate(row, trial) / row["real_s"]) ** 2 for row in rows)
            if loss < least:
                best, least = trial, loss
    return best
