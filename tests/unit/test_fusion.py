"""Grouped calls: how many messages, in which buckets, and the same bits every time."""

import threading
import time

import numpy as np
import pytest
import torch
from worlds import run_world

from kfcore import inproc_world
from kfcore.errors import UsageError


def test_small_tensors_travel_together():
    """2000 tensors of 64 floats: one operation instead of 2000."""

    def work(session):
        tensors = [np.full(64, session.rank + i, np.float32) for i in range(2000)]
        session.grouped_all_reduce(tensors)
        assert all((t == 2 * i + 1).all() for i, t in enumerate(tensors))
        together = session.stats()
        for tensor in tensors[:100]:
            session.all_reduce(tensor)
        apart = session.stats()
        return together, apart

    for together, apart in inproc_world(2, work):
        assert together.operations == 1
        assert together.bytes_sent == 2000 * 64 * 4
        assert (apart.messages_sent - together.messages_sent) / 100 == 2
        assert together.messages_sent < 2000 * 2 / 500


@pytest.mark.parametrize(
    ("fusion_bytes", "operations"), [(8, 4), (16, 3), (24, 3), (40, 2), (10**9, 1)]
)
def test_buckets_follow_the_order_of_the_list_and_the_bound(fusion_bytes, operations):
    def work(session):
        arrays = [np.ones(n) for n in (1, 1, 3, 0, 2)]
        ops = ["sum", "max", "sum", "sum", "avg"]
        got = session.grouped_all_reduce(arrays, ops, fusion_bytes=fusion_bytes, name="g")
        assert got is arrays
        assert [a.tolist() for a in arrays] == [[2], [1], [2, 2, 2], [], [1, 1]]
        return session.stats().operations

    # an empty array fits into any bucket; one that is larger than the bound has its own
    assert inproc_world(2, work) == [operations] * 2


def test_an_empty_group_is_still_a_meeting_point():
    def work(session):
        assert session.grouped_all_reduce([]) == []
        with pytest.raises(UsageError, match="fusion_bytes"):
            session.grouped_all_reduce([np.ones(1)], fusion_bytes=0)
        with pytest.raises(UsageError, match="one op for each"):
            session.grouped_all_reduce([np.ones(1)] * 9, ["sum"], fusion_bytes=8)
        session.barrier()

    inproc_world(2, work)


@pytest.mark.parametrize("transport", ["inproc", "tcp", "shm"])
def test_results_are_the_same_bits_from_run_to_run_and_on_all_ranks(transport):
    random = np.random.default_rng(3)
    sizes = random.integers(1, 3000, 30)
    data = [[random.standard_normal(s).astype(np.float32) for s in sizes] for _ in range(4)]

    def run(seed):
        def work(session):
            delays = np.random.default_rng([seed, session.rank])
            arrays = [a.copy() for a in data[session.rank]]
            handles = []
            for begin in range(0, 30, 10):
                time.sleep(delays.uniform(0, 0.01))
                handles.append(
                    session.grouped_all_reduce(
                        arrays[begin : begin + 10], fusion_bytes=16_384, async_op=True
                    )
                )
            for handle in handles:
                handle.wait()
            return b"".join(a.tobytes() for a in arrays)

        return run_world(transport, 4, work)

    assert len({result for seed in range(5) for result in run(seed)}) == 1


@pytest.mark.parametrize("order", [list, tuple])
def test_the_short_way_and_the_long_way_give_the_same(order):
    """A plain list of plain arrays takes the short way through the bindings."""

    def work(session):
        arrays = order(
            [
                np.ones(3),
                torch.ones(4, dtype=torch.float16),
                np.zeros((0, 2)),
                np.arange(6, dtype=np.int8).reshape(2, 3),
                np.array(True),
                np.ones((3, 3), np.complex64).T,
            ]
        )
        assert session.grouped_all_reduce(arrays) is arrays
        assert [np.asarray(a).sum() for a in arrays] == [6, 8, 0, 30, 1, 18]
        return session.stats().operations

    assert inproc_world(2, work) == [1, 1]


def test_a_list_may_change_while_it_is_reduced():
    def work(session):
        arrays = [np.ones(100_000) for _ in range(4)]
        seen = list(arrays)
        if session.rank == 0:
            changer = threading.Timer(0.05, arrays.clear)
            changer.start()
            session.grouped_all_reduce(arrays)
            changer.join()
        else:
            time.sleep(0.2)
            session.grouped_all_reduce(arrays)
        assert all((a == 2).all() for a in seen)

    inproc_world(2, work)
