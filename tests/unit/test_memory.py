"""Registered buffers: arrays in memory that peers can map."""

import gc
import os

import numpy as np
import pytest

import kfcore
from kfcore.errors import TransportError, UsageError
from kfcore.memory import POOL, empty, is_shared


def test_empty_makes_writable_arrays_of_any_shape_and_type():
    for shape, dtype in [(5, "float32"), ((2, 3), "int8"), ((), "complex128"), ((0, 4), "f8")]:
        array = empty(shape, dtype)
        assert array.dtype == np.dtype(dtype)
        assert array.shape == (shape if isinstance(shape, tuple) else (shape,))
        array[...] = 3
        assert (array == 3).all()
        assert is_shared(array)
    assert not is_shared(np.ones(3))


def test_views_keep_the_memory_and_the_last_one_gives_it_back():
    gc.collect()
    before = POOL.bytes_in_use
    array = empty(100_000)
    view = array[50_000:]
    view[:] = 7.0
    del array
    gc.collect()
    assert POOL.bytes_in_use > before
    assert (view == 7.0).all()
    assert is_shared(view)
    del view
    gc.collect()
    assert POOL.bytes_in_use == before


def test_empty_refuses_what_cannot_be_shared():
    with pytest.raises(UsageError, match="Python objects"):
        empty(3, object)
    with pytest.raises(UsageError, match=r">= 0, got shape \(2, -1\)"):
        empty((2, -1))
    with pytest.raises(TransportError, match="cannot share a buffer"):
        empty(1 << 60)


def test_torch_tensors_can_lie_in_shared_memory():
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(kfcore.empty(12)).view(3, 4)
    tensor.fill_(2.0)
    assert POOL.contains(tensor[1].data_ptr(), 16)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_cannot_free_the_buffers_of_its_parent():
    array = empty(100_000)
    array[:] = 5.0
    pid = os.fork()
    if pid == 0:
        del array
        gc.collect()
        own = empty(100_000)  # from an arena of its own
        own[:] = 9.0
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert status == 0
    assert (array == 5.0).all()
