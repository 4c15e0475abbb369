"""``kf experiment`` on a complete small experiment in a temporary repository."""

import json
import os
import subprocess
import sys
import textwrap
import traceback
from dataclasses import dataclass
from pathlib import Path

import pytest

from experiments._shared import catalog
from kfcore.cli import main
from kfcore.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
RUN = '''
"""Squares, slowly."""
import os
from experiments._shared.record import RowWriter

def run(out, seed, quick, progress):
    total = 2 if quick else 4
    with open(out.parent / "measured", "a") as log:
        with RowWriter(out / "rows.csv", ["n", "square", "seed"], key=["n"]) as rows:
            for n in range(total):
                progress(n, total, f"n = {n}")
                if rows.has(n=n):
                    continue
                if n == 2 and os.environ.get("FAIL_AT_2"):
                    raise RuntimeError("interrupted")
                log.write(f"{n}\\n")
                rows.add(n=n, square=n * n, seed=seed)
    return {"repeats": 1}
'''
PLOT = '''
"""Draws the squares."""
from experiments._shared.record import read_rows
from experiments._shared.style import axis_labels, new_figure, save, series_style

def plot(rows_path, out):
    rows = read_rows(rows_path)
    figure, [axes] = new_figure()
    axes.plot([r["n"] for r in rows], [r["square"] for r in rows], **series_style("kf"))
    axis_labels(axes, "n", "square of n", better="higher")
    return save(figure, out / "figure")

def table(rows_path):
    return [{"n": r["n"], "square": r["square"]} for r in read_rows(rows_path)]
'''


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "experiments" / "e07_squares"
    folder.mkdir(parents=True)
    (folder / "README.md").write_text("# How fast do squares grow?\n\nHypothesis: fast.\n")
    (folder / "run.py").write_text(textwrap.dedent(RUN))
    (folder / "plot.py").write_text(textwrap.dedent(PLOT))
    return tmp_path


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def kf(repository, monkeypatch, capsys):
    """The command, run in this process from inside the small repository."""

    def run(*args, **env):
        capsys.readouterr()
        arguments = ["experiment", *args]
        with monkeypatch.context() as patch:
            patch.chdir(repository)
            patch.setattr(sys, "argv", ["kf", *arguments])
            for name, value in env.items():
                patch.setenv(name, value)
            try:
                main(arguments)
                code = 0
            except SystemExit as stop:
                code = stop.code or 0
            except RuntimeError:
                traceback.print_exc()
                code = 1
        said = capsys.readouterr()
        return Done(code, said.out, said.err)

    return run


