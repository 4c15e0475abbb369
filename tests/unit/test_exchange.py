"""Groups, messages, uneven collectives, consensus and objects."""

import time

import numpy as np
import pytest
import torch
from worlds import TRANSPORTS, run_world

from kfcore.errors import DeadlineError, MismatchError, UsageError


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_disjoint_groups_are_made_and_used_at_the_same_time(transport):
    def work(session):
        group = session.group([0, 1] if session.rank < 2 else [2, 3])
        assert (group.rank, group.world_size) == (session.rank % 2, 2)
        results = []
        for _ in range(10):
            array = np.array([float(session.rank)])
            results.append(group.all_reduce(array)[0])
        mean = group.all_reduce(np.array([float(session.rank)]), "avg")[0]
        gathered = group.all_gather(np.array([session.rank])).ravel().tolist()
        assert group.members == tuple(gathered)
        session.barrier()
        return set(results), mean

    results = run_world(transport, 4, work)
    assert results == [({1.0}, 0.5)] * 2 + [({5.0}, 2.5)] * 2


def test_groups_of_the_same_ranks_are_told_apart_and_all_calls_work():
    def work(session):
        rank = session.rank
        if rank == 0:
            return session.barrier()
        first, second = session.group([2, 1]), session.group([2, 1])
        a = first.all_reduce(np.ones(3), async_op=True)
        b = second.all_reduce(np.full(3, 10.0), async_op=True)
        assert b.wait().tolist() == [20.0] * 3
        assert a.wait().tolist() == [2.0] * 3
        if first.rank == 0:  # rank 2 of the session
            first.send(np.arange(4), 1)
            assert second.broadcast_object({"from": 2}) == {"from": 2}
        else:
            assert first.recv(np.zeros(4, int), 0).tolist() == [0, 1, 2, 3]
            assert second.broadcast_object() == {"from": 2}
        assert first.consensus(b"x")
        rows = first.all_gather_uneven(np.full((first.rank + 1, 2), rank))
        assert rows[:, 0].tolist() == [2, 1, 1]
        return session.barrier()

    run_world("inproc", 3, work)


def test_a_member_that_never_calls_is_named():
    def work(session):
        if session.rank != 2:
            time.sleep(1.0)
            return
        with pytest.raises(DeadlineError, match=r"waiting for ranks \[3\]"):
            session.group([2, 3], timeout_s=0.4)

    run_world("inproc", 4, work)


@pytest.mark.parametrize("ranks", [[], [0, 0], [0, 3], [1, 2], [0, -1], ["0", 1]])
def test_a_group_of_other_ranks_is_refused(ranks):
    def work(session):
        if session.rank == 0:
            with pytest.raises(UsageError):
                session.group(ranks)
        session.barrier()

    run_world("inproc", 3, work)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_messages_go_round_a_ring_in_order(transport):
    def work(session):
        n, rank = session.world_size, session.rank
        right, left = (rank + 1) % n, (rank - 1) % n
        for size in (0, 1, 10, 300_000):
            sent = session.send(np.full(size, rank, np.int16), right, 3, async_op=True)
            got = session.recv(np.empty(size, np.int16), left, 3)
            assert (got == left).all()
            sent.wait()
        for i in range(100):  # small sends need no receiver
            session.send(np.array([i]), right)
        assert [session.recv(np.zeros(1, int), left)[0] for _ in range(100)] == list(range(100))

    run_world(transport, 3, work)


def test_tags_keep_messages_apart_and_strided_arrays_travel():
    def work(session):
        if session.rank == 0:
            session.send(np.arange(10)[::2], 1, tag=1)
            session.send(torch.arange(6).reshape(2, 3).t(), 1, tag=2)
        else:
            base = np.zeros((3, 4), int)
            session.recv(base[:, 1:3], 0, tag=2)
            assert base[:, 1:3].tolist() == [[0, 3], [1, 4], [2, 5]]
            assert base[:, [0, 3]].sum() == 0
            assert session.recv(np.zeros(5, int), 0, tag=1).tolist() == [0, 2, 4, 6, 8]

    run_world("inproc", 2, work)


@pytest.mark.parametrize("wrong", [np.zeros(4), np.zeros(3, np.float32), np.zeros(0)])
def test_a_message_of_another_type_or_size_is_a_mismatch_on_both_sides(wrong):
    def exchange(session):
        if session.rank == 0:
            session.send(np.zeros(3), 1)
        else:
            session.recv(wrong, 0)
        session.barrier()  # a small send is done before the receiver objects

    def work(session):
        text = r"send/recv float64\[3\] from rank 0 to rank 1"
        with pytest.raises(MismatchError, match=text):
            exchange(session)

    run_world("inproc", 2, work)


