"""Optimizers over several workers, on real processes."""

import re

import pytest
from torch_runs import PROGRAMS, run_ranks

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]
NAMES = re.findall(
    r"^@check\ndef (\w+)", (PROGRAMS / "wrappers.py").read_text(), flags=re.MULTILINE
)


@pytest.fixture(scope="module")
def four_ranks(tmp_path_factory):
    return run_ranks("wrappers.py", tmp_path_factory.mktemp("kf"), 4)


@pytest.mark.parametrize("name", NAMES)
def test_over_four_ranks(name, four_ranks) -> None:
    assert [rank.get(name, "not reached") for rank in four_ranks] == ["ok"] * 4


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_over_other_worlds(workers, tmp_path) -> None:
    for rank in run_ranks("wrappers.py", tmp_path, workers, torchrun=True):
        assert {name: text for name, text in rank.items() if text != "ok"} == {}
        assert sorted(rank) == sorted(NAMES)
