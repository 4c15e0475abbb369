"""Two operations under way never work on the same memory."""

import threading

import numpy as np
import pytest
from worlds import TRANSPORTS, run_world

from kfcore import inproc_world
from kfcore.errors import UsageError


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_overlapping_arrays_are_refused_and_the_error_names_both(transport):
    checked = threading.Event()

    def work(session):
        if session.rank == 1:
            assert checked.wait(60)
        array = np.full(100, session.rank + 1.0)
        handle = session.all_reduce(array, name="first", async_op=True)
        if session.rank == 0:
            for call in (
                lambda: session.all_reduce(array[50:], name="second", async_op=True),
                lambda: session.all_reduce(array[:1], name="second"),
                lambda: session.broadcast(array, 1, name="second", async_op=True),
                lambda: session.grouped_all_reduce([np.zeros(3), array[7:9]], name="second"),
                lambda: session.recv(array[3:4], 1),
                lambda: session.send(array[3:4], 1),
            ):
                with pytest.raises(UsageError, match="still under way") as caught:
                    call()
                assert 'all_reduce "first" float64[100]:sum' in str(caught.value)
                assert "rank 0" in str(caught.value)
            checked.set()
        handle.wait()
        assert array.tolist() == [3.0] * 100
        # done: the memory is free again, and the session was not harmed
        session.all_reduce(array, name="second")
        assert array[0] == 6.0

    run_world(transport, 2, work, timeout_s=90)


def test_reading_the_same_memory_twice_and_neighbours_are_fine():
    def work(session):
        n, rank = session.world_size, session.rank
        mine = np.full(70_000, float(rank))
        got = [np.empty(70_000) for _ in range(n)]
        handles = [session.send(mine, peer, async_op=True) for peer in range(n) if peer != rank]
        handles += [
            session.recv(got[peer], peer, async_op=True) for peer in range(n) if peer != rank
        ]
        handles += [session.broadcast(mine if rank == 0 else got[rank], 0, async_op=True)]
        halves = np.ones((2, 5000))
        handles += [session.all_reduce(half, async_op=True) for half in halves]
        for handle in handles:
            handle.wait()
        assert [got[peer][-1] for peer in range(n) if peer != rank] == [
            float(peer) for peer in range(n) if peer != rank
        ]
        assert (halves == n).all()

    inproc_world(3, work, timeout_s=90)


def test_many_calls_at_once_are_told_apart():
    def work(session):
        arrays = np.ones((500, 8))
        handles = [session.all_reduce(row, async_op=True) for row in arrays]
        for handle in handles:
            handle.wait()
        assert (arrays == 2).all()

    inproc_world(2, work, timeout_s=90)
