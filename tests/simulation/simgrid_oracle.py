#!/usr/bin/env python3
"""Replays schedules in SimGrid, an independent simulator; `test_simgrid.py` compares.

    python tests/simulation/simgrid_oracle.py > tests/data/simgrid_oracle.csv

Needs SimGrid's Python bindings (Debian: apt-get install python3-simgrid). SimGrid's flow model
runs with raw parameters: its usual corrections (13.01 times the latency, 0.97 of the rate,
cross traffic) model TCP as it was on one cluster, which is not what is compared.
"""

import csv
import math
import multiprocessing
import sys
from collections import defaultdict
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from kfcore import _native, schedule

RAW = (
    "network/model:CM02",
    "network/latency-factor:1",
    "network/bandwidth-factor:1",
    "network/weight-S:0",
    "network/crosstraffic:0",
    "network/TCP-gamma:1e18",
    "network/maxmin-selective-update:no",
    "network/optim:Full",
)
BYTES_PER_S = 1.25e9
LATENCY_S = 50e-6


@dataclass(frozen=True)
class Case:
    """An all-reduce; hosts take turns in racks (host 0 in rack 0, host 1 in rack 1, ...).

    Attributes:
        spec: The schedule.
        hosts: One rank each.
        racks: 0: none.
        over_subscription: Of each rack's uplink.
        buffer_bytes: A multiple of 4 x hosts.
        jitter_ms: Scale of the exponential law that start times are drawn from.
    """

    spec: str
    hosts: int
    racks: int
    over_subscription: float
    buffer_bytes: int
    jitter_ms: float

    def ready_s(self) -> np.ndarray:
        """[hosts] when each enters."""
        rng = np.random.default_rng(self.hosts)
        return np.round(rng.exponential(self.jitter_ms * 1e-3, self.hosts), 9)

    def rack_bytes_per_s(self) -> float:
        """Rate of one rack's uplink, each way."""
        if not self.racks:
            return math.inf
        return self.hosts / self.racks * BYTES_PER_S / self.over_subscription


CASES = (
    Case("ring", 16, 0, 1.0, 4_096_000, 0.0),
    Case("ring", 64, 0, 1.0, 102_400_000, 2.0),
    Case("ring", 64, 2, 2.0, 4_096_000, 0.0),
    Case("ring", 64, 4, 4.0, 102_400_000, 2.0),
    Case("halving_doubling", 32, 0, 1.0, 16_384_000, 0.5),
    Case("halving_doubling", 32, 4, 4.0, 16_384_000, 2.0),
    Case("binary_tree", 31, 0, 1.0, 16_368_000, 2.0),
    Case("clique", 16, 4, 2.0, 4_096_000, 1.0),
)


def replay(case: Case, tier: str = "fluid") -> float:
    """Seconds until the last rank is done, as this project's replay has it."""
    racks = case.racks
    fabric = _native.make_fabric(
        host_of_rank=list(range(case.hosts)),
        egress_bytes_per_s=[BYTES_PER_S] * case.hosts,
        ingress_bytes_per_s=[BYTES_PER_S] * case.hosts,
        latency_s=LATENCY_S,
        rack_of_host=[host % racks for host in range(case.hosts)] if racks else [],
        rack_bytes_per_s=case.rack_bytes_per_s(),
    )
    plan = schedule.build(case.spec, case.hosts)
    one = _native.Replay(plan, fabric, case.buffer_bytes, tier=tier)
    return float(np.max(one.run(case.ready_s())))


