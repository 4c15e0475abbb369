"""A schedule written out is the same schedule: any of them can be agreed on as text."""

import numpy as np
import pytest
from schedule_cases import CASES, spec_of

from kfcore import inproc_world
from kfcore import schedule as ks
from kfcore.errors import UsageError

SWAP = """{"format": "kf-schedule/1", "name": "mine", "collective": "all_reduce",
 "world_size": 2, "root": 0, "chunk_count": 1, "channels": [[[
  {"src": 0, "dst": 1, "chunk_begin": 0, "chunk_count": 1, "combine": "reduce"},
  {"src": 1, "dst": 0, "chunk_begin": 0, "chunk_count": 1, "combine": "reduce"}]]]}"""


@pytest.mark.parametrize(("label", "collective"), CASES)
def test_written_out_schedule_builds_the_same_transfers(label: str, collective: str) -> None:
    for n in (1, 2, 3, 5, 8, 13):
        built = ks.build(spec_of(label, n), n, collective, n - 1)
        text = ks._native.custom_spec(built)
        again = ks.build(text, n, collective, n - 1)
        assert again.name == text
        assert again.channels == built.channels
        assert again.chunk_count == built.chunk_count
        assert ks.collectives(text) == (collective,)


def test_own_schedule_runs_on_every_rank() -> None:
    mine = ks.from_json(SWAP)
    assert (
        ks.spec_of(mine)
        == "custom(collective=all_reduce,world_size=2,chunks=1,((0+1:0,1+0:0)))"
    )

    def work(session) -> list[float]:  # type: ignore[no-untyped-def]
        session.set_schedule(mine)
        total = session.all_reduce(np.full(3, session.rank + 1.0))
        session.barrier()  # has no schedule of its own: a stand-in is used
        return [*total, session.stats().messages_sent]

    for result in inproc_world(2, work):
        assert result[:3] == [3.0, 3.0, 3.0]
        assert result[3] == 2


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("custom(world_size=2,((0+1:0)))", "rank 0"),  # rank 0 never hears of rank 1
        ("custom(world_size=3,((0+1:0,1+0:0)))", "over 3 ranks, wanted all_reduce over 2"),
        ("custom(collective=reduce,root=1,world_size=2,((0+1:0)))", "is for reduce"),
        ("custom(((0*1:0)))", "a transfer looks like"),
        ("custom(((0+1:0*2*3)))", "a transfer looks like"),
        ("custom((0+1:0))", "a round must stand in parentheses"),
        ("custom(0+1:0)", "a channel must stand in parentheses"),
        ("custom(((0+1:7,1+0:7)))", "chunk"),
        ("custom(turns=2,((0+1:0,1+0:0)))", "no argument"),
    ],
)
def test_wrong_written_schedule_is_refused(spec: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ks.build(spec, 2)
