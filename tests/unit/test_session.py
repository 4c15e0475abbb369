"""Sessions on threads: values, messages and errors of the Python surface."""

import numpy as np
import pytest
import torch

from kfcore import _native
from kfcore.buffers import as_pieces
from kfcore.errors import DeadlineError, MismatchError, PeerLostError, UsageError
from kfcore.world import init, inproc_world

SCHEDULES = ("ring", "recursive_doubling", "halving_doubling", "binary_tree", "star", "auto")


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_grouped_all_reduce_gives_each_piece_its_own_operator(schedule, world_size):
    def work(session):
        rank = session.rank
        grads = np.arange(1001, dtype=np.float32) * world_size + rank
        sums = np.array([rank + 1.0, 2.0])
        maxes = np.array([float(rank), -float(rank)])
        session.grouped_all_reduce([grads, sums, maxes], ["avg", "sum", "max"])
        return grads, sums, maxes

    results = inproc_world(world_size, work, schedule=schedule)
    expected = np.arange(1001) * world_size + (world_size - 1) / 2
    for grads, sums, maxes in results:
        np.testing.assert_allclose(grads, expected, rtol=1e-6)
        assert sums.tolist() == [world_size * (world_size + 1) / 2, 2.0 * world_size]
        assert maxes.tolist() == [world_size - 1.0, 0.0]
        assert grads.tobytes() == results[0][0].tobytes()


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_every_collective_gives_numpys_answer(world_size):
    rows = np.arange(world_size * world_size * 6, dtype=np.int64).reshape(
        world_size, world_size, 2, 3
    )

    def work(session):
        rank = session.rank
        mine = rows[rank].copy()
        root = world_size - 1
        np.testing.assert_array_equal(session.all_gather(mine), rows)
        gathered = session.gather(mine, root)
        if rank == root:
            np.testing.assert_array_equal(gathered, rows)
        else:
            assert gathered is None
        np.testing.assert_array_equal(
            session.scatter(rows[root].copy(), root), rows[root, rank]
        )
        np.testing.assert_array_equal(session.reduce_scatter(mine), rows.sum(0)[rank])
        np.testing.assert_array_equal(session.all_to_all(mine), rows[:, rank])
        kept = mine.copy()
        session.reduce(kept, "max", root)
        np.testing.assert_array_equal(kept, rows.max(0) if rank == root else mine)
        np.testing.assert_array_equal(session.broadcast(mine.copy(), root), rows[root])
        session.barrier()

    inproc_world(world_size, work)


@pytest.mark.parametrize("shape", [(), (0,), (1, 0, 2), (3,), (2, 5)])
def test_any_shape_is_reduced_in_place(shape):
    def work(session):
        array = np.full(shape, 1.5)
        assert session.all_reduce(array) is array
        np.testing.assert_array_equal(array, np.full(shape, 3.0))

    inproc_world(2, work)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int16])
def test_torch_tensors_are_reduced_in_place(dtype):
    def work(session):
        tensor = torch.full((7,), session.rank + 1, dtype=dtype)
        session.all_reduce(tensor)
        assert tensor.tolist() == [3] * 7

    inproc_world(2, work)


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.zeros((4, 4))[:, 0], "contiguous"),
        (np.zeros((4, 3)).T, "contiguous"),
        (np.broadcast_to(np.float32(1), (3,)), "writable"),
        (np.zeros(2, ">f4"), "native byte order"),
        (np.zeros(2, np.uint16), "got uint16"),
        (torch.zeros(4, 4).t()[1:], "contiguous"),
        (torch.zeros(2, device="meta"), "CPU memory"),
        ([1.0, 2.0], "got list"),
        (np.ma.masked_array(np.zeros(2), [0, 1]), "masked"),
        (torch.eye(2).to_sparse(), "dense"),
        (torch.nested.nested_tensor([torch.ones(1)], layout=torch.jagged), "dense"),
        (torch.zeros(2, dtype=torch.float8_e4m3fn), "got float8_e4m3fn"),
        (np.zeros(2, "M8[s]"), "got datetime64"),
        (np.array([None]), "got object"),
    ],
)
def test_an_unusable_array_is_refused(array, text):
    with pytest.raises(UsageError, match=text):
        as_pieces([array], "sum")


