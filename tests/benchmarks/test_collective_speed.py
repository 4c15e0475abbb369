"""Speed of calls (`make bench`); as tests they assert counts, not times."""

import numpy as np
import pytest

from kfcore import inproc_world
from kfcore.world import init


def test_call_overhead(benchmark):
    with init(rank=0, world_size=1) as session:
        array = np.ones(16, np.float32)
        session.all_reduce(array)
        before = session.stats().operations
        calls = 0

        def call():
            nonlocal calls
            calls += 1
            session.all_reduce(array)

        benchmark(call)
        assert session.stats().operations - before == calls


@pytest.mark.benchmark(group="compute beside a session")
@pytest.mark.parametrize("beside", ["no session", "an idle session"])
def test_compute_beside_a_session(benchmark, beside):
    a = np.ones((96, 96))
    calls = 0

    def compute():
        nonlocal calls
        calls += 1
        return sum(float((a * k + a).sum()) for k in range(64))

    if beside == "no session":
        benchmark(compute)
    else:
        with init(rank=0, world_size=1) as session:
            session.all_reduce(a, async_op=True).wait()
            before = session.stats().operations
            benchmark(compute)
            assert session.stats().operations == before
    assert calls > 0


@pytest.mark.parametrize("count", [256, 65_536, 1_048_576])
def test_all_reduce(benchmark, count):
    def work(session):
        array = np.zeros(count, np.float32)
        before = session.stats().bytes_sent
        session.all_reduce(array)
        return session.stats().bytes_sent - before

    sent = benchmark(lambda: inproc_world(2, work, timeout_s=60))
    assert sent == [4 * count, 4 * count]  # a ring of two sends the buffer once


def test_grouped_all_reduce_sends_few_messages(benchmark):
    def work(session):
        arrays = [np.ones(64, np.float32) for _ in range(2000)]
        before = session.stats()
        session.grouped_all_reduce(arrays)
        after = session.stats()
        assert arrays[-1][0] == 2
        return after.operations - before.operations, after.messages_sent - before.messages_sent

    for operations, messages in benchmark(lambda: inproc_world(2, work, timeout_s=60)):
        assert operations == 1
        assert messages <= 6  # one by one: 4000
