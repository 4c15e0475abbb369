"""Replications: intervals, common draws, paired differences; rows that leave memory."""

import csv
import json
import math
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from kfcore.errors import UsageError
from kfsim import simulate
from kfsim.files import RunFiles
from kfsim.result import differences
from kfsim.scenario import parse
from kfsim.statistics import interval, paired, t_quantile
from kfsim.sweep import grid, run_sweep

RAW = {
    "run": {"steps": 6, "repeats": 5, "seed": 3},
    "cluster": {"hosts": 4, "nic_gbps": 8.0, "price_per_host_hour": 3.0},
    "workload": {
        "model": "mobilenet_v2",
        "samples_per_s": 100.0,
        "local_batch": 32,
        "jitter_sigma": 0.1,
    },
    "system": {"kind": "kf"},
}


def scenario(**values):
    return parse(RAW).with_values(
        {key.replace("__", "."): value for key, value in values.items()}
    )


@pytest.mark.parametrize(
    ("freedom", "published"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (30, 2.042), (1000, 1.962)],
)
def test_students_quantiles_are_those_of_the_tables(freedom, published):
    assert t_quantile(0.95, freedom) == pytest.approx(published, abs=5e-4)


def test_an_interval_covers_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(400):
        found = interval(rng.normal(7.0, 2.0, 5).tolist())
        hits += abs(found.mean - 7.0) <= found.half_width
    assert 0.92 <= hits / 400 <= 0.98  # 0.95 +- 2.7 of its own deviations
    assert math.isnan(interval([1.0]).half_width)
    assert not interval([1.0]).excludes_zero


def test_a_runs_intervals_are_those_of_its_repeats():
    result = simulate(scenario())
    rates = [one["throughput_samples_per_s"] for one in result.replications]
    assert len(set(rates)) == 5
    found = result.summary["intervals"]["throughput_samples_per_s"]
    assert found["mean"] == pytest.approx(np.mean(rates))
    assert found["half_width"] == pytest.approx(2.776445 * np.std(rates, ddof=1) / 5**0.5)
    one = simulate(scenario(run__repeats=1))
    assert one.summary["intervals"] == {}
    assert one.replications == result.replications[:1]  # more repeats leave the first alone


def test_pairs_on_the_same_draws_see_what_separate_means_cannot():
    """A network that is 2 % faster, under jitter of 10 %."""
    ours, theirs = simulate(scenario(cluster__nic_gbps=8.16)), simulate(scenario())
    name = "throughput_samples_per_s"
    found = differences(ours.replications, theirs.replications)[name]
    assert found.mean > 0
    assert found.excludes_zero
    assert found.half_width < 0.1 * theirs.summary["intervals"][name]["half_width"]
    other = simulate(scenario(run__seed=4, cluster__nic_gbps=8.16))  # draws of its own
    apart = paired(
        [one[name] for one in other.replications], [one[name] for one in theirs.replications]
    )
    assert not apart.excludes_zero


def test_computing_draws_are_common_to_all_systems():
    kinds = ("kf", "horovod", "ddp", "wfbp")
    seen = {
        tuple(row["compute_s"] for row in simulate(scenario(system__kind=kind)).rows)
        for kind in kinds
    }
    assert len(seen) == 1


def test_repeats_end_when_the_figure_is_precise_enough():
    many = {"run__repeats": 200}
    rough = simulate(scenario(run__precision=0.1, **many))
    fine = simulate(scenario(run__precision=0.01, **many))
    assert 3 <= len(rough.replications) < len(fine.replications) < 200
    found = fine.summary["intervals"]["throughput_samples_per_s"]
    assert found["half_width"] <= 0.01 * found["mean"]
    assert fine.summary["repeats"] == len(fine.replications)
    assert simulate(scenario(run__precision=0.01, **many)).rows == fine.rows