@pytest.mark.parametrize(
    "array",
    [
        torch.eye(2).to_sparse(),
        torch.zeros(2, device="meta"),
        np.ma.masked_array(np.zeros(2), [0, 1]),
        np.array([None, 1]),
        [[1.0], [1.0, 2.0]],
        "text",
    ],
)
@pytest.mark.parametrize(
    "collective", ["all_gather", "gather", "scatter", "reduce_scatter", "all_to_all"]
)
def test_collectives_that_copy_refuse_what_numpy_cannot_hold(collective, array):
    def work(session):
        with pytest.raises(UsageError):
            getattr(session, collective)(array)
        session.barrier()  # and the session is none the worse

    inproc_world(2, work, timeout_s=5)


def test_views_and_parameters_are_gathered_without_being_touched():
    base = torch.arange(12.0).reshape(3, 4)
    for array in (
        base[:, 1],
        base.t(),
        base[::2],
        torch.ones(1).expand(4),
        torch.nn.Parameter(base.clone()),
        base.numpy()[::-1],
    ):
        mine = array.detach().numpy() if isinstance(array, torch.Tensor) else array
        expected = np.stack([mine, mine])

        def work(session, array=array, expected=expected):
            np.testing.assert_array_equal(session.all_gather(array), expected)

        inproc_world(2, work)
    assert base.flatten().tolist() == list(range(12))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"name": b"x"}, "name must be a text"),
        ({"name": "\udc80"}, "name must be valid Unicode"),
        ({"name": ""}, "name must not be empty"),
        ({"op": None}, "op must be one of"),
        ({"op": [["sum"]]}, "op must be one of"),
        ({"op": "SUM"}, "op must be one of"),
        ({"timeout_s": "1"}, "timeout_s must be >= 0"),
        ({"timeout_s": float("nan")}, "timeout_s must be >= 0"),
        ({"root": 1.5}, "root must be a whole number"),
        ({"root": None}, "root must be a whole number"),
        ({"root": 10**20}, "root must fit"),
        ({"root": -1}, "root must be in"),
    ],
)
def test_a_wrong_argument_is_named_and_does_no_harm(arguments, text):
    def work(session):
        call = session.reduce if "root" in arguments else session.all_reduce
        with pytest.raises(UsageError, match=text):
            call(np.zeros(3), **arguments)
        for spec in (None, 5, b"ring"):
            with pytest.raises(UsageError, match="schedule must be a text"):
                session.set_schedule(spec)
        assert session.all_reduce(np.ones(3)).tolist() == [2.0] * 3

    inproc_world(2, work, timeout_s=5)


def test_arrays_that_share_memory_are_refused_and_those_that_stand_askew_are_not():
    def work(session):
        a = np.ones(6)
        for arrays in ([a, a], [a[:4], a[3:]], [a[2:3], a]):
            with pytest.raises(UsageError, match="must not share memory"):
                session.grouped_all_reduce(arrays)
        askew = np.frombuffer(bytearray(33), np.uint8)[1:].view(np.float64)
        askew[:] = 1
        assert session.all_reduce(askew).tolist() == [2.0] * 4
        session.grouped_all_reduce([a[:3], a[3:], a[:0], a[:0]])
        assert a.tolist() == [2.0] * 6

    inproc_world(2, work, timeout_s=5)


def test_half_precision_averages_do_not_overflow():
    def work(session):
        array = np.full(3, 40000, np.float16)
        tiny = np.full(3, 6e-8, np.float16)
        session.grouped_all_reduce([array, tiny], "avg")
        assert array.tolist() == [40000] * 3
        assert (tiny > 0).all()

    inproc_world(2, work)


def test_a_rank_error_is_reported_rather_than_its_consequences():
    def work(session):
        if session.rank == 1:
            raise KeyError("the cause")
        session.barrier()

    with pytest.raises(KeyError, match="the cause"):
        inproc_world(3, work, timeout_s=5)


