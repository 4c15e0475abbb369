"""State: what goes in comes out, commits, restores, streams, and refusals by name."""

import contextlib
import math
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import kfcore as kf
from kfcore.elastic import (
    Assembly,
    ElasticSampler,
    ElasticState,
    Image,
    Manifest,
    Value,
    chunks,
    share_of,
)
from kfcore.elastic.state import IN_PLACE_BYTES
from kfcore.errors import UsageError


def joined(image: Image) -> np.ndarray:
    return np.concatenate(list(image.pieces()))


def same(a, b) -> bool:
    """Equality of trees, types included; NaN equals itself."""
    if isinstance(a, np.ndarray | np.generic):
        return type(a) is type(b) and a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and math.isnan(a):
        return math.isnan(b)
    return type(a) is type(b) and a == b


LEAVES = [
    None,
    True,
    -(2**200),
    0.1,
    math.nan,
    math.inf,
    -0.0,
    "text \N{SNOWMAN}",
    b"\x00\xff",
    b"",
    np.float32(1.5),
    np.arange(6, dtype=">i2").reshape(2, 3),
    np.zeros((0, 3)),
    np.array(2.5),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.arange(10)[::3],
    np.array([1 + 2j], np.complex64),
    torch.arange(4, dtype=torch.bfloat16),
    torch.tensor(3.5),
    torch.zeros(0, 2, dtype=torch.int64),
    torch.arange(6).reshape(2, 3).t(),
    torch.tensor([True, False]),
]


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: f"{type(leaf).__name__} {leaf!r:.20}")
def test_every_kind_of_leaf_survives(leaf):
    tree = {"a": [leaf, (leaf, {3: leaf})]}
    image = Image.of(tree)
    assert same(image.tree(), tree)
    again = Image.from_bytes(joined(image))
    assert same(again.tree(), tree)
    assert again.digest() == image.digest()
    assert image.size == len(joined(image))


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner)
    ),
    max_leaves=15,
)


@given(plain)
def test_any_plain_tree_survives(tree):
    assert same(Image.from_bytes(joined(Image.of(tree))).tree(), tree)


@given(st.data())
def test_damaged_bytes_are_refused_or_give_some_tree_but_never_crash(data):
    raw = joined(Image.of({"w": np.arange(5.0), "n": 3, "t": torch.ones(3)}))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    cut = raw[: data.draw(st.integers(0, len(raw)))]
    for damaged in (raw, cut):
        with contextlib.suppress(UsageError):
            Image.from_bytes(damaged).tree()


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": [object()]}, r"state\['a'\]\[0\]: a object cannot be kept"),
        ({1.5: 0}, "keys must be texts or integers, got 1.5"),
        ({"a": np.array([None])}, "arrays of type object"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_its_place(tree, message):
    with pytest.raises(UsageError, match=message):
        Image.of(tree)


def test_a_tensor_of_a_stranger_needs_torch_but_is_never_an_import():
    raw = joined(Image.of({"t": torch.ones(2)})).tobytes()
    program = (
        "import sys, numpy as np; from kfcore.elastic import Image\n"
        f"image = Image.from_bytes(np.frombuffer({raw!r}, np.uint8))\n"
        "assert image.digest()\n"
        "try: image.tree()\n"
        "except ValueError as error: print(error, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == (
        "the state holds torch tensors: import torch before reading it False\n"
    )


class Torch:
    """A network with batch norm, Adam, and everything around it."""

    def __init__(self, seed: int, copies: int) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(5, 200), torch.nn.BatchNorm1d(200), torch.nn.Linear(200, 100)
        )
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.rng = np.random.default_rng(seed)
        self.sampler = ElasticSampler(1000, seed=4)
        self.state = ElasticState(
            copies=copies,
            model=self.model,
            optimizer=self.optimizer,
            rng=self.rng,
            sampler=self.sampler,
        )

    def forward(self) -> None:
        self.optimizer.zero_grad()
        step = self.sampler.take(1, 8)
        noise = torch.from_numpy(self.rng.normal(size=(8, 5)).astype(np.float32))
        self.model(noise + step.indices[0] / 1000).square().mean().backward()

    def apply(self) -> None:
        with self.state.changing():
            self.optimizer.step()


