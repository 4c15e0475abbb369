"""Asynchronous calls: overlap, deadlines, what outlives what."""

import gc
import os
import threading
import time

import numpy as np
import pytest
from worlds import TRANSPORTS, run_world

from kfcore.errors import DeadlineError, MismatchError, UsageError
from kfcore.handle import Handle


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_calls_overlap_and_finish_while_nobody_waits(transport):
    def work(session):
        arrays = [np.full(200_000 >> i, 1.0 + session.rank) for i in range(8)]
        handles = [session.all_reduce(a, async_op=True) for a in arrays]
        assert all(isinstance(handle, Handle) for handle in handles)
        until = time.monotonic() + 10
        while not all(handle.done() for handle in handles):
            assert time.monotonic() < until
            time.sleep(0.001)
        for array, handle in zip(arrays, handles, strict=True):
            assert (array == 6.0).all()
            assert handle.wait() is array
            assert handle.result is array

    run_world(transport, 3, work)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_large_call_does_not_block_the_ones_behind_it(transport):
    def work(session):
        large = np.ones(1 << 21)
        first = session.all_reduce(large, async_op=True, name="large")
        for _ in range(20):  # blocking calls go on meanwhile
            assert session.all_reduce(np.ones(4), name="small").sum() == 8
        first.wait()
        assert large[-1] == 2

    run_world(transport, 2, work)


def test_every_collective_has_an_asynchronous_form():
    def work(session):
        n, rank = session.world_size, session.rank
        mine = np.arange(n * 2.0).reshape(n, 2) + 100 * rank
        table = [[1] * n] * n
        calls = {
            "all_reduce": session.all_reduce(mine.copy(), async_op=True),
            "grouped": session.grouped_all_reduce(
                [mine.copy(), np.ones(3, np.int8)], async_op=True, fusion_bytes=8
            ),
            "broadcast": session.broadcast(mine.copy(), 1, async_op=True),
            "reduce": session.reduce(mine.copy(), "max", 0, async_op=True),
            "all_gather": session.all_gather(mine, async_op=True),
            "gather": session.gather(mine, 1, async_op=True),
            "scatter": session.scatter(mine, 1, async_op=True),
            "reduce_scatter": session.reduce_scatter(mine, async_op=True),
            "all_to_all": session.all_to_all(mine, async_op=True),
            "rows": session.all_gather_uneven(mine, [n] * n, async_op=True),
            "exchange": session.all_to_all_uneven(mine, table, async_op=True),
            "barrier": session.barrier(async_op=True),
        }
        got = {name: handle.wait(10) for name, handle in calls.items()}
        everyone = np.stack([np.arange(n * 2.0).reshape(n, 2) + 100 * r for r in range(n)])
        np.testing.assert_array_equal(got["all_reduce"], everyone.sum(0))
        np.testing.assert_array_equal(got["grouped"][0], everyone.sum(0))
        np.testing.assert_array_equal(got["grouped"][1], [n] * 3)
        np.testing.assert_array_equal(got["broadcast"], everyone[1])
        np.testing.assert_array_equal(got["reduce"], everyone.max(0) if rank == 0 else mine)
        np.testing.assert_array_equal(got["all_gather"], everyone)
        assert (got["gather"] is None) == (rank != 1)
        np.testing.assert_array_equal(got["scatter"], everyone[1, rank])
        np.testing.assert_array_equal(got["reduce_scatter"], everyone.sum(0)[rank])
        np.testing.assert_array_equal(got["all_to_all"], everyone[:, rank])
        np.testing.assert_array_equal(got["rows"], everyone.reshape(-1, 2))
        np.testing.assert_array_equal(got["exchange"], everyone[:, rank])
        assert got["barrier"] is None

    run_world("inproc", 3, work)


def test_a_dropped_handle_neither_cancels_nor_frees():
    def work(session):
        for _ in range(200):
            session.all_reduce(np.ones(5000)[::2], async_op=True)
        gc.collect()
        session.barrier()
        last = session.all_reduce(np.ones(10), async_op=True)
        assert last.wait().sum() == 20

    run_world("inproc", 2, work)


def test_the_deadline_of_a_call_holds_without_a_waiter():
    def work(session):
        if session.rank == 1:
            time.sleep(0.8)
            return
        handle = session.all_reduce(np.ones(3), async_op=True, timeout_s=0.2)
        time.sleep(0.5)
        assert handle.done()
        for _ in range(2):
            with pytest.raises(DeadlineError, match=r"waiting for ranks \[1\]"):
                handle.wait()
        with pytest.raises(UsageError, match="timeout_s"):
            handle.wait(-1)

    run_world("inproc", 2, work)


def test_a_mismatch_is_raised_by_the_handle_and_all_later_calls():
    text = r"float64\[3\].*float64\[4\]"

    def work(session):
        handle = session.all_reduce(np.ones(3 + session.rank), async_op=True)
        for _ in range(2):
            with pytest.raises(MismatchError, match=text):
                handle.wait(5)
        with pytest.raises(MismatchError, match=text):
            session.barrier(async_op=True)

    run_world("inproc", 2, work)


def test_the_thread_is_gone_and_an_idle_session_uses_no_cpu():
    def work(session):
        for _ in range(5):
            session.all_reduce(np.ones(10), async_op=True).wait()
        session.barrier()
        time.sleep(0.3)
        session.barrier()

    def threads():
        return len(os.listdir("/proc/self/task"))

    run_world("inproc", 1, work)
    before = threads()
    seen = []

    def watched(session):
        work(session)
        if session.rank == 0:
            time.sleep(0.1)
            begin = time.process_time()
            time.sleep(0.5)
            cpu_s = time.process_time() - begin
            deadline = time.monotonic() + 30  # a joined thread stays listed for a moment
            while threads() > before + 1 and time.monotonic() < deadline:
                time.sleep(0.01)
            seen.append((threads(), cpu_s))
        session.barrier()

    run_world("inproc", 1, watched)
    (count, cpu_s), *_ = seen
    assert count <= before + 1  # the rank's own thread
    assert cpu_s < 0.1
    assert threading.active_count() >= 1


def test_a_handle_of_a_forked_parent_is_refused_in_the_child():
    def work(session):
        handle = session.all_reduce(np.ones(4), async_op=True)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                session.all_reduce(np.ones(4))
            except UsageError:
                code = 0
            os._exit(code)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert handle.wait().sum() == 4
        return True

    assert run_world("inproc", 1, work) == [True]
