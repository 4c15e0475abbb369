"""Every collective, type, operator and kind of shape on 1 to 8 ranks, against NumPy."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from worlds import run_world

from kfcore import inproc_world
from kfcore.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
DTYPES = {
    "bool": torch.bool,
    "uint8": torch.uint8,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
    "complex64": torch.complex64,
    "complex128": torch.complex128,
}
OPS = ("sum", "prod", "min", "max", "avg")
HALF = ("float16", "bfloat16")
SHAPES = ((5,), (), (0, 2), (700, 3), "strided")


def refused(dtype, op):
    return (dtype.startswith("complex") and op in ("min", "max")) or (dtype, op) == (
        "bool",
        "avg",
    )


def values(dtype, shape, rank):
    """Small whole numbers, so that sums are exact; a tensor for every other rank's sake."""
    size = (4, 6) if shape == "strided" else shape
    count = int(np.prod(size))
    numbers = ((torch.arange(count) * 7 + rank * 3) % 5 - int(dtype != "uint8")).reshape(size)
    tensor = numbers.to(DTYPES[dtype])
    if dtype.startswith("complex"):
        tensor = tensor * (1 + 1j) - 1j * rank
    return tensor.t()[::2] if shape == "strided" else tensor


def wide(tensor):
    """What the reference is computed in: 32 bits for the 16-bit floats."""
    return (
        tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
    ).numpy()


def reduced(dtype, op, contributions):
    stack = np.stack([wide(tensor) for tensor in contributions])
    n = len(contributions)
    if dtype == "bool":
        result = stack.any(0) if op in ("sum", "max") else stack.all(0)
    elif op == "avg":
        total = stack.sum(0, dtype=stack.dtype)
        exact = total / stack.dtype.type(n)
        result = np.trunc(exact) if stack.dtype.kind in "iu" else exact
    elif op in ("sum", "prod"):
        result = getattr(stack, op)(0, dtype=stack.dtype)
    else:
        result = getattr(stack, op)(0)
    return torch.from_numpy(np.array(result)).to(DTYPES[dtype])


def same(got, expected):
    """Equal bits; for complex numbers, whose division has more than one rounding, nearly."""
    loose = 1e-6 if got.is_complex() else 0
    torch.testing.assert_close(got, expected, rtol=loose, atol=loose)


def reductions(session, dtype, shape):
    n, rank = session.world_size, session.rank
    everyone = [values(dtype, shape, r) for r in range(n)]
    rows = [torch.stack([values(dtype, shape, r + i) for i in range(n)]) for r in range(n)]
    for op in OPS:
        mine = everyone[rank].clone(memory_format=torch.preserve_format)
        if refused(dtype, op):
            for call in (session.all_reduce, session.reduce):
                with pytest.raises(UsageError, match=f"{op} has no meaning for dtype {dtype}"):
                    call(mine, op)
            continue
        expected = reduced(dtype, op, everyone)
        same(session.all_reduce(mine, op), expected)
        root = n - 1
        mine = everyone[rank].clone()
        same(session.reduce(mine, op, root), expected if rank == root else everyone[rank])
        same(session.reduce_scatter(rows[rank], op), reduced(dtype, op, rows)[rank])


def movements(session, dtype, shape):
    n, rank = session.world_size, session.rank
    everyone = [values(dtype, shape, r) for r in range(n)]
    mine, stacked = everyone[rank], torch.stack(everyone)
    root = n // 2
    same(session.broadcast(mine.clone(), root), everyone[root])
    same(session.all_gather(mine), stacked)
    gathered = session.gather(mine, root)
    if rank == root:
        same(gathered, stacked)
    same(session.scatter(stacked, root), mine)
    turned = torch.stack([values(dtype, shape, rank * n + d) for d in range(n)])
    swapped = torch.stack([values(dtype, shape, s * n + rank) for s in range(n)])
    same(session.all_to_all(turned), swapped)
    uneven = session.all_gather_uneven(
        torch.stack([mine] * (rank % 3)) if rank % 3 else turned[:0]
    )
    same(
        uneven,
        torch.cat([torch.stack([each] * (r % 3)) for r, each in enumerate(everyone) if r % 3])
        if n > 1
        else turned[:0],
    )
    if n > 1:
        session.send(mine, (rank + 1) % n)
        same(session.recv(torch.empty_like(mine), (rank - 1) % n), everyone[(rank - 1) % n])


def matrix(session):
    for dtype in DTYPES:
        for shape in SHAPES:
            reductions(session, dtype, shape)
            movements(session, dtype, shape)
    session.barrier()


def part_of_matrix(session):
    """Each type with one kind of shape and each kind of shape with two or three types."""
    for index, dtype in enumerate(DTYPES):
        shape = SHAPES[(index + session.world_size) % len(SHAPES)]
        reductions(session, dtype, shape)
        movements(session, dtype, shape)
    session.barrier()


@pytest.mark.parametrize("world_size", range(1, 9))
def test_each_type_and_shape_gives_numpys_answer_within_a_process(world_size):
    inproc_world(world_size, part_of_matrix, timeout_s=90)


@pytest.mark.parametrize("transport", ["tcp", "shm"])
@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_each_type_and_shape_gives_numpys_answer_between_workers(transport, world_size):
    run_world(transport, world_size, part_of_matrix, timeout_s=90)


@pytest.mark.slow
@pytest.mark.parametrize("world_size", range(1, 9))
def test_every_combination_gives_numpys_answer_within_a_process(world_size):
    inproc_world(world_size, matrix, timeout_s=90)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["tcp", "shm"])
@pytest.mark.parametrize("world_size", range(2, 9))
def test_every_combination_gives_numpys_answer_between_workers(transport, world_size):
    run_world(transport, world_size, matrix, timeout_s=90)


def test_the_table_in_the_documentation_is_true():
    text = (ROOT / "docs" / "collectives.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", text, re.MULTILINE)
    table = {name: [cell.strip() for cell in cells.split("|")] for name, cells in rows}
    assert {name for name in table if name in DTYPES} == set(DTYPES)
    for dtype in DTYPES:
        for op, cell in zip(OPS, table[dtype], strict=True):
            assert (cell == "refused") == refused(dtype, op), (dtype, op)


@pytest.mark.parametrize(("world_size", "value"), [(2, 40000.0), (256, 300.0)])
def test_16_bit_sums_neither_overflow_nor_vanish_on_the_way(world_size, value):
    def work(session):
        array = np.array([value, 6e-8], np.float16)
        session.all_reduce(array, "avg")
        assert array[0] == value
        assert array[1] > 0

    inproc_world(world_size, work, schedule="binary_tree")


def test_16_bit_sums_travel_as_32_bits_and_everything_else_as_it_is():
    def work(session):
        array = np.ones(4000, np.float16)
        sent = []
        for call in (session.all_reduce, lambda a: session.all_reduce(a, "max")):
            before = session.stats().bytes_sent
            call(array)
            sent.append(session.stats().bytes_sent - before)
        return sent

    # ring: 2 (n - 1) / n of the buffer
    assert inproc_world(4, work) == [[6 * 1000 * 4, 6 * 1000 * 2]] * 4


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["inproc", "shm"])
def test_more_elements_than_32_bits_count(transport):
    count = (1 << 31) + 9

    def work(session):
        array = np.full(count, 1 + session.rank, np.uint8)
        array[1 << 31] = 5
        session.broadcast(array, 1)
        assert (array[0], array[1 << 31], array[-1]) == (2, 5, 2)
        session.all_reduce(array)
        assert (array[0], array[1 << 31], array[-1]) == (4, 10, 4)

    run_world(transport, 2, work, timeout_s=90)
