"""The simulated side: configurations, predictions, the fit of two constants, the verdict."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from kfsim.cluster import Cluster
from kfsim.network import Links

Row = dict[str, Any]

SLOW_SHARE = 0.25  # what the slow host's link keeps
BACKGROUND_FLOWS = 1
DISTURBANCES = ("none", "slow link", "background flow")
SCHEDULES = (
    "ring",
    "star",
    "binary_tree",
    "double_binary_tree",
    "multi_binary_tree_star",
    "halving_doubling",
    "hierarchical(ranks_per_host=2)",
)
SEGMENT_BYTES = 256 * 1024  # native/include/kf/session.h
# A configuration whose prediction with the rate of the link is longer than this is left out.
LONGEST_S = 1.5
CONFIGURATION = ("hosts", "rate_mbit", "disturbance", "schedule", "buffer_bytes")
FIRST = {"tcp_efficiency": 0.95, "latency_us": 100.0}


def configurations(hosts: int, rate: int, disturbance: str, sizes: Sequence[int]) -> list[Row]:
    """All schedules and sizes of one network that do not take too long.

    Args:
        hosts: Number of them.
        rate: Of each link, Mbit/s.
        disturbance: One of `DISTURBANCES`.
        sizes: Buffers, bytes.

    Returns:
        Configurations, in order.
    """
    found = []
    for spec in SCHEDULES:
        for size in sizes:
            values = (hosts, rate, disturbance, spec, size)
            row = dict(zip(CONFIGURATION, values, strict=True))
            if simulate(row, FIRST) <= LONGEST_S:
                found.append(row)
    return found


def simulate(row: Row, constants: dict[str, float]) -> float:
    """Seconds that the simulator gives a configuration.

    Args:
        row: The configuration.
        constants: ``tcp_efficiency`` and ``latency_us``.

    Returns:
        Until the last rank is done.
    """
    slow = SLOW_SHARE if row["disturbance"] == "slow link" else 1.0
    cluster = Cluster(
        hosts=row["hosts"],
        nic_gbps=row["rate_mbit"] / 1000,
        tcp_efficiency=constants["tcp_efficiency"],
        latency_us=constants["latency_us"],
        # tools/hosts.py fills its buckets so far; the first bytes pass at once
        burst_kib=max(64.0, slow * row["rate_mbit"] * 1e6 / 8 / 250 / 1024),
    )
    links = Links(cluster)
    last = row["hosts"] - 1
    if row["disturbance"] == "slow link":
        links.throttle(((last, SLOW_SHARE),))
    if row["disturbance"] == "background flow":
        links.disturb(((last, "in", BACKGROUND_FLOWS),))
    zeros = np.zeros(row["hosts"])
    done = links.run(row["schedule"], row["buffer_bytes"], zeros, segment_bytes=SEGMENT_BYTES)
    return float(done.finish_s.max())


def fitted(row: Row, rate: int) -> bool:
    """Whether the constants are fitted on a configuration.

    Args:
        row: The configuration.
        rate: The first rate, Mbit/s.

    Returns:
        True for undisturbed rings of two and four hosts at that rate.
    """
    return (
        row["schedule"] == "ring"
        and row["hosts"] in (2, 4)
        and row["rate_mbit"] == rate
        and row["disturbance"] == "none"
    )


def fit(rows: Sequence[Row]) -> dict[str, float]:
    """Least squares of logarithms over a grid of both constants.

    Args:
        rows: Measured configurations, with ``real_s``.

    Returns:
        The constants.
    """
    best, least = FIRST, math.inf
    for share in np.linspace(0.8, 0.96, 17):
        for latency_us in np.geomspace(20, 1000, 18):
            trial = {"tcp_efficiency": float(share), "latency_us": float(latency_us)}
            loss = sum(math.log(simulate(row, trial) / row["real_s"]) ** 2 for row in rows)
            if loss < least:
                best, least = trial, loss
    return best


def judge(rows: Sequence[Row], rate: int) -> dict[str, Any]:
    """Errors of the predicted rows, and how often the really fastest schedule was picked.

    Args:
        rows: Measured, with ``real_s`` and ``simulated_s``; medians of repeats are judged.
        rate: The first rate, Mbit/s.

    Returns:
        Errors of all predicted configurations and by disturbance, and counts of picks.
    """
    times: dict[tuple[Any, ...], list[float]] = {}
    simulated: dict[tuple[Any, ...], float] = {}
    for row in rows:
        key = tuple(row[name] for name in CONFIGURATION)
        times.setdefault(key, []).append(row["real_s"])
        simulated[key] = row["simulated_s"]
    errors: dict[str, list[float]] = {}
    best: dict[tuple[Any, ...], list[tuple[float, float]]] = {}
    for key, seconds in times.items():
        row = dict(zip(CONFIGURATION, key, strict=True))
        real_s = statistics.median(seconds)
        if not fitted(row, rate):
            error = abs(simulated[key] / real_s - 1.0)
            errors.setdefault(row["disturbance"], []).append(error)
        group = (row["hosts"], row["rate_mbit"], row["disturbance"], row["buffer_bytes"])
        best.setdefault(group, []).append((simulated[key], real_s))
    # A pick counts as right if what it really costs is within 2 % of the really best.
    right = sum(min(group)[1] <= 1.02 * min(one[1] for one in group) for group in best.values())
    together = [error for some in errors.values() for error in some]
    return {
        "predicted": len(together),
        "median_error": float(np.median(together)),
        "p95_error": float(np.percentile(together, 95)),
        "best_picked": right,
        "best_asked": len(best),
        **{
            f"median_error_{name.replace(' ', '_')}": float(np.median(some))
            for name, some in errors.items()
        },
    }
