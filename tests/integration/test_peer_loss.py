"""A rank is killed or stopped in the middle of any collective: all others name it."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from loss_program import CALLS, RANKS, VICTIM

from kfcore.store import StoreServer

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]
SURVIVORS = [rank for rank in range(RANKS) if rank != VICTIM]


def lose(folder, transport, number, names, *, timeout_s=60.0, count=1 << 18):
    """What each rank saw, by collective and rank; no entry for a rank that saw nothing."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    with StoreServer("127.0.0.1", 0, "secret") as server:
        program = Path(__file__).with_name("loss_program.py")
        fields = [server.address, transport, int(number), folder, timeout_s, count, *names]
        done = subprocess.run(
            [sys.executable, program, *map(str, fields)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    return {
        (name, rank): json.loads(path.read_text())
        for name in names
        for rank in range(RANKS)
        if (path := folder / f"{name}.{rank}.json").exists()
    }


def check_killed(seen, names):
    for name in names:
        assert (name, VICTIM) not in seen
        for rank in SURVIVORS:
            got = seen[name, rank]
            assert got["error"] == "PeerLostError", (name, rank, got)
            assert f"rank {VICTIM} was lost" in got["text"], (name, rank, got)
            assert got["again"] == got["text"]  # the session stays dead of it


def check_stopped(seen, names):
    for name in names:
        for rank in SURVIVORS:
            got = seen[name, rank]
            assert got["error"] == "DeadlineError", (name, rank, got)
            silent = re.search(r"no sign of life from ranks \[([\d, ]+)\]", got["text"])
            assert silent, (name, rank, got)
            assert str(VICTIM) in silent[1].split(", "), (name, rank, got)
        # it goes on later, is told, and disturbs nobody
        assert seen[name, VICTIM]["again"] == seen[name, VICTIM]["text"]


@pytest.mark.parametrize("transport", ["tcp", "auto"])
def test_a_killed_rank_is_named_by_all_others_in_every_collective(tmp_path, transport):  # B2
    check_killed(lose(tmp_path, transport, signal.SIGKILL, CALLS), CALLS)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["tcp", "auto"])
@pytest.mark.parametrize("count", [8, 4 << 10, 16 << 20])
def test_a_rank_is_killed_with_buffers_of_any_size(tmp_path, transport, count):
    names = [name for name in CALLS if count < 16 << 20 or "all_reduce" in name]
    check_killed(lose(tmp_path, transport, signal.SIGKILL, names, count=count), names)


def test_a_stopped_rank_is_named_and_told_when_it_goes_on(tmp_path):  # B3
    names = ["all_reduce"]
    check_stopped(lose(tmp_path, "auto", signal.SIGSTOP, names, timeout_s=2.0), names)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["tcp", "auto"])
def test_a_rank_is_stopped_in_every_collective(tmp_path, transport):
    check_stopped(lose(tmp_path, transport, signal.SIGSTOP, CALLS, timeout_s=5.0), CALLS)
