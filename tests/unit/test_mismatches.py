"""Ranks that call differently: for every collective, an error on all that shows both."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from worlds import run_world

from kfcore.errors import DeadlineError, MismatchError

SMALL, LARGE = 4, 40_000  # of 8 bytes: below and above what is sent before a receiver asks

CALLS = {
    "all_reduce": lambda s, a, op, _root: s.all_reduce(a, op),
    "grouped_all_reduce": lambda s, a, op, _root: s.grouped_all_reduce([a, a[:1].copy()], op),
    "reduce": lambda s, a, op, root: s.reduce(a, op, root),
    "broadcast": lambda s, a, _op, root: s.broadcast(a, root),
    "all_gather": lambda s, a, _op, _root: s.all_gather(a),
    "gather": lambda s, a, _op, root: s.gather(a, root),
    "scatter": lambda s, a, _op, root: s.scatter(rows(s, a), root),
    "reduce_scatter": lambda s, a, op, _root: s.reduce_scatter(rows(s, a), op),
    "all_to_all": lambda s, a, _op, _root: s.all_to_all(rows(s, a)),
    "all_gather_uneven": lambda s, a, _op, _root: s.all_gather_uneven(
        a, [len(a)] * s.world_size
    ),
    "all_to_all_uneven": lambda s, a, _op, _root: s.all_to_all_uneven(
        np.repeat(a[:1], s.world_size), np.full((s.world_size, s.world_size), 1)
    ),
    "barrier": lambda s, _a, _op, _root: s.barrier(),
}
REDUCE = ("all_reduce", "grouped_all_reduce", "reduce", "reduce_scatter")
ROOTED = ("reduce", "broadcast", "gather", "scatter")


def rows(session, array):
    return np.stack([array] * session.world_size)


def odd_calls(name):
    """What one rank does differently, by its kind; each a call of session and length."""
    call = CALLS[name]

    def other(session, count):
        if name in ("barrier", "all_reduce"):
            return session.all_gather(np.zeros(count))
        return session.barrier()

    kinds = {"collective": other}
    if name != "barrier":
        kinds["dtype"] = lambda s, n: call(s, np.zeros(n, np.int64), "sum", 0)
        kinds["type of another size"] = lambda s, n: call(s, np.zeros(2 * n, "f4"), "sum", 0)
    if name not in ("barrier", "all_to_all_uneven"):
        kinds["count"] = lambda s, n: call(s, np.zeros(n + 3), "sum", 0)
    if name in REDUCE:
        kinds["operator"] = lambda s, n: call(s, np.zeros(n), "max", 0)
    if name in ROOTED:
        kinds["root"] = lambda s, n: call(s, np.zeros(n), "sum", 1)
    return kinds


CASES = [(name, kind) for name in CALLS for kind in odd_calls(name)]


def disagree(transport, world_size, name, kind, count, odd_rank):
    """All ranks call once, one of them differently; texts of the errors, by rank."""

    def work(session):
        array = np.arange(count, dtype=float)

        def call():
            if session.rank == odd_rank:
                odd_calls(name)[kind](session, count)
            else:
                CALLS[name](session, array, "sum", 0)
            session.barrier()  # a sender of a small message may be done before it is read

        with pytest.raises(MismatchError) as caught:
            call()
        with pytest.raises(MismatchError):  # it stays dead
            session.barrier()
        if count == SMALL:
            np.testing.assert_array_equal(array, np.arange(count))
        return str(caught.value)

    for text in run_world(transport, world_size, work, timeout_s=60):
        assert text.startswith("ranks disagree about"), (name, kind, text)
        assert text.count(" called ") == 2, text
        assert f"rank {odd_rank} called" in text, text


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_every_rank_raises_an_error_with_both_sides(name, kind):
    disagree("inproc", 3, name, kind, SMALL, 1)
    disagree("inproc", 3, name, kind, LARGE, 2)


@pytest.mark.parametrize("transport", ["tcp", "shm"])
@pytest.mark.parametrize("name", CALLS)
def test_workers_raise_an_error_with_both_sides(transport, name):
    kinds = list(odd_calls(name))
    kind = kinds[list(CALLS).index(name) % len(kinds)]
    disagree(transport, 2, name, kind, LARGE if transport == "shm" else SMALL, 1)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["inproc", "tcp", "shm"])
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_every_mismatch_on_every_rank_and_transport(transport, name, kind):
    for world_size in (2, 3, 4):
        for odd_rank in range(world_size):
            for count in (SMALL, LARGE):
                disagree(transport, world_size, name, kind, count, odd_rank)


def missing(transport, name):
    """Rank 2 submits another name than the others: texts of the errors, by rank."""

    def work(session):
        mine, limit_s = ("g/b", 60) if session.rank == 2 else ("g/a", 1.0)
        handle = NAMED[name](session, np.zeros(SMALL), mine)

        def wait():
            handle.wait(limit_s)
            session.barrier()  # a sender may be done: all that receive from it are there

        with pytest.raises(DeadlineError) as caught:
            wait()
        return str(caught.value)

    return run_world(transport, 3, work, timeout_s=60)


@pytest.mark.parametrize(
    "transport", ["inproc", "tcp", pytest.param("shm", marks=pytest.mark.slow)]
)
def test_names_that_differ_end_within_the_limit_and_name_the_missing(transport):  # A1
    with ThreadPoolExecutor(len(CALLS)) as pool:  # each takes a second, nearly all asleep
        worlds = dict(
            zip(CALLS, pool.map(lambda name: missing(transport, name), CALLS), strict=True)
        )
    for name, texts in worlds.items():
        for text in texts:
            assert "missing ranks: [2]; rank 2 was last in" in text, (name, text)
            assert '"g/a"' in text, (name, text)
            assert '"g/b"' in text, (name, text)


def _named(name):
    def call(session, array, mine):
        rest = {"name": mine, "async_op": True}
        if name == "barrier":
            return session.barrier(**rest)
        if name == "grouped_all_reduce":
            return session.grouped_all_reduce([array], **rest)
        if name in ("scatter", "reduce_scatter", "all_to_all"):
            return getattr(session, name)(rows(session, array), **rest)
        if name == "all_gather_uneven":
            return session.all_gather_uneven(array, [len(array)] * 3, **rest)
        if name == "all_to_all_uneven":
            return session.all_to_all_uneven(array[:3], np.ones((3, 3), int), **rest)
        return getattr(session, name)(array, **rest)

    return call


NAMED = {name: _named(name) for name in CALLS}


@pytest.mark.parametrize("transport", ["inproc", "tcp", "shm"])
def test_one_name_several_times_at_once_is_queued_in_order(transport):  # A7
    def work(session):
        arrays = [np.full(n, 10.0**i) for i, n in enumerate((3, 20_000, 3, 200_000))]
        handles = [session.all_reduce(a, name="x", async_op=True) for a in arrays]
        order = range(4) if session.rank == 0 else range(3, -1, -1)
        for i in order:
            handles[i].wait(60)
        return [(a[0], a[-1]) for a in arrays]

    for got in run_world(transport, 3, work, timeout_s=60):
        assert got == [(3 * 10.0**i,) * 2 for i in range(4)]


def test_two_optimizers_over_disjoint_parameters_train_in_any_order():  # A7
    lock = threading.Lock()  # torch's global generator is shared by the ranks' threads

    def work(session):
        with lock:
            torch.manual_seed(3)
            nets = [torch.nn.Linear(4, 4), torch.nn.Linear(4, 1), torch.nn.BatchNorm1d(0)]
            data = torch.randn(20, session.world_size, 5, 4)[:, session.rank]
        optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets[:2]]
        for step in range(20):
            out = nets[1](nets[0](data[step]))
            (out.square().mean() + nets[2].bias.sum() + nets[2].weight.sum()).backward()
            handles = []
            # a rank may come to the second network first
            for i in (0, 1) if (step + session.rank) % 2 else (1, 0):
                for j, p in enumerate(nets[i].parameters()):
                    handles.append(
                        session.all_reduce(p.grad, "avg", name=f"{i}/{j}", async_op=True)
                    )
            handles.extend(  # without elements
                session.all_reduce(p.grad, "avg", name="rest", async_op=True)
                for p in nets[2].parameters()
            )
            for handle in handles:
                handle.wait()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        return [p.tolist() for net in nets[:2] for p in net.parameters()]

    first, second, third = run_world("inproc", 3, work, timeout_s=60)
    assert first == second == third
