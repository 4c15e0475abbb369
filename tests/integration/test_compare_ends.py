"""Whatever ends a comparison: no contender is left behind, running or stopped."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kfcore.compare.places import parse_rate_mbit
from kfcore.errors import UsageError

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

# Long enough to be interrupted in; both contenders are ours, so it starts quickly.
PROGRAM = """
import sys
from kfcore.compare import CONTENDERS, Case, compare
from kfcore.compare.command import ending_on_signals

def tell(text):
    print("measuring", flush=True)

if __name__ == "__main__":
    print("start", flush=True)
    with ending_on_signals():
        ours = [CONTENDERS["kf"], CONTENDERS["kf-registered"]]
        compare(ours, [Case("all_reduce", 1 << 20)], world_size=2, rounds=100000, on_block=tell)
"""


def workers(mark: str) -> list[int]:
    """Processes of this test, known by a variable in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            environment = (folder / "environ").read_bytes()
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if f"KF_TEST_MARK={mark}".encode() in environment.split(b"\0") and state != "Z":
            found.append(int(folder.name))
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_contender_outlives_the_comparison(tmp_path, number):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    mark = f"{os.getpid()}-{number.name}"
    variables = {**os.environ, "KF_TEST_MARK": mark}
    process = subprocess.Popen(
        [sys.executable, str(script)], env=variables, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line == "measuring\n":
                break
        assert len(workers(mark)) >= 5  # the program, two launchers, four ranks
        process.send_signal(number)
        process.wait(timeout=120)
        deadline = time.monotonic() + 90
        while workers(mark) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert workers(mark) == []
    finally:
        for pid in workers(mark):
            os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("text", "rate"), [("1gbit", 1000.0), ("100Mbit", 100.0), (" 0.5 gbit", 500.0)]
)
def test_rates_are_read(text, rate):
    assert parse_rate_mbit(text) == rate


@pytest.mark.parametrize("text", ["", "1", "gbit", "-1gbit", "1gb", "nangbit", "infgbit"])
def test_a_bad_rate_is_shown(text):
    with pytest.raises(UsageError, match="a rate is a number"):
        parse_rate_mbit(text)
