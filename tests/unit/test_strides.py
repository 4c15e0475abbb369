"""Arrays of any strides, empty ones and 0-d ones, through every collective."""

import numpy as np
import pytest
import torch

from kfcore import inproc_world
from kfcore.errors import UsageError

N = 2


def views():
    """Strided arrays of both libraries: name -> maker of (base, view of it)."""

    def numpy_of(make):
        def build():
            base = np.zeros((4, 6))
            return base, make(base)

        return build

    def torch_of(make, base=lambda: torch.zeros((4, 6), dtype=torch.float64)):
        def build():
            whole = base()
            return whole, make(whole)

        return build

    def channels_last():
        return torch.zeros((2, 3, 4, 4)).double().to(memory_format=torch.channels_last)

    return {
        "column": numpy_of(lambda b: b[:, 2]),
        "transpose": numpy_of(lambda b: b.T),
        "every second": numpy_of(lambda b: b[::2, ::3]),
        "backwards": numpy_of(lambda b: b[::-1]),
        "torch column": torch_of(lambda b: b[:, 0]),
        "torch transpose": torch_of(lambda b: b.t()),
        "torch every second": torch_of(lambda b: b[::2]),
        "channels last": torch_of(lambda b: b, channels_last),
        "part of channels last": torch_of(lambda b: b[:, :, 1:], channels_last),
    }


def fill(view, rank):
    values = np.arange(int(np.prod(view.shape)), dtype=float).reshape(view.shape) + 100 * rank
    if isinstance(view, np.ndarray):
        view[...] = values
    else:
        view.copy_(torch.from_numpy(values))
    return values


def values_of(array):
    return np.asarray(array)


@pytest.mark.parametrize("name", views())
def test_strided_arrays_are_reduced_in_place_and_nothing_else(name):
    make = views()[name]

    def work(session):
        base, view = make()
        everything = [fill(make()[1], rank) for rank in range(N)]
        for call, expected in (
            (session.all_reduce, sum(everything)),
            (lambda v: session.all_reduce(v, async_op=True).wait(), sum(everything)),
            (lambda v: session.grouped_all_reduce([v, np.ones(2)])[0], sum(everything)),
            (lambda v: session.broadcast(v, 1), everything[1]),
        ):
            fill(view, session.rank)
            outside = float(base.sum()) - float(view.sum())
            assert call(view) is view
            np.testing.assert_array_equal(values_of(view), expected)
            assert float(base.sum()) - float(view.sum()) == pytest.approx(outside)
        fill(view, session.rank)
        session.reduce(view, root=1)
        np.testing.assert_array_equal(
            values_of(view), sum(everything) if session.rank == 1 else everything[0]
        )
        fill(view, session.rank)
        gathered = session.all_gather(view)
        np.testing.assert_array_equal(values_of(gathered), np.stack(everything))
        assert isinstance(gathered, np.ndarray) == isinstance(base, np.ndarray)

    inproc_world(N, work)


@pytest.mark.parametrize(
    "array",
    [
        np.lib.stride_tricks.as_strided(np.zeros(5), (3, 3), (8, 8)),
        np.lib.stride_tricks.as_strided(np.zeros(1), (4,), (0,)),
        torch.zeros(1).expand(4),
    ],
)
def test_elements_that_share_memory_are_refused_in_place(array):
    def work(session):
        with pytest.raises(UsageError, match="must not share memory"):
            session.all_reduce(array)
        assert session.all_reduce(array, copy=True).shape == array.shape
        session.barrier()

    inproc_world(N, work)


def test_lazily_conjugated_tensors_get_the_right_result():
    def work(session):
        base = torch.full((3,), 1 + 2j, dtype=torch.complex64)
        view = base.conj()
        session.all_reduce(view)
        assert view.tolist() == [2 - 4j] * 3
        assert base.tolist() == [2 + 4j] * 3

    inproc_world(N, work)


def test_parameters_are_reduced_without_a_gradient_of_it():
    def work(session):
        leaf = torch.nn.Parameter(torch.ones(4, 4).t())
        session.all_reduce(leaf[:, 1])
        session.all_reduce(leaf)
        assert leaf.requires_grad
        assert leaf.sum() == 2 * (12 + 8)
        assert not session.all_gather(leaf).requires_grad

    inproc_world(N, work)


def test_a_copy_leaves_a_read_only_array_as_it_is():
    def work(session):
        array = np.arange(4.0)
        array.flags.writeable = False
        with pytest.raises(UsageError, match="writable"):
            session.all_reduce(array)
        assert session.all_reduce(array, copy=True).tolist() == [0, 2, 4, 6]
        assert array.tolist() == [0, 1, 2, 3]
        source = session.broadcast(array if session.rank == 0 else np.zeros(4))
        assert source.tolist() == [0, 1, 2, 3]

    inproc_world(N, work)


@pytest.mark.parametrize("shape", [(0,), (1, 0, 2), ()])
@pytest.mark.parametrize("make", [np.zeros, torch.zeros])
def test_empty_and_0d_arrays_pass_through_every_collective(shape, make):
    def work(session):
        one = make(shape)
        one[...] = 1.5
        assert session.all_reduce(one) is one
        assert values_of(one).shape == shape
        assert (values_of(one) == 3.0).all()
        assert session.broadcast(make(shape)).shape == shape
        assert session.reduce(make(shape)).shape == shape
        assert tuple(session.all_gather(make(shape)).shape) == (N, *shape)
        got = session.gather(make(shape))
        assert (got is None) == (session.rank != 0)
        rows = make((N, *shape)) + 1
        assert tuple(session.scatter(rows).shape) == shape
        assert tuple(session.reduce_scatter(rows).shape) == shape
        assert tuple(session.all_to_all(rows).shape) == (N, *shape)
        session.barrier()

    inproc_world(N, work)


@pytest.mark.parametrize("call", ["reduce_scatter", "scatter", "all_to_all"])
def test_a_0d_array_has_no_rows(call):
    def work(session):
        with pytest.raises(UsageError, match="one row for each"):
            getattr(session, call)(np.float64(1).reshape(()))
        session.barrier()

    inproc_world(N, work)
