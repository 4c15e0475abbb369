"""What the packages promise: short public name lists, docstrings, a stub that cannot drift."""

import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import kfcore
import kfsim

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (kfcore, kfsim)


def modules() -> Iterator[ModuleType]:
    for package in PACKAGES:
        yield package
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if info.name.endswith(("__main__", "_native")):
                continue
            yield importlib.import_module(info.name)


def public_callables(module: ModuleType) -> Iterator[tuple[str, object]]:
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
            continue
        if inspect.isclass(value):
            yield name, value
            for inner, member in vars(value).items():
                if not inner.startswith("_") and inspect.isfunction(member):
                    yield f"{name}.{inner}", member
        elif inspect.isfunction(value):
            yield name, value


def test_every_public_function_and_class_has_a_docstring() -> None:
    found = [
        (m.__name__, name, value) for m in modules() for name, value in public_callables(m)
    ]
    assert len(found) > 50
    missing = [f"{module}.{name}" for module, name, value in found if not inspect.getdoc(value)]
    assert not missing


@pytest.mark.parametrize("package", PACKAGES, ids=lambda p: p.__name__)
def test_public_name_lists_are_short_and_true(package: ModuleType) -> None:
    names = package.__all__
    assert len(names) == len(set(names))
    assert len(names) <= 40
    assert all(hasattr(package, name) for name in names)


def test_the_committed_stub_is_what_the_native_module_says(tmp_path: Path) -> None:
    stub = tmp_path / "_native.pyi"
    command = [
        sys.executable,
        "-m",
        "nanobind.stubgen",
        "-m",
        "kfcore._native",
        "-o",
        str(stub),
    ]
    subprocess.run(command, check=True, timeout=60, cwd=ROOT)
    committed = (ROOT / "kfcore" / "_native.pyi").read_text()
    assert committed == stub.read_text(), "run `make stub` and commit the result"


def test_importing_the_packages_loads_no_heavy_library() -> None:
    code = (
        "import sys, kfcore;"
        "heavy = {'torch', 'matplotlib', 'simpy', 'sklearn', 'pandas', 'scipy'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
