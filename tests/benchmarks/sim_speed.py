#!/usr/bin/env python3
"""Prints how fast the simulator is: python tests/benchmarks/sim_speed.py [--large]

CPU seconds of one core, import and preparation included where said. Not a test: speed is never
part of the gate.
"""

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import kfsim
from kfcore import _native, schedule

ROOT = Path(__file__).resolve().parents[2]
SCENARIO = ROOT / "experiments" / "e01_scaling_vs_horovod" / "scenario_kf.toml"
TWENTY_FIVE_BUCKETS_MIB = 3.0


def steps(hosts: int, count: int, jitter: float, policies: tuple[str, ...] = ()) -> float:
    """CPU seconds of a run of ResNet-50 over a ring."""
    scenario = kfsim.load(SCENARIO).with_values(
        {
            "cluster.hosts": hosts,
            "run.steps": count,
            "system.schedule": "ring",
            "system.bucket_mib": TWENTY_FIVE_BUCKETS_MIB,
            "workload.jitter_sigma": jitter,
        }
    )
    began = time.process_time()
    kfsim.simulate(scenario, policies)
    return time.process_time() - began


def exact_forest() -> float:
    """CPU seconds of one exact all-reduce of a forest over racks of 32, 4:1."""
    n = 256
    fabric = _native.make_fabric(
        host_of_rank=list(range(n)),
        egress_bytes_per_s=[1.25e9] * n,
        ingress_bytes_per_s=[1.25e9] * n,
        latency_s=50e-6,
        rack_of_host=[host // 32 for host in range(n)],
        rack_bytes_per_s=32 * 1.25e9 / 4,
    )
    one = _native.Replay(
        schedule.build("multi_binary_tree_star", n), fabric, 102_334_368, tier="fluid"
    )
    began = time.process_time()
    one.run(np.zeros(n))
    return time.process_time() - began


def start_up(*words: str) -> float:
    """Wall seconds of a command, the best of five."""
    times = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([sys.executable, *words], check=True, capture_output=True)
        times.append(time.perf_counter() - began)
    return min(times)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--large", action="store_true", help="1,024 VMs and the forest too")
    large = parser.parse_args().large
    rows = [
        ("256 VMs, symmetric, 1,000 steps", 1.0, steps(256, 1000, 0.0)),
        (
            "256 VMs, jitter and a policy, 1,000 steps",
            5.0,
            steps(256, 1000, 0.02, ("NameStragglers",)),
        ),
        ("import kfsim", 0.3, start_up("-c", "import kfsim")),
        (
            "from kfsim import load, simulate",
            0.3,
            start_up("-c", "from kfsim import load, simulate"),
        ),
        ("kf --help", 0.3, start_up("-c", "from kfcore.cli import main; main(['--help'])")),
    ]
    if large:
        rows += [
            ("1,024 VMs, jitter, 1,000 steps", 60.0, steps(1024, 1000, 0.02)),
            ("256 VMs, forest, 4:1, exact", 10.0, exact_forest()),
        ]
    print("| case | mark (s) | now (s) |\n|---|---:|---:|")
    for name, mark, seconds in rows:
        print(f"| {name} | {mark:g} | {seconds:.2f} |")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