@pytest.mark.parametrize(
    ("peer", "tag"), [(0, 0), (2, 0), (-1, 0), (1.5, 0), (1, 2**63), (1, "x")]
)
def test_a_message_to_nobody_is_refused(peer, tag):
    def work(session):
        if session.rank == 0:
            with pytest.raises(UsageError):
                session.send(np.zeros(1), peer, tag)
        session.barrier()

    run_world("inproc", 2, work)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("counts", [(0, 3, 5), (1, 0, 0), (0, 0, 0), (70_000, 1, 2)])
@pytest.mark.parametrize("given", [True, False])
def test_rows_of_any_number_are_gathered(transport, counts, given):
    def work(session):
        mine = np.full((counts[session.rank], 2), session.rank, np.int32)
        rows = session.all_gather_uneven(mine, counts if given else None)
        np.testing.assert_array_equal(rows[:, 1], np.repeat([0, 1, 2], counts))
        assert rows.shape == (sum(counts), 2)

    run_world(transport, 3, work)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("given", [True, False])
def test_rows_of_any_number_are_exchanged(transport, given):
    table = np.array([[0, 2, 1], [3, 1, 0], [0, 0, 50_000]])

    def work(session):
        rank = session.rank
        mine = np.concatenate(
            [np.full((c, 3), 10 * rank + d) for d, c in enumerate(table[rank])]
        )
        got = session.all_to_all_uneven(mine, table if given else table[rank])
        expected = np.concatenate(
            [np.full((table[s, rank], 3), 10 * s + rank) for s in range(3)]
        )
        np.testing.assert_array_equal(got, expected)

    run_world(transport, 3, work)


def test_uneven_counts_must_fit_and_agree():
    def work(session):
        mine = np.zeros((2, 3))
        with pytest.raises(UsageError, match="2 for this rank"):
            session.all_gather_uneven(mine, [1, 1])
        with pytest.raises(UsageError, match="first axis"):
            session.all_gather_uneven(np.float64(1.0))
        with pytest.raises(UsageError, match="add up to"):
            session.all_to_all_uneven(mine, [1, 2])
        with pytest.raises(UsageError, match="2 x 2 whole numbers"):
            session.all_to_all_uneven(mine, [1, 0, 1])
        with pytest.raises(MismatchError, match=r"in blocks of 6, 6.*in blocks of 9, 6"):
            session.all_gather_uneven(mine, [2, 2] if session.rank == 0 else [3, 2])

    run_world("inproc", 2, work)


def test_all_to_all_takes_no_memory_for_other_ranks_blocks():
    n = 8
    row = 1 << 17

    def work(session):
        rows = np.repeat(np.arange(n, dtype=np.uint8)[:, None], row, 1)
        got = session.all_to_all(rows)
        assert (got == session.rank).all()
        stats = session.stats()
        assert stats.bytes_sent == (n - 1) * row

    run_world("inproc", n, work)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_consensus_is_true_only_for_equal_bytes_everywhere(transport):
    def work(session):
        odd = session.rank == 1
        return (
            session.consensus(b"same"),
            session.consensus(b""),
            session.consensus(b"a" if odd else b"b"),
            session.consensus(b"\0" if odd else b""),
            session.consensus(bytes(1000) + bytes([session.rank])),
        )

    assert run_world(transport, 3, work) == [(True, True, False, False, False)] * 3


def test_objects_are_broadcast_and_their_size_is_bounded():
    def work(session):
        value = {"a": np.arange(3), "b": ["x", None]} if session.rank == 1 else None
        got = session.broadcast_object(value, 1)
        assert got["b"] == ["x", None]
        assert got["a"].tolist() == [0, 1, 2]
        with pytest.raises(UsageError, match=r"may have 100 bytes, rank 1's has 10\d\d"):
            session.broadcast_object(bytes(1000), 1, max_bytes=100)
        with pytest.raises(UsageError, match="pickle"):
            session.broadcast_object(lambda: 0, 1)
        assert session.broadcast_object(session.rank) == 0  # the session goes on
        with pytest.raises(UsageError, match="must be bytes"):
            session.consensus("text")

    run_world("inproc", 2, work)


def test_operations_swapped_on_one_rank_are_found_by_their_call_sites():
    def swapped(session, a, b):
        if session.rank == 0:
            session.all_reduce(a)
            session.all_reduce(b)
        else:
            session.all_reduce(b)
            session.all_reduce(a)

    def work(session):
        swapped(session, np.ones(2), np.ones(2))  # cannot be told apart
        session.barrier()
        session.compare_call_sites()
        for _ in range(3):
            session.all_reduce(np.ones(2))  # the same line everywhere
        file = r"at test_exchange.py:\d+"
        with pytest.raises(MismatchError, match=f"{file}.*{file}"):
            swapped(session, np.ones(2), np.ones(2))

    run_world("inproc", 2, work)
