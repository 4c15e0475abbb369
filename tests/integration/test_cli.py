"""The command line's root: help without heavy imports, errors as messages and exit codes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kfcore.cli.root import COMMANDS
from kfcore.errors import PeerLostError, UsageError
from kfcore.launch.policies import check_policy

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "simpy", "matplotlib", "scipy", "kfsim", "sklearn")


def kf(*args, **env):
    return subprocess.run(
        [sys.executable, "-m", "kfcore", *args],
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_help_lists_every_command_in_one_line_each():
    result = kf("--help")
    assert result.returncode == 0
    for name, line in COMMANDS.items():
        assert f"  {name}" in result.stdout
        assert line in result.stdout


def test_help_imports_nothing_heavy():
    code = (
        "import sys, kfcore.cli\n"
        "try: kfcore.cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert result.stdout.splitlines()[-1] == "[]"


def test_every_command_lies_in_a_file_of_its_name():
    helpers = {"__init__", "root", "experiment_output", "sim_replay", "worker_options"}
    files = {path.stem for path in (ROOT / "kfcore/cli").glob("*.py")}
    assert files - helpers == set(COMMANDS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_loads_and_explains_itself(name):
    result = kf(name, "--help")
    assert result.returncode == 0, result.stderr
    assert f"Usage: kf {name}" in result.stdout
    assert "--install-completion" not in result.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("rum",), "No such command 'rum'. Did you mean 'run'?"),
        (("run",), "Missing argument"),
        (
            ("run", "-n", "0", "x.py"),
            "kf: error: number of workers must be in [1, 8192], got 0",
        ),
        (("run", "gone.py"), "kf: error: no such file: 'gone.py'"),
        (("run", "--policy", "gone.py:P", "x.py"), "kf: error: "),
        (("run", "--log-lir", "x"), "No such option"),
    ],
)
def test_wrong_use_exits_2_with_a_message_and_no_traceback(args, message):
    result = kf(*args)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_debug_shows_the_traceback_as_well():
    result = kf("--debug", "run", "-n", "0", "x.py")
    assert result.returncode == 2
    assert "Traceback" in result.stderr


@pytest.mark.parametrize(("error", "code"), [(PeerLostError, 1), (UsageError, 2)])
def test_library_errors_become_exit_codes(monkeypatch, capsys, error, code):
    from kfcore.cli import root, run

    def fail(*args, **kwargs):
        raise error("rank 2 is gone")

    monkeypatch.setattr(run, "launch", fail)
    with pytest.raises(SystemExit) as exit_info:
        root.main(["run", "x.py"])
    assert exit_info.value.code == code
    assert capsys.readouterr().err == "kf: error: rank 2 is gone\n"


def test_version_and_no_arguments_help():
    assert kf("--version").stdout.startswith("kf")
    assert "Commands:" in kf().stdout + kf().stderr


def test_policy_files_become_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("p.py").write_text("import kfcore as kf\nclass P(kf.Policy):\n    pass\n")
    assert check_policy("p.py:P") == f"{tmp_path}/p.py:P"
    assert check_policy("p.py") == f"{tmp_path}/p.py"
    assert check_policy("NoiseScaleBatch(cap=64)") == "NoiseScaleBatch(cap=64)"


@pytest.mark.parametrize(
    ("text", "entry", "message"),
    [
        ("class P: pass", "p.py:R", "R"),
        ("class P(:", "p.py:P", r"p\.py"),
        ("", "gone.py:P", r"gone\.py"),
        ("", "NoSuchPolicy", "NoSuchPolicy"),
        ("", "NoiseScaleBatch(size=1)", "size"),
    ],
)
def test_bad_policy_entries_are_refused_before_the_start(
    tmp_path, monkeypatch, text, entry, message
):
    monkeypatch.chdir(tmp_path)
    Path("p.py").write_text(text)
    with pytest.raises(UsageError, match=message):
        check_policy(entry)


def test_output_that_cannot_be_written_is_one_line_and_a_failure():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kfcore", "schedule", "cost", "ring", "--world-size", "4",
             "--bytes", "8"],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "kf: error: [Errno 28] No space left on device\n"
