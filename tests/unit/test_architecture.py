"""Include directions of the C++ core and where Python is known: layers point one way."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "native"

# Folder of native/src -> folders whose private headers it may include.
ALLOWED = {
    "schedule": {"schedule"},
    "transport": {"transport"},
    "replay": {"replay", "schedule"},
    "executor": {"executor", "schedule", "transport"},
    "session": {"session", "executor", "schedule", "transport"},
    "monitor": {"monitor", "executor"},
    "adapt": {"adapt", "monitor"},
}
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def sources(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.suffix in {".cc", ".h"})


def test_every_source_folder_has_a_rule() -> None:
    folders = {p.name for p in (NATIVE / "src").iterdir() if p.is_dir()}
    assert folders <= set(ALLOWED)


@pytest.mark.parametrize("folder", sorted(ALLOWED))
def test_private_headers_are_included_downwards_only(folder: str) -> None:
    for path in sources(NATIVE / "src" / folder):
        for include in INCLUDE.findall(path.read_text()):
            if include.startswith("kf/"):
                continue
            # Private headers are named from native/src ("executor/combine.h") or lie beside.
            owner = include.split("/")[0] if "/" in include else folder
            assert owner in ALLOWED[folder], f"{path.relative_to(ROOT)} includes {include}"


def test_only_the_bindings_know_python() -> None:
    for path in (p for name in ("src", "include", "tests") for p in sources(NATIVE / name)):
        text = path.read_text()
        assert "nanobind" not in text, path
        assert "Python.h" not in text, path


def test_the_core_reads_no_environment() -> None:
    for path in sources(NATIVE / "src"):
        assert "getenv" not in path.read_text(), path


def test_only_config_reads_the_environment() -> None:
    readers = {
        str(path.relative_to(ROOT))
        for package in ("kfcore", "kfsim")
        for path in (ROOT / package).rglob("*.py")
        if re.search(r"os\.environ|os\.getenv|getenv\(", path.read_text())
    }
    # the stub runs on another host, alone, with the standard library only; the worker runs
    # under another system's Python, where this package is not
    assert readers <= {
        "kfcore/config.py",
        "kfcore/launch/stub.py",
        "kfcore/compare/worker.py",
    }