@pytest.mark.parametrize("copies", [0, 1, 2])
def test_a_failed_step_leaves_no_trace(copies):
    """Forward moves running means, position and generator; none may move twice."""
    reference, worker = Torch(1, copies), Torch(1, copies)
    assert worker.model[2].weight.nbytes > IN_PLACE_BYTES
    for step in range(6):
        worker.state.commit(step)
        worker.forward()  # and the all-reduce fails
        assert worker.state.restore() == step
        for one in (reference, worker):
            one.forward()
            one.apply()
    assert reference.state.digest() == worker.state.digest()


def test_a_joiner_without_optimizer_slots_takes_everything_over():
    old, joiner = Torch(1, 0), Torch(2, 0)
    for step in range(20):
        old.forward()
        old.apply()
        old.state.commit(step + 1)
    joiner.state.load(old.state.image(), old.state.step)
    assert joiner.optimizer.state_dict()["state"][0]["step"] == 20
    for one in (old, joiner):
        one.forward()
        one.apply()
    assert old.state.digest() == joiner.state.digest()


def test_copies_bring_back_a_step_that_was_applied():
    weights = np.zeros(50_000)
    state = ElasticState(copies=2, weights=weights)
    for step in range(5):
        weights += 1
        state.commit(step)
    assert state.steps == (3, 4)
    assert state.restore(3) == 3
    assert weights[0] == 4
    assert state.steps == (3,)
    with pytest.raises(UsageError, match=r"step 4 is not kept; there are: \[3\]"):
        state.restore(4)


def test_a_state_broken_while_changing_says_so_unless_copies_are_kept():
    weights = np.zeros(50_000)

    def apply(state):
        with state.changing():
            weights[0] = 1
            raise ZeroDivisionError

    def breaks_off(state):
        state.commit(1)
        with pytest.raises(ZeroDivisionError):
            apply(state)

    state = ElasticState(weights=weights)
    breaks_off(state)
    assert not state.intact
    assert state.steps == ()
    for call in (state.restore, state.image, lambda: state.commit(2)):
        with pytest.raises(UsageError, match="broke while"):
            call()
    state.load(Image.of({"weights": np.ones(50_000)}), 9)
    assert (state.intact, state.step, weights[5]) == (True, 9, 1)
    weights[:] = 0
    kept = ElasticState(copies=1, weights=weights)
    breaks_off(kept)
    assert kept.restore() == 1
    assert weights[0] == 0


def test_without_copies_a_commit_touches_no_large_array():
    weights = np.zeros(50_000)
    state = ElasticState(weights=weights, small=np.zeros(4))
    state.commit(1)
    assert any(np.shares_memory(piece, weights) for piece in state.image().pieces())


def test_an_image_taken_from_copies_outlives_later_commits():
    weights = np.zeros(50_000)
    state = ElasticState(copies=1, weights=weights)
    state.commit(1)
    image = state.image()
    before = image.digest()
    for step in range(2, 6):
        weights += 1
        state.commit(step)
    assert image.digest() == before


def test_own_parts_are_restored_but_never_shared():
    mine, theirs = random.Random(1), random.Random(2)
    one, other = ElasticState(copies=1, n=np.zeros(1)), ElasticState(copies=1, n=np.zeros(1))
    one.add("augment", mine, shared=False)
    other.add("augment", theirs, shared=False)
    assert one.digest() == other.digest()
    one.commit(1)
    drawn = mine.random()
    one.restore()
    assert mine.random() == drawn
    other.load(one.image(), 1)
    assert theirs.random() == random.Random(2).random()


class Counting(kf.Policy):
    def __init__(self) -> None:
        self.seen = 0