def test_a_closed_peer_is_named():
    def work(session):
        if session.rank == 1:
            session.close()
            return
        with pytest.raises(PeerLostError, match="rank 1"):
            session.barrier()
        with pytest.raises(PeerLostError, match="rank 1"):  # it stays dead
            session.all_reduce(np.zeros(1))

    inproc_world(3, work, timeout_s=5)


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize(
    "other",
    [
        lambda s, _: s.all_reduce(np.zeros(2, np.float32)),
        lambda s, _: s.all_reduce(np.zeros(4, np.int64)),
        lambda s, _: s.all_reduce(np.zeros(2, np.float64)),
        lambda s, x: s.all_reduce(x, "max"),
        lambda s, x: s.broadcast(x, s.rank),
        lambda s, x: s.broadcast(x, (s.rank + 1) % s.world_size),
        lambda s, _: s.barrier(),
    ],
)
@pytest.mark.parametrize("odd_rank", [0, 1])
def test_a_mismatch_is_an_error_on_every_rank_with_both_sides(world_size, other, odd_rank):
    def work(session):
        array = np.arange(4, dtype=np.float32)
        call = other if session.rank == odd_rank else lambda s, x: s.all_reduce(x)
        with pytest.raises(MismatchError) as caught:
            call(session, array)
        np.testing.assert_array_equal(array, np.arange(4))
        return str(caught.value)

    for text in inproc_world(world_size, work, timeout_s=5):
        assert "all_reduce float32[4]:sum by ring" in text
        assert text.count(" called ") == 2
        assert f"rank {odd_rank} called" in text


def test_named_operations_match_in_any_order():
    def work(session):
        for i in range(3):
            a, b = np.full(2, 1.0), np.full(2, 10.0)
            threads = [(a, "a"), (b, "b")]
            # blocking calls of one thread cannot cross, so both run at once on two threads
            from threading import Thread

            order = threads if (session.rank + i) % 2 == 0 else threads[::-1]
            running = [
                Thread(target=session.all_reduce, args=(x,), kwargs={"name": name})
                for x, name in order
            ]
            for thread in running:
                thread.start()
            for thread in running:
                thread.join()
            assert a.tolist() == [2.0, 2.0]
            assert b.tolist() == [20.0, 20.0]

    inproc_world(2, work, timeout_s=10)


@pytest.mark.parametrize("odd_rank", [0, 1, 2, 3])
@pytest.mark.parametrize(("name", "odd_name"), [("g/a", "g/b"), (None, "g/b"), ("g/a", None)])
def test_waiting_in_different_operations_names_the_missing_ranks(odd_rank, name, odd_name):
    def work(session):
        odd = session.rank == odd_rank
        with pytest.raises(DeadlineError) as caught:  # the odd rank's deadline is a later one
            session.all_reduce(
                np.zeros(4), name=odd_name if odd else name, timeout_s=8 if odd else 0.5
            )
        return str(caught.value)

    for text in inproc_world(4, work, timeout_s=10):
        assert f"missing ranks: [{odd_rank}]; rank {odd_rank} was last in" in text
        for shown in filter(None, (name, odd_name)):
            assert f'"{shown}"' in text


def test_message_counts_are_those_of_the_schedule():
    def work(session):
        session.all_reduce(np.zeros(400, np.float32))
        return session.stats()

    for stats in inproc_world(4, work):
        assert stats.messages_sent == 6  # ring: 2 (n - 1)
        assert stats.bytes_sent == 2 * 3 * 400  # 2 (n - 1) / n of 1600 bytes
        assert stats.operations == 1


def test_a_schedule_may_change_between_operations():
    def work(session):
        for schedule in SCHEDULES:
            session.set_schedule(schedule)
            assert session.all_reduce(np.ones(100)).sum() == 400
        with pytest.raises(UsageError, match="no schedule"):
            session.set_schedule("spiral")

    inproc_world(4, work)


def test_large_buffers_are_pipelined_in_segments():
    def work(session):
        array = np.arange(100_000, dtype=np.float64) + session.rank
        session.all_reduce(array)
        np.testing.assert_array_equal(array, np.arange(100_000) * 3.0 + 3)
        return session.stats().messages_sent

    counts = inproc_world(3, work, segment_bytes=4096)
    assert min(counts) > 100


def test_the_vector_level_is_chosen_by_name_and_does_not_change_results():
    values = np.random.default_rng(3).standard_normal(1003).astype(np.float16)

    def work(session):
        return session.all_reduce(values * (session.rank + 1)).tobytes()

    before = _native.simd_level()
    try:
        results = set()
        for level in _native.simd_levels():
            init(rank=0, world_size=1, simd=level).close()
            assert _native.simd_level() == level
            results.update(inproc_world(3, work))
        assert len(results) == 1
        with pytest.raises(UsageError, match=r"one that this machine has \(portable"):
            init(rank=0, world_size=1, simd="mmx")
    finally:
        _native.use_simd_level(before)
