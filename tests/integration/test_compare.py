"""`kf bench --against`: other systems are started, checked, stopped and measured in turn."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kfcore.compare import CONTENDERS, Case, compare, missing_reason
from kfcore.compare.report import draw, rows
from kfcore.errors import InternalError, KfError, UsageError

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

SMALL = Case("all_reduce", 4096)


def test_ours_and_gloo_are_measured_side_by_side(tmp_path: Path) -> None:
    contenders = [CONTENDERS["kf"], CONTENDERS["gloo"]]
    samples = compare(contenders, [SMALL, Case("all_reduce", 65536)], world_size=2, rounds=2)
    assert [(s.contender, s.case.buffer_bytes) for s in samples] == [
        ("kf", 4096),
        ("gloo", 4096),
        ("kf", 65536),
        ("gloo", 65536),
    ]
    for row in rows(samples):
        assert 0 < row["min_us"] <= row["p50_us"] <= row["p95_us"]
        assert row["rounds"] == 2
        assert row["operations"] >= 6
        assert row["busbw_gb_per_s"] == pytest.approx(row["algbw_gb_per_s"])  # 2 (n-1)/n = 1
        if row["contender"] == "gloo":
            assert row["ratio_to_best_peer"] == 1
    draw(samples, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


STAND_IN = """
import runpy, sys, types
kfcore = types.ModuleType("kfcore")
exec(open({body!r}).read(), vars(kfcore))
sys.modules["kfcore"] = kfcore
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def worker(body: str, tmp_path: Path) -> str:
    """An interpreter in which `import kfcore` gets the given code instead."""
    fake, start, python = (tmp_path / name for name in ("fake.py", "start.py", "python"))
    fake.write_text(body)
    start.write_text(STAND_IN.format(body=str(fake)))
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {start} "$@"\n')
    python.chmod(0o755)
    return str(python)


FAKE = """
import os
class Session:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    def barrier(self): pass
    def all_reduce(self, buffer): {body}
def init(schedule): return Session()
"""


def test_a_contender_with_wrong_sums_is_not_measured(tmp_path: Path) -> None:
    python = worker(FAKE.format(body="buffer *= 2"), tmp_path)
    wrong = replace(CONTENDERS["kf"], name="wrong", launcher="env")
    with pytest.raises(InternalError, match="wrong reduced wrongly: element"):
        compare([wrong], [SMALL], world_size=2, rounds=1, pythons={"wrong": python})


def test_a_contender_that_dies_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    python = worker(FAKE.format(body="raise SystemExit('out of luck')"), tmp_path)
    dying = replace(CONTENDERS["kf"], name="dying", launcher="env")
    with pytest.raises(KfError, match=r"dying died; its output ends with:\n.*out of luck"):
        compare([dying], [SMALL], world_size=2, rounds=1, pythons={"dying": python})
    lost: list[str] = []
    both = [dying, CONTENDERS["kf"]]
    samples = compare(
        both, [SMALL], world_size=2, rounds=2, pythons={"dying": python}, on_lost=lost.append
    )
    assert [(s.contender, len(s.round_p50_s)) for s in samples] == [("kf", 2)]
    assert len(lost) == 1
    assert lost[0].startswith("all_reduce 4096: dying died")


def test_a_missing_system_is_left_out_with_how_to_get_it() -> None:
    nowhere = replace(CONTENDERS["mpich"], module="no_such_module")
    reason = missing_reason(nowhere, sys.executable)
    assert reason is not None
    assert reason.endswith("get it with tools/install_mpi.sh")


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(UsageError, match="rounds and world_size must be >= 1, got 0 and 2"):
        compare([CONTENDERS["kf"]], [SMALL], world_size=2, rounds=0)


def test_command_prints_rows_as_json_and_refuses_unknown_names() -> None:
    base = [sys.executable, "-m", "kfcore", "bench", "all-reduce", "-n", "2", "--sizes", "1K"]
    options = ["--rounds", "1", "--no-resnet50", "--no-floor", "--json", "--against"]
    done = subprocess.run([*base, *options, "gloo"], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)["rows"]
    assert {"kf", "kf-registered", "gloo"} == {row["contender"] for row in found}
    refused = subprocess.run(
        [*base, "--against", "nccl"], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
    assert "--against takes gloo, horovod" in refused.stderr
