"""The real-throughput experiment: resumable rows, and aims that are judged right."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from experiments._shared.catalog import find
from experiments._shared.record import read_rows
from kfcore.compare import CONTENDERS

ROOT = Path(__file__).resolve().parents[2]
E13 = find("e13", ROOT)


def row(contender, p50_us, setting="host2", size=1024, case="all_reduce"):
    return {
        "setting": setting,
        "case": case,
        "buffer_bytes": size,
        "contender": contender,
        "hosts": {"hosts4x1": 4}.get(setting, 1),
        "rate_mbit": 1000.0 if setting == "hosts4x1" else None,
        "p50_us": p50_us,
    }


def write(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_aims_are_judged_against_the_rows(tmp_path):
    rows = [
        row("kf", 10.0),
        row("gloo", 200.0),
        row("horovod", 90.0),
        row("horovod-tuned", 80.0),
        row("openmpi", 8.0),
        row("kf", 100.0, size=262144),
        row("kf-registered", 30.0, size=262144),
        row("floor-registered", 10.0, size=262144),
        row("kf", 13_500.0, "hosts4x1", 1 << 20),
    ]
    found = {
        each["our aim"]: each
        for each in E13.module("plot").table(write(tmp_path / "rows.csv", rows))
    }
    verdicts = {
        "2 ranks, 1 KiB: at most 1.5 times Open MPI": (0.8, "met"),
        "2 ranks, 1 KiB: 10 times faster than Gloo": (20.0, "met"),
        "2 ranks, 1 KiB: 10 times faster than Horovod": (8.0, "missed"),
        "2 ranks, 1 KiB: 20 us": (10.0, "met"),
        "2 ranks, 256 KiB, registered: within 2 times of the floor": (3.0, "missed"),
        "2 ranks, 256 KiB, any buffer: within 1.5 times of the floor": (None, "not measured"),
        # 2 (4 - 1) / 4 of a MiB at 1 Gbit/s takes 12.58 ms
        "4 hosts, 1 Gbit/s, 1 MiB: 0.90 of the bound": (0.932, "met"),
    }
    for aim, (measured, verdict) in verdicts.items():
        assert (found[aim]["measured"], found[aim]["verdict"]) == (measured, verdict), aim


def test_every_aim_is_of_something_that_is_measured():
    module = E13.module("run")
    cases = {(s.name, "all_reduce", size): s for s in module.FULL for size in s.sizes} | {
        (s.name, "resnet50", module.RESNET50_BYTES): s for s in module.FULL if s.resnet50
    }
    with (E13.folder / "marks.csv").open(newline="") as file:
        for mark in csv.DictReader(file):
            key = mark["setting"], mark["case"], int(mark["buffer_bytes"])
            assert key in cases, mark
            assert mark["contender"] in module.OURS
            assert mark["direction"] in ("at_least", "at_most")


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_a_run_that_was_interrupted_measures_only_what_is_missing(tmp_path, monkeypatch):
    module = E13.module("run")
    ours = {"kf": CONTENDERS["kf"]}
    monkeypatch.setattr(module, "CONTENDERS", ours)
    small = replace(module.QUICK[0], sizes=(1024, 4096), rounds=1)
    monkeypatch.setattr(module, "QUICK", (replace(small, sizes=(1024,)),))
    blocks = []

    def progress(done, total, what):
        blocks.append(what)

    module.run(tmp_path, 1, True, progress)
    assert blocks == ["all_reduce 1024 kf"]
    monkeypatch.setattr(module, "QUICK", (small,))
    facts = module.run(tmp_path, 1, True, progress)
    assert blocks == ["all_reduce 1024 kf", "all_reduce 4096 kf"]
    assert facts["settings"] == ["host2"]
    rows = read_rows(tmp_path / "rows.csv")
    timed = [r for r in rows if r["contender"] == "kf"]
    assert [r["buffer_bytes"] for r in timed] == [1024, 4096]
    assert all(0 < r["min_us"] <= r["p50_us"] <= r["p95_us"] for r in timed)
    assert E13.module("plot").plot(tmp_path / "rows.csv", tmp_path)
