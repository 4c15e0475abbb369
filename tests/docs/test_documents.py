"""Every example in the README and in docs/ runs.

* ```python blocks run top to bottom, one namespace a document.
* ```console blocks: each `$ command` runs with bash from the root of the repository and must
  exit with 0; lines below it are its expected output, compared as doctest does with ELLIPSIS.
* ```bash and ```text blocks are not run (they are for a fresh clone, or take minutes).
"""

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser

ROOT = Path(__file__).resolve().parents[2]
PATTERNS = ("*.md", "docs/**/*.md", "examples/*.md", "experiments/**/*.md")
DOCUMENTS = sorted(path for pattern in PATTERNS for path in ROOT.glob(pattern))
COMMAND_TIMEOUT_S = 90
BIN = Path(sys.executable).parent
# In a source tree that is not installed there is no `kf` command; the module does the same.
PRELUDE = "" if (BIN / "kf").exists() else f'kf() {{ {sys.executable} -m kfcore "$@"; }}\n'


def run_console(example: Example) -> None:
    environment = os.environ | {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "COLUMNS": "120",
        "NO_COLOR": "1",
    }
    for command, expected in commands(example.parsed):
        done = subprocess.run(
            ["bash", "-c", PRELUDE + command],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        if expected:
            flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            same = doctest.OutputChecker().check_output(expected, done.stdout, flags)
            assert same, f"{command}\nexpected:\n{expected}\ngot:\n{done.stdout}"


def commands(block: str) -> list[tuple[str, str]]:
    """Split a console block into (command, expected output) pairs."""
    pairs: list[tuple[str, str]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            pairs.append((line[2:], ""))
        elif pairs:
            command, expected = pairs[-1]
            pairs[-1] = (command, f"{expected}{line}\n")
    return pairs


@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_document_examples_run(path: Path) -> None:
    parsers = [PythonCodeBlockParser(), CodeBlockParser("console", run_console)]
    for example in Sybil(parsers=parsers).parse(path).examples():
        example.evaluate()


def test_a_wrong_console_example_is_caught() -> None:
    class Block:
        parsed = "$ echo one\ntwo\n"

    with pytest.raises(AssertionError, match="expected"):
        run_console(Block())  # type: ignore[arg-type]


def test_links_between_documents_lead_somewhere() -> None:
    checked = 0
    for path in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#\s]+)\)", path.read_text()):
            if "://" in target:
                continue
            checked += 1
            assert (path.parent / target).exists(), f"{path.relative_to(ROOT)} -> {target}"
    assert checked > 5
