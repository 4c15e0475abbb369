"""The two first experiments in a small size: what they claim holds."""

import json

import pytest

from experiments._shared import catalog, runner
from experiments._shared.record import read_rows


@pytest.fixture
def no_progress():
    return lambda *_: None


@pytest.mark.processes
def test_one_policy_file_decides_the_same_in_both_worlds(tmp_path, monkeypatch, no_progress):
    experiment = catalog.find("e02")
    module = experiment.module("run")
    monkeypatch.setattr(module, "STEPS", {"quick": 60})
    monkeypatch.setattr(module, "REPEATS", {"quick": 1})
    assert module.run(tmp_path, 1, True, no_progress)["workers"] == 4
    rows = read_rows(tmp_path / "rows.csv")
    real, simulated = (
        [row for row in rows if row["world"] == world] for world in ("real", "simulated")
    )
    assert [row["step"] for row in real] == list(range(1, 61))
    batches = [row["local_batch"] for row in real]
    assert batches == [row["local_batch"] for row in simulated]
    assert batches[0] == 8
    assert batches[-1] > 8, "the policy never acted, so nothing was compared"
    for column in ("loss", "noise_scale"):
        pairs = [(a[column], b[column]) for a, b in zip(real, simulated, strict=True)]
        defined = [(a, b) for a, b in pairs if a is not None and b is not None]
        assert len(defined) >= 50
        assert all(a == pytest.approx(b, rel=1e-3) for a, b in defined)
    assert len(experiment.module("plot").plot(tmp_path / "rows.csv", tmp_path)) == 2


def test_simulated_scaling_has_the_published_shape(tmp_path, monkeypatch, no_progress):
    experiment = catalog.find("e01")
    module = experiment.module("run")
    monkeypatch.setattr(module, "VMS", {"quick": {"resnet50": (32,)}})
    monkeypatch.setattr(module, "OTHER_VMS", (8,))
    monkeypatch.setattr(module, "REPEATS", {"quick": 1})
    module.run(tmp_path, 1, True, no_progress)
    plot = experiment.module("plot")
    assert len(plot.plot(tmp_path / "rows.csv", tmp_path)) == 4
    share = {
        r["system"]: r["of ideal (%)"]
        for r in plot.table(tmp_path / "rows.csv")
        if r["VMs"] == 32 and r["model"] == "resnet50"
    }
    assert set(plot.MODELS) == set(module.MODELS)
    assert plot.numbers(tmp_path / "rows.csv")["resnet50_kf_32_share_percent"] == share["kf"]
    assert share["kf"] == pytest.approx(87.7, abs=5)  # published: 43.43 of 49.5 img/s
    assert share["horovod_untuned"] == pytest.approx(25.7, abs=1.5)  # fitted there
    assert share["horovod_untuned"] < share["kf"] < share["ideal"] == pytest.approx(100)
    published = {p["system"] for p in read_rows(plot.PUBLISHED)}
    assert published <= set(module.SYSTEMS)


def test_table_reads_as_markdown():
    table = runner.markdown_table([{"a": 1, "b": 2.34567}, {"a": 2, "b": None}])
    assert table == "| a | b |\n|---|---|\n| 1 | 2.346 |\n| 2 |  |\n"


def test_manifest_of_a_run_in_the_repository_names_its_commit(
    tmp_path, monkeypatch, no_progress
):
    experiment = catalog.find("e01")
    source = runner.record.source_facts(experiment.folder)
    if source["commit"] is None:
        pytest.skip("not a git checkout: no commit to name")
    assert len(source["commit"]) == 40
    assert "published.csv" in source["files"]
    json.dumps(source)
