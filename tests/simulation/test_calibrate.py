"""Calibration finds the constants that made the rows; the ladder's smallest rungs hold."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kfcore.errors import UsageError
from kfsim.calibrate import Point, calibrate, read_table
from kfsim.fidelity import case_names, report, run_case
from kfsim.scenario import parse
from kfsim.simulation import simulate

UNIT = "samples_per_s"
RAW = {
    "cluster": {"hosts": 4, "nic_gbps": 10.0},
    "workload": {"model": "resnet50", "samples_per_s": 250.0, "local_batch": 64},
    "system": {"kind": "bsp"},
}


def rate(**values: float) -> float:
    keys = {key.replace("__", "."): value for key, value in values.items()}
    return float(
        simulate(parse(RAW).with_values({"run.steps": 2, **keys})).summary[
            "throughput_samples_per_s"
        ]
    )


def test_a_constant_is_found_from_one_row_and_predicts_another():
    true = {"system__path_gbps": 3.3}
    points = [
        Point("", True, UNIT, rate(cluster__hosts=4, **true), {"cluster.hosts": 4}, 2),
        Point("", False, UNIT, rate(cluster__hosts=9, **true), {"cluster.hosts": 9}, 3),
    ]
    fit = calibrate(parse(RAW), points, {"system.path_gbps": (1.0, 10.0)})
    assert fit.constants[""]["system.path_gbps"] == pytest.approx(3.3, rel=1e-3)
    assert fit.errors(fitted=False)[0] < 1e-3
    assert len(fit.errors(fitted=True)) == 1


def test_groups_have_constants_of_their_own():
    points = [
        Point(name, True, "samples_per_s", rate(system__path_gbps=gbps), {}, 2)
        for name, gbps in (("slow", 2.0), ("fast", 8.0))
    ]
    fit = calibrate(parse(RAW), points, {"system.path_gbps": (1.0, 10.0)})
    found = {name: fit.constants[name]["system.path_gbps"] for name in ("slow", "fast")}
    assert found == {"slow": pytest.approx(2.0, rel=1e-3), "fast": pytest.approx(8.0, rel=1e-3)}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("samples_per_s,use\n10,fit\n0,predict\n", "line 3: samples_per_s must be > 0"),
        ("samples_per_s,use\n10,guess\n", "line 2: use must be fit or predict"),
        ("# note\nuse\nfit\n", "line 3: give one of samples_per_s or step_s"),
        ("samples_per_s,use\n10\n", "line 2: must have as many cells"),
        ("samples_per_s,use\n10,predict\n", "no row says use = fit"),
        ("samples_per_s,use\nnan,fit\n", "must be > 0"),
    ],
)
def test_a_bad_table_is_refused_with_its_line(tmp_path, text, complaint):
    file = tmp_path / "t.csv"
    file.write_text(text)
    with pytest.raises(UsageError, match=complaint):
        read_table(file)


def test_a_key_needs_a_row_and_a_range():
    point = Point("a", True, "samples_per_s", 100.0, {}, 2)
    with pytest.raises(UsageError, match="1 rows to fit 2 keys"):
        calibrate(parse(RAW), [point], {"system.path_gbps": (1, 2), "system.op_us": (1, 2)})
    with pytest.raises(UsageError, match="LOW:HIGH"):
        calibrate(parse(RAW), [point], {"system.path_gbps": (2, 1)})


def test_the_command_reports_fitted_and_predicted_rows_apart(tmp_path):
    (tmp_path / "s.toml").write_text(
        "[cluster]\nhosts = 4\nnic_gbps = 10\n[workload]\nmodel = 'resnet50'\n"
        "samples_per_s = 250\nlocal_batch = 64\n[system]\nkind = 'bsp'\n"
    )
    (tmp_path / "t.csv").write_text(
        "use,cluster.hosts,samples_per_s\nfit,4,600\npredict,8,1120\n"
    )
    done = subprocess.run(
        [
            sys.executable, "-c", "from kfcore.cli import main; main()", "calibrate",
            str(tmp_path / "s.toml"), str(tmp_path / "t.csv"),
            "--fit", "system.path_gbps=0.2:10", "--json",
        ],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    rows = json.loads(done.stdout)["rows"]
    assert [row["use"] for row in rows] == ["fit", "predict"]
    assert abs(rows[0]["error"]) < 1e-3


@pytest.mark.parametrize(
    ("name", "limit"), [("pytorch_ddp", 0.08), ("dlperf", 0.08), ("kungfu_fig5", 0.10)]
)
def test_quick_rungs_of_the_ladder_are_within_their_bands(name, limit):
    case = run_case(name)
    assert case.median() <= limit
    assert case.title in report([case])
    right, total = case.order()
    assert right == total


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("azure_k80", 0.08),
        ("hkbu_all_reduce", 0.10),
        ("hkbu_servers", 0.10),
        ("horovod_readme", 0.10),
        ("kungfu_readme", 0.10),
        ("pollux_resnet50", 0.08),
        ("tf_benchmarks", 0.08),
    ],
)
def test_all_rungs_of_the_ladder_are_within_their_bands(name, limit):
    assert run_case(name).median() <= limit


def test_the_report_on_file_covers_every_case():
    page = (Path(__file__).resolve().parents[2] / "docs" / "fidelity.md").read_text()
    for name in case_names():
        assert f'<a id="{name}"></a>' in page


def test_a_row_may_be_one_step_of_the_scenarios_own_run(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("use,step,step_s\nfit,1,0.5\npredict,3,0.5\n")
    slow = {"host": 1, "share": 0.25, "start_step": 3}
    scenario = parse({**RAW, "run": {"steps": 3}, "capacity": [slow]})
    found = calibrate(scenario, read_table(table), {"system.path_gbps": (0.2, 10.0)})
    first, third = found.outcomes
    assert first.error == pytest.approx(0.0, abs=1e-3)
    assert third.predicted > 1.2 * first.predicted


@pytest.mark.parametrize(("step", "complaint"), [("0", "step must be"), ("4", "run.steps")])
def test_a_step_that_is_not_run_is_refused(tmp_path, step, complaint):
    table = tmp_path / "t.csv"
    table.write_text(f"use,step,step_s\nfit,{step},0.5\n")
    scenario = parse({**RAW, "run": {"steps": 3}})
    with pytest.raises(UsageError, match=complaint):
        calibrate(scenario, read_table(table), {"system.path_gbps": (0.2, 10.0)})
