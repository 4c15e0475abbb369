"""Some 200 kills at random moments, also in a change: nothing is lost, nothing done twice."""

import multiprocessing
import os
import random
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import elastic_program as program
import pytest
from elastic_world import HERE, PATIENCE_S, ROOT, SECRET, ElasticWorld

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(1200)]
WANTED, IN_A_CHANGE = 200, 40
WORKERS = 4


class ForkedWorld(ElasticWorld):
    """A job whose workers are forked from a process that has imported everything."""

    def __init__(self, folder: Path, n: int, plan: dict[str, Any]) -> None:
        self.forks: dict[str, BaseProcess] = {}
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["elastic_program"])
        super().__init__(folder, n, plan)

    def start(self, name: str, rank: int) -> None:
        """Fork a worker."""
        env = {
            "KF_RANK": str(rank),
            "KF_WORLD_SIZE": str(max(self.n, rank + 1)),
            "KF_STORE": self.server.address,
            "KF_JOB_SECRET": SECRET,
        }
        arguments = (self.folder, self.plan, name, env)
        self.forks[name] = self.context.Process(target=program.forked, args=arguments)
        self.forks[name].start()
        self.workers[name] = None  # type: ignore[assignment] - named for the checks

    def alive(self) -> list[str]:
        """Names of those that run."""
        return [name for name, fork in self.forks.items() if fork.is_alive()]

    def __exit__(self, *_: object) -> None:
        for fork in self.forks.values():
            fork.kill()
            fork.join()
        self.workers.clear()
        super().__exit__()


@pytest.fixture
def paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{HERE}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def settled_elsewhere(world: ForkedWorld, roster: Any, victims: list[str]) -> int:
    """Members that have the state and stay."""
    pids = {world.forks[name].pid for name in victims}
    alive = {world.forks[name].pid for name in world.alive()} - pids
    return sum(member.settled and member.pid in alive for member in roster.members)


def kill_some(world: ForkedWorld, draw: random.Random) -> tuple[int, bool]:
    """Kill one worker or two; how many, and whether the members were about to change."""
    roster, _ = world.rosters.read()
    names = world.alive()
    victims = draw.sample(names, min(len(names), draw.choice((1, 1, 1, 2))))
    if not victims or roster.ended or settled_elsewhere(world, roster, victims) < 1:
        return 0, False
    changing = bool(roster.joiners or roster.calling) or not all(
        member.settled for member in roster.members
    )
    for name in victims:
        world.forks[name].kill()
    for name in victims:  # or one that is about to die counts as one that stays
        world.forks[name].join(PATIENCE_S)
    return len(victims), changing


def run_one(folder: Path, draw: random.Random) -> tuple[int, int]:
    """One job; its kills, and those in a change."""
    kills = in_change = born = 0
    plan = {"sleep_s": 0.003, "samples": 240, "epochs": 30, "heartbeat_s": 20}
    with ForkedWorld(folder, WORKERS, plan) as world:
        world.until("the first view", lambda roster: roster.version == 1)
        deadline = time.monotonic() + 4 * PATIENCE_S
        while world.alive() and not world.rosters.read()[0].ended:
            assert time.monotonic() < deadline, f"hung: {world.alive()}"
            time.sleep(draw.uniform(0, 0.15))
            done, changing = kill_some(world, draw)
            kills, in_change = kills + done, in_change + done * changing
            if done and draw.random() < 0.5:
                time.sleep(draw.uniform(0, 0.03))
            while len(world.alive()) < WORKERS and not world.rosters.read()[0].ended:
                world.join(f"j{born}")
                born += 1
        for name, fork in world.forks.items():
            fork.join(PATIENCE_S)
            assert fork.exitcode in (0, -signal.SIGKILL), (name, fork.exitcode)
        world.check()
    return kills, in_change


def test_hundreds_of_kills_lose_and_repeat_nothing(tmp_path, paths):
    draw = random.Random(4)
    kills = in_change = jobs = 0
    while kills < WANTED or in_change < IN_A_CHANGE:
        jobs += 1
        folder = tmp_path / str(jobs)
        folder.mkdir()
        done, changing = run_one(folder, draw)
        kills, in_change = kills + done, in_change + changing
    print(f"{kills} kills in {jobs} jobs, {in_change} in a change")