def test_many_kinds_of_parts():
    policy, numbers, generator = Counting(), {"lr": 0.1}, torch.Generator().manual_seed(3)
    tensor = torch.zeros(3)
    state = ElasticState(
        copies=1,
        policies=[policy],
        arrays={"a": np.zeros(2), "b": [np.ones(1)]},
        numbers=Value(lambda: dict(numbers), numbers.update),
        generator=generator,
        tensor=tensor,
    )
    state.commit(0)
    drawn = torch.rand(2, generator=generator)
    policy.seen, numbers["lr"] = 5, 9.0
    tensor += 1
    state.restore()
    assert (policy.seen, numbers["lr"], tensor.sum()) == (0, 0.1, 0)
    assert torch.equal(torch.rand(2, generator=generator), drawn)


@pytest.mark.parametrize("chunk_bytes", [1, 7, 64, 10_000])
@pytest.mark.parametrize("senders", [1, 3])
def test_a_stream_from_several_senders_arrives_whole(chunk_bytes, senders):
    tree = {"w": np.arange(33.0), "t": torch.arange(9), "n": 5}
    manifest = Manifest.of(Image.of(tree), 12, chunk_bytes)
    assert Manifest.from_text(manifest.to_text()) == manifest
    assembly = Assembly(manifest)
    for sender in reversed(range(senders)):
        image = Image.of(tree)
        for number, data in chunks(image, manifest, share_of(sender, senders, manifest)):
            assert len(data) <= chunk_bytes
            assembly.put(number, data)
    assert same(assembly.image().tree(), tree)


def test_what_a_lost_sender_owed_is_missing_and_can_be_had_elsewhere():
    image = Image.of({"w": np.arange(100.0)})
    manifest = Manifest.of(image, 0, 100)
    assembly = Assembly(manifest)
    for number, data in chunks(image, manifest, share_of(0, 2, manifest)):
        assembly.room(number)[:] = data
        assembly.arrived(number)
    assert assembly.missing == list(share_of(1, 2, manifest))
    with pytest.raises(UsageError, match="4 of 9 chunks are missing, the first is 1"):
        assembly.image()
    for number, data in chunks(image, manifest, assembly.missing):
        assembly.put(number, data)
    assert assembly.image().digest() == image.digest()


def test_a_stream_that_was_tampered_with_is_refused():
    image = Image.of({"w": np.arange(100.0)})
    manifest = Manifest.of(image, 0, 300)
    assembly = Assembly(manifest)
    for number, data in chunks(image, manifest):
        assembly.put(number, data)
    assembly.room(2)[0] ^= 1
    with pytest.raises(UsageError, match="the state has digest"):
        assembly.image()
    with pytest.raises(UsageError, match=r"chunk must be in \[0, 3\), got 4"):
        assembly.put(4, np.zeros(1, np.uint8))
    with pytest.raises(UsageError, match=r"chunk 0 must be uint8\[300\], got uint8\[1\]"):
        assembly.put(0, np.zeros(1, np.uint8))
    with pytest.raises(UsageError, match="not a manifest"):
        Manifest.from_text('{"step": 1}')


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: ElasticState(x=3), "part 'x' must be an array.*got int"),
        (lambda: ElasticState(copies=-1), "copies must be >= 0, got -1"),
        (lambda: ElasticState(x=np.zeros(1)).add("x", np.zeros(1)), "'x' is there already"),
        (lambda: ElasticState(x=np.zeros(1)).restore(), "step None is not kept"),
        (lambda: ElasticState(x=np.zeros(1)).image(), "nothing is committed"),
        (
            lambda: ElasticState(x=np.zeros(1)).load(Image.of({"y": np.zeros(1)}), 0),
            r"parts \['x'\], got \['y'\]",
        ),
        (
            lambda: ElasticState(x=np.zeros(2)).load(Image.of({"x": np.zeros(3)}), 0),
            r"part 'x' is float64\[2\], in this state float64\[3\]",
        ),
        (
            lambda: ElasticState(m=torch.nn.Linear(2, 2)).load(Image.of({"m": {}}), 0),
            "part 'm' does not take this state.*Missing key",
        ),
    ],
)
def test_refusals_say_what_was_seen(act, message):
    with pytest.raises(UsageError, match=f"(?s){message}"):
        act()


def test_steps_do_not_go_back():
    state = ElasticState(x=np.zeros(1))
    state.commit(5)
    with pytest.raises(UsageError, match="step 5 is committed, got 4"):
        state.commit(4)
