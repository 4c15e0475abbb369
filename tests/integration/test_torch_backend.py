"""``torch.distributed`` over the back end kf, on real processes."""

import re

import pytest
from torch_runs import PROGRAMS, ROOT, run_ranks

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]
NAMES = re.findall(
    r"^@check\ndef (\w+)",
    "\n".join(file.read_text() for file in sorted(PROGRAMS.glob("backend*.py"))),
    flags=re.MULTILINE,
)


@pytest.fixture(scope="module")
def three_ranks(tmp_path_factory):
    return run_ranks("backend.py", tmp_path_factory.mktemp("kf"), 3)


@pytest.mark.parametrize("name", NAMES)
def test_over_three_ranks(name, three_ranks) -> None:
    assert [rank.get(name, "not reached") for rank in three_ranks] == ["ok"] * 3


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_under_torchrun(workers, tmp_path) -> None:
    ranks = run_ranks("backend.py", tmp_path, workers, torchrun=True)
    for rank in ranks:
        assert {name: text for name, text in rank.items() if text != "ok"} == {}
        assert sorted(rank) == sorted(NAMES)


def test_failures_reach_the_program(tmp_path) -> None:
    first, second = run_ranks("failures.py", tmp_path, 2, torchrun=True)
    for rank, size in ((first, 4), (second, 2)):
        assert rank["shapes"].startswith("MismatchError")
        assert "float32[4]" in rank["shapes"]
        assert "float32[2]" in rank["shapes"]
        assert rank["untouched"] == [1.0] * size
        assert "RuntimeError" in rank["future"].split(":")[0]
        assert "int32[3]" in rank["future"]
        assert rank["is_mismatch"]
        assert rank["success"] is False
    assert "RuntimeError" in first["backward"].split(":")[0]
    assert "rank 1" in first["backward"]
    assert first["afterwards"].startswith("PeerLostError")
    assert "RuntimeError" in first["afterwards"].split(":")[0]


def test_every_check_is_in_the_table_of_what_works() -> None:
    table = (ROOT / "docs" / "compatibility.md").read_text()
    assert [name for name in NAMES if f"`{name}`" not in table] == []
