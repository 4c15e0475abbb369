"""State that a late worker receives: into its own arrays where they fit, else beside them."""

import numpy as np
import pytest
import torch

from kfcore.elastic import ElasticState, Image, Value
from kfcore.errors import UsageError

WRONG = b'{"tree":{"a":0},"leaves":[["numpy","<f8",[2],8]]}'  # two numbers of 8 bytes in 8


def received(state: ElasticState, image: Image) -> Image:
    """What a late worker makes of another's image, without a network."""
    room = state.room(image.header)
    for mine, sent in zip(room.leaves, image.leaves, strict=True):
        mine[...] = sent
    return room


def test_a_state_is_received_in_the_own_arrays_where_they_fit():
    weights, torch_weights = np.arange(6.0).reshape(2, 3), torch.arange(4.0)
    source = ElasticState(weights=weights, tensor=torch_weights, odd=np.ones((3, 2)).T)
    source.commit(3)
    mine, tensor = np.zeros((2, 3)), torch.zeros(4)
    odd = np.zeros((3, 2)).T
    state = ElasticState(weights=mine, tensor=tensor, odd=odd)
    room = received(state, source.image())
    assert np.shares_memory(room.leaves[0], mine)
    assert room.leaves[1].ctypes.data == tensor.data_ptr()
    assert not np.shares_memory(room.leaves[2], odd)  # its memory has another order
    assert not state.intact
    state.load(room, 3, copy=False)
    assert state.intact
    assert np.array_equal(mine, weights)
    assert torch.equal(tensor, torch_weights)
    assert np.array_equal(odd, np.ones((2, 3)))


def test_optimizer_slots_that_are_not_there_yet_are_received_beside():
    def trained(steps):
        torch.manual_seed(0)
        model = torch.nn.Linear(40, 3)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(2, 40)).sum().backward()
            optimizer.step()
        return model, ElasticState(model=model, optimizer=optimizer)

    (_, source), (late_model, late) = trained(5), trained(0)
    source.commit(5)
    room = received(late, source.image())
    late.load(room, 5, copy=False)
    assert late.digest() == source.digest()
    addresses = {leaf.ctypes.data for leaf in room.leaves if len(leaf)}
    assert {p.data_ptr() for p in late_model.parameters()} <= addresses


@pytest.mark.parametrize(
    "header", [b"", b"[]", b'{"tree":{"a":0},"leaves":[["numpy","<f8",[2],8]]}']
)
def test_a_header_of_something_else_is_refused(header):
    with pytest.raises(UsageError, match="not a state"):
        ElasticState(weights=np.zeros(2)).room(header)


def test_warming_changes_nothing():
    values = np.arange(40_000.0)
    fixed = values.copy()
    fixed.flags.writeable = False
    state = ElasticState(values=values, fixed=Value(lambda: fixed, lambda _: None))
    state.warm()
    assert np.array_equal(values, np.arange(40_000.0))
