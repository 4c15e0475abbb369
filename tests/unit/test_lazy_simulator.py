"""Naming the simulator costs nothing; its parts are loaded when they are used."""

import subprocess
import sys

import pytest

import kfsim


def test_import_loads_no_arrays_and_no_clock():
    code = "import sys, kfsim; print([m for m in ('numpy', 'simpy') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    "first", ["kfsim.simulation", "kfsim.scenario", "kfsim.result", "kfsim.sweep"]
)
def test_names_are_the_same_whatever_part_came_first(first):
    code = (
        f"import importlib, kfsim; importlib.import_module({first!r}); "
        "print([callable(getattr(kfsim, name)) for name in kfsim.__all__])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert done.stdout == f"{[True] * len(kfsim.__all__)}\n"


def test_a_name_that_is_not_there_is_refused():
    with pytest.raises(AttributeError, match="kfsim"):
        _ = kfsim.nothing  # type: ignore[attr-defined]
