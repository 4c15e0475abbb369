"""``kf bench``: rows that add up, over threads and over real processes."""

import json
import subprocess
import sys

import pytest

from kfcore.bench import iterations_for, parse_bytes
from kfcore.errors import UsageError


def bench(*arguments, code=0):
    command = [sys.executable, "-m", "kfcore", "bench", "all-reduce", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == code, done.stderr
    return done


@pytest.mark.processes
@pytest.mark.parametrize("transport", ["tcp", "inproc"])
def test_json_rows_are_consistent(transport):
    done = bench(
        "-n", "3", "--sizes", "4,1K,300K", "--iterations", "5", "--transport", transport,
        "--schedule", "ring", "--json",
    )  # fmt: skip
    rows = json.loads(done.stdout)
    assert [row["buffer_bytes"] for row in rows] == [4, 1024, 307200]
    for row in rows:
        assert row["transport"] == transport
        assert row["iterations"] == 5
        assert 0 < row["min_s"] <= row["p50_s"] <= row["p95_s"]
        assert row["algbw_gb_per_s"] == pytest.approx(row["buffer_bytes"] / row["p50_s"] / 1e9)
        assert row["busbw_gb_per_s"] == pytest.approx(row["algbw_gb_per_s"] * 4 / 3)


def test_the_table_names_its_units():
    out = bench("-n", "2", "--sizes", "1K", "--iterations", "1", "--transport", "inproc").stdout
    for word in ("p50 us", "algbw GB/s", "1024"):
        assert word in out


@pytest.mark.parametrize(
    "arguments", [("--sizes", "1X"), ("--transport", "pigeon"), ("--schedule", "spiral")]
)
def test_wrong_use_is_a_usage_error(arguments):
    done = bench(*arguments, code=2)
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("text", "expected"), [("5", 8), ("64K", 65536), ("1MiB", 1 << 20), ("2g", 2 << 30)]
)
def test_sizes_are_whole_elements(text, expected):
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "0", "-1", "K", "1.5M", "ten"])
def test_a_bad_size_is_shown(text):
    with pytest.raises(UsageError, match="positive number of bytes"):
        parse_bytes(text)


def test_larger_buffers_are_timed_less_often():
    assert iterations_for(1024, None) == 200
    assert iterations_for(256 << 20, None) == 5
    assert iterations_for(1, 7) == 7
