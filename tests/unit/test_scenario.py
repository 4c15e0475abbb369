"""Scenarios: strict reading, clear faults, overrides."""

import re
from pathlib import Path

import pytest

import kfsim
from kfcore.errors import UsageError
from kfsim.scenario import parse
from kfsim.systems import Horovod, Kf

MINIMAL = """
[cluster]
hosts = 4
nic_gbps = 10
[workload]
model = "resnet50"
samples_per_s = 100.0
local_batch = 32
[system]
kind = "kf"
"""


def minimal() -> dict:
    return {
        "cluster": {"hosts": 4, "nic_gbps": 10},
        "workload": {"model": "resnet50", "samples_per_s": 100.0, "local_batch": 32},
        "system": {"kind": "kf"},
    }


def test_scenario_loads_with_defaults_and_turns_integers_into_numbers(tmp_path):
    path = tmp_path / "s.toml"
    path.write_text(MINIMAL)
    scenario = kfsim.load(path)
    assert scenario.cluster.nic_gbps == 10.0
    assert isinstance(scenario.cluster.nic_gbps, float)
    assert scenario.run.steps == 20
    assert scenario.system == Kf()
    assert scenario.world_size == 4


@pytest.mark.parametrize(
    ("table", "key", "value", "says"),
    [
        ("cluster", "nic_gpbs", 10, "cluster: unknown key 'nic_gpbs'"),
        ("cluster", "hosts", 0, "cluster: hosts: must be >= 1, got 0"),
        ("cluster", "hosts", 2.5, "cluster: hosts: must be an integer, got 2.5"),
        ("cluster", "hosts", True, "cluster: hosts: must be an integer, got True"),
        ("cluster", "nic_gbps", 0, "cluster: nic_gbps: must be > 0, got 0.0"),
        ("cluster", "nic_gbps", float("nan"), "cluster: nic_gbps: must be finite"),
        ("cluster", "tcp_efficiency", 1.5, "cluster: tcp_efficiency: must be <= 1, got 1.5"),
        ("workload", "forward_fraction", 1, "workload: forward_fraction: must be < 1"),
        ("workload", "model", "resnet51", "workload: model: must be one of bert_base"),
        ("workload", "stragglers", {"rank": 1}, "workload: stragglers: must be a list"),
        ("workload", "stragglers", [{"rank": 9, "factor": 2}], "rank must be < 4"),
        ("workload", "stragglers", [{"rank": 1}], r"stragglers\[0\]: key 'factor' is required"),
        ("workload", "source", 3, "source must be a text"),
        ("workload", "sources", {"nonsense": "x"}, "sources names the unknown key 'nonsense'"),
        ("system", "kind", "gloo", "kind must be one of kf, horovod, ideal"),
        ("system", "cycle_ms", 5, "system: unknown key 'cycle_ms'"),
        ("system", "tier", "exact", "tier: must be one of auto, closed_form, recurrence"),
        ("system", "overlap", 1, "overlap: must be true or false"),
        ("run", "steps", 0, "run: steps: must be >= 1"),
        ("run", "warmup_steps", 20, "warmup_steps must be < steps = 20"),
    ],
)
def test_scenario_fault_names_file_key_and_rule(table, key, value, says):
    raw = minimal()
    raw.setdefault(table, {})[key] = value
    with pytest.raises(UsageError, match=says) as caught:
        parse(raw, "my.toml")
    assert str(caught.value).startswith("my.toml: ")


HUGE = (2**53 + 1, 2**63, 10**400, -(10**400), 1e300, 1e-300, 1e18)


