#!/usr/bin/env python3
"""Runs elastic jobs under random fault plans for a time and looks for hangs and differences.

    python tools/soak.py --seconds 1800 --seed 1

Each round follows from its seed, which is printed first: give it again, with ``--seconds 0``,
for the same plan. With ``--hosts N`` (root) the workers run in N hosts made of network
namespaces.
"""

import argparse
import contextlib
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import hosts as namespaces

from kfcore.faults import Fault, FaultPlan

ROUND_LIMIT_S = 300
TRAIN = Path(__file__).with_name("soak_train.py")


def random_plan(draw: random.Random, workers: int, steps: int) -> FaultPlan:
    """Faults at distances that leave somebody alive: at most workers - 1 of them end."""
    ends = draw.randint(1, workers - 1)
    kinds = ["kill"] * ends + ["join", "stop", "slow"] * 2
    draw.shuffle(kinds)
    faults = []
    for number, drawn in enumerate(kinds):
        step = 10 + number * ((steps - 40) // len(kinds)) + draw.randint(0, 5)
        rank = draw.randrange(workers)
        kind = "leave" if drawn == "kill" and draw.random() < 0.3 else drawn
        if kind == "join":
            faults.append(Fault("join", step, workers=1))
        elif kind in ("kill", "leave"):
            faults.append(Fault(kind, step, rank=rank))
        else:
            faults.append(Fault(kind, step, rank=rank, seconds=draw.choice((0.05, 0.2, 0.5))))
    return FaultPlan(tuple(faults))


def namespace_ssh(made: namespaces.Hosts, folder: Path) -> Path:
    """A stand-in for ssh that enters a namespace by its address."""
    cases = "\n".join(f"{made.address(h)}) name={made.name(h)};;" for h in range(made.count))
    path = folder / "ssh"
    path.write_text(
        f'#!/bin/sh\ncase "$1" in\n{cases}\nesac\n'
        f'exec {namespaces.IP} netns exec $name sh -c "$2"\n'
    )
    path.chmod(0o755)
    return path


def differences(folder: Path) -> list[str]:
    """Steps at which two workers had other weights."""
    seen: dict[str, set[str]] = defaultdict(set)
    for path in folder.glob("*.txt"):
        for line in path.read_text().splitlines():
            step, _, digest = line.partition(" ")
            seen[step].add(digest)
    return [f"step {step}: {sorted(found)}" for step, found in seen.items() if len(found) > 1]


def run_round(seed: int, steps: int, made: namespaces.Hosts | None) -> str:
    """One job; what went wrong, or an empty text."""
    draw = random.Random(seed)  # noqa: S311 - faults, not secrets
    workers = draw.randint(2, 6)
    plan = random_plan(draw, workers, steps)
    with tempfile.TemporaryDirectory(prefix="kf-soak-") as name:
        folder = Path(name)
        (folder / "plan.toml").write_text(plan.to_toml())
        command = [sys.executable, "-m", "kfcore", "run", "-n", str(workers)]
        command += ["--elastic", "1:8", "--cooldown-s", "0.2"]
        command += ["--faults", str(folder / "plan.toml"), "--log-dir", str(folder / "logs")]
        prefix: list[str] = []
        if made is not None:
            slots = -(-8 // made.count)
            there = ",".join(f"{made.address(h)}:{slots}" for h in range(made.count))
            command += ["-H", there, "--ssh", str(namespace_ssh(made, folder))]
            prefix = [namespaces.IP, "netns", "exec", made.name(0)]
        try:
            done = subprocess.run(
                [*prefix, *command, str(TRAIN), str(steps), str(seed), name],
                capture_output=True,
                text=True,
                timeout=ROUND_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            return f"hung for {ROUND_LIMIT_S} s\n{(error.stderr or b'').decode()[-3000:]}"
        if done.returncode != 0:
            return f"exit code {done.returncode}\n{plan.to_toml()}\n{done.stderr[-3000:]}"
        views = done.stderr.count("kf: view")
        print(f"seed {seed}: {workers} workers, {views} views, {len(plan.faults)} faults: fine")
        return "\n".join(differences(folder))


def main() -> int:
    """Run rounds until the time is up or one goes wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--seconds", type=float, default=1800, help="how long; 0: one round")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first round")
    parser.add_argument("--steps", type=int, default=400, help="of each round")
    parser.add_argument("--hosts", type=int, default=0, help="namespace hosts; 0: this host")
    options = parser.parse_args()
    end, seed = time.monotonic() + options.seconds, options.seed
    with contextlib.ExitStack() as stack:
        made = None
        if options.hosts:
            made = stack.enter_context(namespaces.Hosts(options.hosts))
            stack.enter_context(namespaces.stop_on_signals())
        while True:
            print(f"seed {seed}", flush=True)
            wrong = run_round(seed, options.steps, made)
            if wrong:
                print(f"seed {seed} FAILED: {wrong}")
                return 1
            seed += 1
            if time.monotonic() >= end:
                return 0


if __name__ == "__main__":
    sys.exit(main())
