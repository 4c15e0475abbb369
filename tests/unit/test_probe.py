"""What ``auto`` measures, agrees on and chooses."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner
from worlds import run_world

import kfcore
from kfcore import probe, schedule
from kfcore.cli.root import app
from kfcore.errors import UsageError


def test_a_noisy_measurement_counts_as_the_nominal_number():
    for factor in (0.13, 0.5, 1.0, 3.0, 7.9):
        assert probe.snap(50e-6 * factor, 50e-6) == 50e-6
    assert probe.snap(50e-6 * 9, 50e-6) == 8 * 50e-6
    assert probe.snap(50e-6 * 63, 50e-6) == 8 * 50e-6
    assert probe.snap(50e-6 / 100, 50e-6) == 50e-6 / 64


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ("aabb", 2),
        ("aaaa", 4),
        ("abcd", 1),
        ("aab", 1),
        ("abab", 1),
        ("aaabbb", 3),
        ("aabbaa", 1),
        ("aabbcca", 1),
    ],
)
def test_hosts_count_when_equal_and_in_a_row(hosts, expected):
    addresses = [f"[fd00::{host}]:{7000 + rank}" for rank, host in enumerate(hosts)]
    assert probe.ranks_per_host(addresses) == expected


@pytest.mark.parametrize("transport", ["inproc", "tcp", "shm"])
@pytest.mark.parametrize("hosts", ["aaaa", "aabb", "abcd"])
def test_all_ranks_write_the_same_spec_and_can_run_it(transport, hosts):
    addresses = [f"10.0.0.{ord(host)}:7000" for host in hosts]

    def work(session):
        spec = probe.measured_spec(session, addresses)
        session.set_schedule(spec)
        array = np.full(1000, session.rank + 1.0)
        session.all_reduce(array)
        assert array.tolist() == [10.0] * 1000
        group = session.group([0, 2] if session.rank % 2 == 0 else [1, 3])
        pair = np.ones(5000)
        group.all_reduce(pair)
        assert pair[0] == 2
        return spec

    specs = run_world(transport, 4, work, timeout_s=60)
    assert len(set(specs)) == 1
    assert ("ranks_per_host=2" in specs[0]) == (hosts == "aabb")
    assert schedule.build(specs[0], 4)


def test_init_measures_by_default_and_the_schedule_says_what():
    with kfcore.init(rank=0, world_size=1) as session:
        assert session.schedule == "auto"
    result = run_world("shm", 2, lambda session: session.schedule)
    assert result == [
        "ring",
        "ring",
    ]  # a session that was opened with a fixed schedule keeps it


def test_hosts_make_the_choice_hierarchical():
    inside = schedule.Hosts(2, 10e-6, 4e9)
    best = schedule.choices(1 << 24, 4, latency_s=5e-5, bytes_per_s=1.25e8, hosts=inside)
    assert best[0].spec.startswith("hierarchical(")
    times = [choice.time_s for choice in best]
    assert times == sorted(times)
    flat = next(choice for choice in best if choice.spec == "ring")
    assert flat.time_s / best[0].time_s == pytest.approx(1.5, rel=0.05)  # 6/4 to 2/2 of S
    with pytest.raises(UsageError, match="ranks_per_host must be >= 1, got 0"):
        schedule.choices(8, 4, latency_s=1, bytes_per_s=1, hosts=schedule.Hosts(0, 1, 1))


def explain(*arguments):
    result = CliRunner().invoke(app, ["schedule", "show", *arguments, "--explain"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def test_explain_says_which_and_why():
    spec = "auto(ranks_per_host=2,host_latency_s=1e-5,host_bytes_per_s=4e9,bytes_per_s=1.25e8)"
    text = explain(spec, "-n", "4")
    assert "all_reduce of 4,194,304 bytes over 4 ranks" in text
    assert "50 us, 0.125 GB/s between hosts of 2 ranks, which share one; 10 us, 4 GB/s" in text
    assert "chosen: hierarchical(" in text
    data = json.loads(explain("auto(buffer_bytes=64)", "-n", "16", "--json"))
    assert (
        data["chosen"]
        == "recursive_doubling"
        == schedule.build("auto(buffer_bytes=64)", 16).name
    )
    assert data["compared"][0]["spec"] == data["chosen"]


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("ring", "--explain explains auto"),
        ("auto(x=1)", "auto takes"),
        ("auto(latency_s=a)", "number"),
    ],
)
def test_explain_refuses_what_is_not_auto(spec, text):
    with pytest.raises(UsageError, match=text):
        explain(spec)
