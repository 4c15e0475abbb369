"""The trace file: valid at every moment, times from the start."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from kfcore import inproc_world
from kfcore.errors import UsageError
from kfcore.trace import Trace

ROOT = Path(__file__).resolve().parents[2]


def operations(path):
    document = json.loads(path.read_text())
    assert document["otherData"]["epoch_s"] > 1e9
    return [event for event in document["traceEvents"] if event["ph"] == "X"]


@pytest.mark.parametrize("count", [0, 50])
def test_every_operation_is_an_event_with_a_duration(tmp_path, count):
    def work(session):
        session.trace(path := tmp_path / f"{session.rank}.json")
        with pytest.raises(UsageError, match="already"):
            session.trace(path)
        for i in range(count):
            handle = session.all_reduce(np.ones(10), async_op=i % 2 == 0)
            if i % 2 == 0:
                handle.wait()
        assert len(operations(path)) == count
        return path

    for path in inproc_world(2, work):
        events = operations(path)
        assert len(events) == count
        assert all(e["name"] == "all_reduce" and e["ts"] >= 0 <= e["dur"] < 1e7 for e in events)
        starts = [e["ts"] for e in events]
        assert starts == sorted(starts)
        assert not path.read_text().endswith(" ")


def test_the_file_is_valid_after_every_event_and_grows(tmp_path):
    path = tmp_path / "trace.json"
    trace = Trace(path, 0, {})
    for i in range(3000):
        trace.add("x" * (i % 700), 0.0, time.monotonic())
        if i % 50 == 0:
            assert len(operations(path)) == i + 1
    trace.close()
    trace.add("late", 0.0, 1.0)
    assert len(operations(path)) == 3000
    assert os.listdir(tmp_path) == ["trace.json"]


def test_no_write_crosses_a_page(tmp_path, monkeypatch):
    writes = []
    real = os.pwrite
    monkeypatch.setattr(
        os, "pwrite", lambda fd, b, at: writes.append((at, len(b))) or real(fd, b, at)
    )
    trace = Trace(tmp_path / "t.json", 0, {})
    for i in range(500):
        trace.add("name" * (i % 90), 0.0, 1.0)
    trace.close()
    assert len(writes) > 400
    assert all(at // 4096 == (at + size - 1) // 4096 for at, size in writes)


@pytest.mark.processes
def test_the_file_is_valid_after_a_kill_at_any_moment(tmp_path):
    code = (
        "import sys, numpy, kfcore\n"
        "session = kfcore.init(rank=0, world_size=1)\n"
        "session.trace(sys.argv[1])\n"
        "print(flush=True)\n"
        "while True: session.all_reduce(numpy.ones(3), name='step')\n"
    )
    seen = 0
    for i in range(6):
        path = tmp_path / f"{i}.json"
        worker = subprocess.Popen(
            [sys.executable, "-c", code, str(path)], cwd=ROOT, stdout=subprocess.PIPE
        )
        worker.stdout.readline()
        time.sleep(0.02 + 0.05 * i)
        worker.send_signal(signal.SIGKILL)
        worker.communicate(timeout=30)
        seen += len(operations(path))
    assert seen > 100


def test_a_trace_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot write a trace"):
        Trace(tmp_path / "missing" / "t.json", 0, {})