def test_the_command_runs_as_a_process_of_its_own(repository):
    done = subprocess.run(
        [sys.executable, "-m", "kfcore", "experiment", "list"],
        cwd=repository,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout == "e07_squares  How fast do squares grow?\n", done.stderr


def manifest(repository):
    return json.loads((repository / "out/results/e07_squares/manifest.json").read_text())


def test_list_shows_names_and_questions(kf, repository):
    result = kf("list")
    assert result.stdout == "e07_squares  How fast do squares grow?\n"
    with (repository / "experiments/e07_squares/README.md").open("a") as file:
        file.write("\nWorlds: simulated\n")
    [entry] = json.loads(kf("list", "--json").stdout)
    assert entry["name"] == "e07_squares"
    assert entry["worlds"] == "simulated"


def test_run_writes_rows_manifest_figures_and_a_table(kf, repository):
    result = kf("run", "e07_squares", "--quick", "--seed", "5")
    assert result.returncode == 0, result.stderr
    folder = repository / "out/results/e07_squares"
    assert (folder / "rows.csv").read_text() == "n,square,seed\n0,0,5\n1,1,5\n"
    assert "How fast do squares grow?" in result.stdout
    assert "out/results/e07_squares/figure.png" in result.stdout
    assert (folder / "figure.pdf").read_bytes().startswith(b"%PDF")
    assert (folder / "table.md").read_text().splitlines()[-1] == "| 1 | 1 |"
    fields = manifest(repository)
    assert fields["finished"] is True
    assert fields["command"][-4:] == ["e07_squares", "--quick", "--seed", "5"]
    assert (fields["seed"], fields["quick"], fields["rows"]) == (5, True, 2)
    assert fields["parameters"] == {"repeats": 1}
    assert set(fields["source"]["files"]) == {"README.md", "plot.py", "run.py"}
    assert len(fields["load_before"]) == len(fields["load_after"]) == 3
    documented = (ROOT / "results/SCHEMA.md").read_text()
    assert [name for name in fields if f"`{name}" not in documented] == []
    assert fields["key"] == ["n"]
    assert set(fields["threads"]) > {"OMP_NUM_THREADS"}


def test_interrupted_run_continues_and_complete_run_is_kept(kf, repository):
    first = kf("run", "e07", FAIL_AT_2="1")
    assert first.returncode == 1
    assert manifest(repository)["finished"] is False
    second = kf("run", "e07", "--json")
    assert second.returncode == 0, second.stderr
    third = kf("run", "e07")
    assert "kept from before" in third.stdout
    assert (repository / "out/results/measured").read_text().split() == ["0", "1", "2", "3"]
    assert manifest(repository)["sittings"] == 2
    [summary] = json.loads(second.stdout)
    assert summary["rows"] == 4
    assert summary["table"][3] == {"n": 3, "square": 9}


def test_run_all_goes_on_after_a_failure_and_says_so(kf, repository):
    other = repository / "experiments" / "e08_broken"
    other.mkdir()
    (other / "README.md").write_text("# Does it run?\n")
    (other / "run.py").write_text("def run(*args):\n    raise RuntimeError('no')\n")
    (other / "plot.py").write_text("def plot(*args):\n    return []\n")
    (repository / "experiments" / "e06_first").symlink_to(other)
    result = kf("run", "all", "--quick")
    assert result.returncode == 1
    assert result.stderr.count("RuntimeError: no") == 2
    assert "failed: e06_first: no" in result.stderr
    assert manifest(repository)["finished"] is True


def test_run_all_leaves_out_what_this_machine_cannot_run(kf, repository):
    other = repository / "experiments" / "e06_rooted"
    other.mkdir()
    (other / "README.md").write_text("# Does it need root?\n")
    (other / "run.py").write_text(
        "from experiments._shared.runner import NotHere\n"
        "def run(*args):\n    raise NotHere('needs root')\n"
    )
    (other / "plot.py").write_text("def plot(*args):\n    return []\n")
    result = kf("run", "all", "--quick")
    assert result.returncode == 0, result.stderr
    assert "left out: e06_rooted: needs root" in result.stderr
    assert not (repository / "out/results/e06_rooted").exists()
    assert manifest(repository)["finished"] is True
    alone = kf("run", "e06")
    assert alone.returncode == 2
    assert "needs root" in alone.stderr


def test_manifest_names_no_path_of_this_machine(kf, repository, tmp_path):
    out = tmp_path / "elsewhere"
    kf("run", "e07", "--quick", "--out", str(out))
    text = (out / "e07_squares" / "manifest.json").read_text()
    assert str(tmp_path) not in text
    assert json.loads(text)["command"][-2:] == ["--out", "elsewhere"]


def test_compare_finds_what_differs_beyond_its_spread(kf, repository):
    for seed in ("1", "2"):
        kf("run", "e07", "--quick", "--seed", seed, "--out", f"out/{seed}")
    same = kf("compare", "out/1", "out/1", "--check")
    assert same.returncode == 0, same.stderr
    assert "4 of 4 numbers are the same" in same.stdout
    differs = kf("compare", "out/1", "out/2", "--check")
    assert differs.returncode == 1
    assert "2 of 4 numbers are the same" in differs.stdout  # squares agree, seeds do not
    found = json.loads(kf("compare", "out/1", "out/2", "--json").stdout)
    verdicts = {(d["where"], d["column"]): d["verdict"] for d in found["e07_squares"]}
    assert verdicts["n=1", "square"] == "same"
    assert verdicts["n=1", "seed"] == "differs"


def test_report_shows_origin_table_and_figure(kf, repository):
    kf("run", "e07", "--quick")
    result = kf("report")
    assert result.stdout.strip() == "out/results/report.md"
    page = (repository / "out/results/report.md").read_text()
    assert "How fast do squares grow?" in page
    assert "2 rows, quick size, 1 repeats, seed 1" in page
    assert "| 1 | 1 |" in page
    assert "(e07_squares/figure.png)" in page


def test_rows_of_another_version_are_discarded(kf, repository):
    kf("run", "e07", "--quick", "--no-plot")
    with (repository / "experiments/e07_squares/run.py").open("a") as file:
        file.write("\n# changed\n")
    kf("run", "e07", "--quick", "--no-plot")
    assert (repository / "out/results/measured").read_text().split() == ["0", "1", "0", "1"]


def test_foreign_files_are_never_overwritten(kf, repository):
    folder = repository / "out/results/e07_squares"
    folder.mkdir(parents=True)
    (folder / "rows.csv").write_text("mine\n")
    result = kf("run", "e07")
    assert result.returncode == 2
    assert "holds files but no manifest" in result.stderr
    assert (folder / "rows.csv").read_text() == "mine\n"


def test_plot_draws_again_from_rows_alone(kf, repository):
    kf("run", "e07", "--quick", "--no-plot")
    folder = repository / "out/results/e07_squares"
    assert not (folder / "figure.png").exists()
    assert kf("plot", "e07").returncode == 0
    first = (folder / "figure.png").read_bytes()
    assert kf("plot", "e07").returncode == 0
    assert (folder / "figure.png").read_bytes() == first


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("run", "e99"), "no experiment 'e99'; there are: e07_squares"),
        (("plot", "e07"), "run 'kf experiment run e07_squares"),
        (("run", "e07", "--seed", "-1"), "seed must be >= 0, got -1"),
        (("compare", "no", "no"), "no results in no: expected <experiment>/manifest.json"),
        (("report",), "no results in out/results"),
    ],
)
def test_wrong_use_exits_2_with_a_message(kf, args, message):
    result = kf(*args)
    assert result.returncode == 2
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


def test_experiment_without_its_parts_is_refused_by_name(repository):
    folder = repository / "experiments/e07_squares"
    (folder / "run.py").write_text("def ran(): pass\n")
    with pytest.raises(UsageError, match=r"run\.py must define the function run\(\)"):
        catalog.find("e07", repository).module("run")
    (folder / "plot.py").unlink()
    with pytest.raises(UsageError, match=r"e07_squares has no plot\.py"):
        catalog.find("e07", repository).module("plot")
    (folder / "README.md").write_text("\n")
    with pytest.raises(UsageError, match=r"README\.md:1: the first line must be"):
        catalog.discover(repository)


def test_experiments_of_this_repository_are_well_formed():
    for experiment in catalog.discover(ROOT):
        assert experiment.question.endswith("?")
        experiment.module("run")
        experiment.module("plot")