def test_a_sweep_gives_intervals_and_differences_to_its_first_point(tmp_path):
    points = grid({"cluster.nic_gbps": [8.0, 8.16]})
    path = run_sweep(scenario(), points, tmp_path / "a")
    with path.open() as file:
        rows = list(csv.DictReader(file))
    whole = simulate(scenario())
    width = whole.summary["intervals"]["step_s"]["half_width"]
    assert float(rows[0]["step_s_half_width_95"]) == width
    with (tmp_path / "a" / "differences.csv").open() as file:
        pairs = {row["figure"]: row for row in csv.DictReader(file)}
    step = pairs["step_s"]
    assert (step["point"], step["minus_point"], step["pairs"]) == ("1", "0", "5")
    assert float(step["mean_difference"]) < 0
    assert step["beyond_chance"] == "True"
    # resumed: the same bytes out of what was logged
    before = (tmp_path / "a" / "differences.csv").read_bytes()
    (tmp_path / "a" / "differences.csv").unlink()
    run_sweep(scenario(), points, tmp_path / "a")
    assert (tmp_path / "a" / "differences.csv").read_bytes() == before
    single = scenario(run__repeats=1)
    run_sweep(single, points, tmp_path / "b")
    assert not (tmp_path / "b" / "differences.csv").exists()


def test_the_command_prints_intervals_and_paired_differences(tmp_path):
    text = "\n".join(
        f"[{table}]\n" + "\n".join(f"{key} = {json.dumps(item)}" for key, item in keys.items())
        for table, keys in RAW.items()
    )
    (tmp_path / "a.toml").write_text(text)
    (tmp_path / "b.toml").write_text(text.replace("8.0", "8.16"))
    done = subprocess.run(
        [
            sys.executable, "-c", "from kfcore.cli import main; main()", "sim", "a.toml",
            "--against", "b.toml", "--replications", "4", "--json", "--out", "out",
        ],
        cwd=tmp_path, check=True, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    summary = json.loads(done.stdout)
    assert summary["repeats"] == 4
    assert summary["against"]["step_s"]["count"] == 4
    assert summary["against"]["step_s"]["mean"] > 0
    assert (tmp_path / "out" / "rows.csv").read_text().count("\n") == 1 + 4 * 6


def test_rows_and_events_that_are_handed_on_are_the_ones_that_are_kept(tmp_path):
    kept = simulate(scenario(), ["NameStragglers"])
    kept.write(tmp_path / "kept")
    with RunFiles(tmp_path / "streamed") as files:
        streamed = simulate(
            scenario(), ["NameStragglers"], on_row=files.row, on_event=files.event
        )
        files.summary(streamed.summary)
    assert streamed.rows == streamed.events == ()
    for name in ("rows.csv", "events.jsonl", "summary.json"):
        ours = (tmp_path / "streamed" / name).read_bytes()
        assert ours == (tmp_path / "kept" / name).read_bytes()


def peak_bytes(steps, folder):
    one = scenario(run__repeats=1, run__steps=steps, workload__jitter_sigma=0.0)
    with RunFiles(folder) as files:
        tracemalloc.start()
        simulate(one, ["NameStragglers"], on_row=files.row, on_event=files.event)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


def test_memory_depends_on_the_live_state_not_on_the_steps(tmp_path):
    """P4, of one job."""
    peak_bytes(10, tmp_path)  # what is loaded once
    # CPython itself keeps up to 2,000 small tuples for the next use; 900 rows are 2 MB
    assert peak_bytes(1000, tmp_path) < 1.2 * peak_bytes(100, tmp_path) + 256_000


def test_parquet_without_its_package_is_refused_and_with_it_holds_the_rows(tmp_path):
    try:
        from pyarrow import parquet
    except ImportError:
        with pytest.raises(UsageError, match="pip install pyarrow"):
            RunFiles(tmp_path, parquet=True)
        return
    with RunFiles(tmp_path, parquet=True) as files:
        simulate(scenario(), on_row=files.row, on_event=files.event)
    table = parquet.read_table(tmp_path / "rows.parquet")
    assert table.num_rows == 30
    assert table.column("step").to_pylist()[:6] == [1, 2, 3, 4, 5, 6]