@pytest.mark.parametrize("value", HUGE, ids=[f"case{place}" for place in range(len(HUGE))])
@pytest.mark.parametrize(
    "key",
    [
        "cluster.hosts",
        "cluster.ranks_per_host",
        "cluster.nic_gbps",
        "cluster.latency_us",
        "cluster.reduce_gbytes_per_s",
        "workload.samples_per_s",
        "workload.local_batch",
        "workload.overhead_ms",
        "workload.jitter_sigma",
        "workload.learning_rate",
        "system.segment_kib",
        "system.bucket_mib",
    ],
)
def test_an_absurd_number_is_simulated_or_refused(key, value):
    scenario = parse(minimal()).with_values({"run.steps": 2})
    refusal = None
    try:
        kfsim.simulate(scenario.with_values({key: value}))
    except UsageError as error:
        refusal = str(error)
    says = f"{key.split('.')[1]}: must|world_size must|would end after"
    assert refusal is None or re.search(says, refusal)


@pytest.mark.parametrize("text", ["x = " + "[" * 5000, "x = " + "1" * 5000, "\udcff", "\0"])
def test_scenario_that_is_hardly_toml_is_refused(tmp_path, text):
    path = tmp_path / "s.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError, match="not TOML"):
        kfsim.load(path)
    path.write_text('extends = "a\\u0000b"')
    with pytest.raises(UsageError, match="zero byte"):
        kfsim.load(path)


@pytest.mark.parametrize("table", ["cluster", "workload", "system"])
def test_scenario_names_the_table_that_is_missing(table):
    raw = minimal()
    del raw[table]
    with pytest.raises(UsageError, match=rf"table \[{table}\] is required"):
        parse(raw)


def test_scenario_refuses_unknown_tables_and_two_sources_of_norms():
    with pytest.raises(UsageError, match="unknown table 'clutser'"):
        parse({**minimal(), "clutser": {}})
    both = {
        **minimal(),
        "noise": {"epochs": [0], "noise_scale": [100]},
        "task": {"factory": "a.py:A"},
    }
    with pytest.raises(UsageError, match="noise or task, not both"):
        parse(both)


def test_scenario_refuses_a_noise_law_that_is_no_function():
    for epochs, scale in ([[0, 0], [1, 2]], [[0, 1], [1]], [[], []]):
        with pytest.raises(UsageError, match="noise: epochs"):
            parse({**minimal(), "noise": {"epochs": epochs, "noise_scale": scale}})


def test_scenario_says_what_is_wrong_with_the_file(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        kfsim.load(tmp_path / "missing.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("[cluster\nhosts = 4")
    with pytest.raises(UsageError, match=r"broken\.toml: not TOML"):
        kfsim.load(broken)


def test_scenario_extends_another_file_key_by_key(tmp_path):
    (tmp_path / "base.toml").write_text(MINIMAL)
    child = tmp_path / "child.toml"
    child.write_text('extends = "base.toml"\n[cluster]\nhosts = 9\n')
    scenario = kfsim.load(child)
    assert (scenario.cluster.hosts, scenario.cluster.nic_gbps) == (9, 10.0)
    child.write_text('extends = "child.toml"\n')
    with pytest.raises(UsageError, match="extends itself"):
        kfsim.load(child)


def test_scenario_with_values_replaces_and_checks_again():
    scenario = parse(minimal())
    larger = scenario.with_values({"cluster.hosts": 64, "system.kind": "horovod"})
    assert (larger.cluster.hosts, larger.system) == (64, Horovod())
    assert scenario.cluster.hosts == 4, "the original must not change"
    with pytest.raises(UsageError, match="hosts: must be >= 1"):
        scenario.with_values({"cluster.hosts": 0})
    with pytest.raises(UsageError, match="unknown key 'host'"):
        scenario.with_values({"cluster.host": 1})


def test_every_scenario_of_the_experiments_loads_and_states_its_sources():
    root = Path(__file__).resolve().parents[2]
    paths = sorted(root.glob("experiments/e*/scenario*.toml"))
    assert paths, "no scenario found: the glob is wrong"
    for path in paths:
        scenario = kfsim.load(path)
        for table in ("cluster", "workload"):
            notes = scenario.raw[table].get("sources", {})
            assert notes, f"{path}: [{table}] states no source"