def simgrid(case: Case) -> float:
    """The same in SimGrid; in a process of its own, which may hold one engine only."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return float(pool.apply(_simgrid, (case,)))


def _simgrid(case: Case) -> float:
    from simgrid import Engine  # type: ignore[import-not-found]

    engine = Engine(["oracle", "--log=root.thres:critical", *(f"--cfg={item}" for item in RAW)])
    hosts = _platform(case)
    world = _World(case, hosts)
    world.start()
    engine.run()
    if world.left:
        raise RuntimeError(f"{world.left} messages of {case} never arrived")
    return max(world.finish_s)


def _platform(case: Case) -> list[Any]:
    """Hosts behind a card each way, racks behind an uplink each way."""
    from simgrid import LinkInRoute, NetZone

    zone = NetZone.create_full_zone("world")
    rate = f"{BYTES_PER_S!r}Bps"
    hosts = [zone.create_host(f"h{i}", 1e9).seal() for i in range(case.hosts)]
    card_out = [zone.create_link(f"out{i}", rate).seal() for i in range(case.hosts)]
    card_in = [zone.create_link(f"in{i}", rate).seal() for i in range(case.hosts)]
    uplink = f"{case.rack_bytes_per_s()!r}Bps"
    rack_out = [zone.create_link(f"up{i}", uplink).seal() for i in range(case.racks)]
    rack_in = [zone.create_link(f"down{i}", uplink).seal() for i in range(case.racks)]
    for a in range(case.hosts):
        for b in range(case.hosts):
            if a == b:
                continue
            path = [card_out[a]]
            if case.racks and a % case.racks != b % case.racks:
                path += [rack_out[a % case.racks], rack_in[b % case.racks]]
            path.append(card_in[b])
            zone.add_route(
                hosts[a].netpoint,
                hosts[b].netpoint,
                None,
                None,
                [LinkInRoute(link) for link in path],
                False,
            )
    zone.seal()
    return hosts


class _World:
    """Two actors a connection: one sends messages, one delivers them a latency later.

    A message goes out once its round is open on its sender, and the one before it has left. A
    round is open on a rank when all that earlier rounds bring to it has arrived. The latency is
    the deliverer's, because a communication of SimGrid holds up the next one until it arrives.
    """

    def __init__(self, case: Case, hosts: list[Any]) -> None:
        plan = schedule.build(case.spec, case.hosts)
        if len(plan.channels) != 1:
            raise ValueError(f"{case.spec} has {len(plan.channels)} channels; 1 is understood")
        self._hosts, self._ready_s = hosts, case.ready_s().tolist()
        self._sends: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        rounds = plan.channels[0]
        self._missing = [[0] * case.hosts for _ in rounds]  # [round][rank] still to arrive
        for number, transfers in enumerate(rounds):
            for t in transfers:
                size = case.buffer_bytes * t.chunk_count // plan.chunk_count
                self._sends[t.src, t.dst].append((number, size))
                self._missing[number][t.dst] += 1
        self._reached = [0] * case.hosts  # first round whose messages are still to come
        self.left = sum(len(messages) for messages in self._sends.values())
        self.finish_s = list(self._ready_s)

    def start(self) -> None:
        """Makes the actors."""
        from simgrid import Actor, Semaphore

        # A rank's semaphore of a connection has a unit for each message that may go out.
        self._open = {pair: Semaphore(0) for pair in self._sends}
        self._given = dict.fromkeys(self._sends, 0)
        self._by_source = defaultdict(list)
        for pair in self._sends:
            self._by_source[pair[0]].append(pair)
        self._left = {pair: Semaphore(0) for pair in self._sends}
        self._left_at_s: dict[tuple[int, int], list[float]] = defaultdict(list)
        for pair in self._sends:
            Actor.create(f"send {pair}", self._hosts[pair[0]], self._send, *pair)
            Actor.create(f"deliver {pair}", self._hosts[pair[1]], self._deliver, *pair)
        for rank, host in enumerate(self._hosts):
            Actor.create(f"enter {rank}", host, self._enter, rank)

    def _enter(self, rank: int) -> None:
        from simgrid import this_actor

        this_actor.sleep_until(self._ready_s[rank])
        self._advance(rank)

    def _send(self, src: int, dst: int) -> None:
        from simgrid import Comm, Engine, this_actor

        for _, size in self._sends[src, dst]:
            self._open[src, dst].acquire()
            this_actor.sleep_until(max(Engine.clock, self._ready_s[dst]))  # no receiver before
            Comm.sendto(self._hosts[src], self._hosts[dst], size)
            self._left_at_s[src, dst].append(Engine.clock)
            self._left[src, dst].release()

    def _deliver(self, src: int, dst: int) -> None:
        from simgrid import Engine, this_actor

        for place, (number, _) in enumerate(self._sends[src, dst]):
            self._left[src, dst].acquire()
            this_actor.sleep_until(self._left_at_s[src, dst][place] + LATENCY_S)
            self.left -= 1
            self._missing[number][dst] -= 1
            self.finish_s[dst] = max(self.finish_s[dst], Engine.clock)
            self._advance(dst)

    def _advance(self, rank: int) -> None:
        while (
            self._reached[rank] < len(self._missing)
            and self._missing[self._reached[rank]][rank] == 0
        ):
            self._reached[rank] += 1
        for pair in self._by_source[rank]:
            messages = self._sends[pair]
            while (
                self._given[pair] < len(messages)
                and messages[self._given[pair]][0] <= self._reached[rank]
            ):
                self._given[pair] += 1
                self._open[pair].release()


def main() -> None:
    """Prints the table of facts."""
    from simgrid import simgrid_version

    sys.stdout.write(
        f"# SimGrid {simgrid_version}, raw parameters; made by "
        "tests/simulation/simgrid_oracle.py: seconds until the last rank is done\n"
    )
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([*(field.name for field in fields(Case)), "simgrid_s"])
    for case in CASES:
        writer.writerow([*asdict(case).values(), f"{simgrid(case):.9f}"])


if __name__ == "__main__":
    main()
