"""The examples print what examples/README.md says."""

import doctest
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]
ROOT = Path(__file__).resolve().parents[2]
LONG = ("torch_elastic", "torch_characters", "jax_digits")  # each of them is slow
COMMANDS = [
    block.split("```")[0].split("\n", 1)
    for block in (ROOT / "examples" / "README.md").read_text().split("$ kf ")[1:]
]


def _case(command: str, printed: str) -> object:
    marks = [pytest.mark.slow] if any(name in command for name in LONG) else []
    return pytest.param(command, printed, id=command, marks=marks)


@pytest.mark.parametrize(("command", "printed"), [_case(*each) for each in COMMANDS])
def test_prints_what_the_document_says(command, printed) -> None:
    if "jax" in command:
        pytest.importorskip("jax")
    arguments = [sys.executable if a == "python" else a for a in shlex.split(command)]
    done = subprocess.run(
        [sys.executable, "-m", "kfcore", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert doctest.OutputChecker().check_output(printed, done.stdout, doctest.ELLIPSIS), (
        done.stdout
    )
