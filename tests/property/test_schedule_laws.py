"""Laws that hold for every schedule: all generators, collectives and world sizes 1..64."""

import json
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_cases import CASES, spec_of

from kfcore import schedule as ks
from kfcore.errors import UsageError

WORLD_SIZES = range(1, 65)


def roots(collective: str, n: int) -> list[int]:
    rooted = collective in {"reduce", "broadcast", "gather", "scatter"}
    return sorted({0, n // 2, n - 1}) if rooted else [0]


def test_cases_cover_every_generator_and_collective():
    generated = set(ks.names()) - {"custom"}
    assert {label.split()[0] for label, _ in CASES} - {"chain"} == generated
    assert len({collective for _, collective in CASES}) == 9
    assert len(CASES) > 100


@pytest.mark.parametrize(("label", "collective"), CASES)
def test_schedule_is_proved_for_every_world_size(label, collective):
    for n in WORLD_SIZES:
        for root in roots(collective, n):
            schedule = ks.build(spec_of(label, n), n, collective, root)
            ks.validate(schedule)
            assert schedule.root == root
            if n == 1:
                assert schedule.channels == []


@pytest.mark.parametrize(("label", "collective"), CASES)
def test_name_is_a_spec_that_builds_the_same_schedule(label, collective):
    for n in (2, 5, 8, 12):
        for root in roots(collective, n):
            schedule = ks.build(spec_of(label, n), n, collective, root)
            assert ks.build(schedule.name, n, collective, root) == schedule


@pytest.mark.parametrize(("label", "collective"), CASES)
def test_nobody_sends_a_chunk_to_a_rank_twice_in_a_round(label, collective):
    for n in (2, 3, 7, 16):
        for moves in all_rounds(ks.build(spec_of(label, n), n, collective)):
            sent = [
                (move.src, move.dst, chunk)
                for move in moves
                for chunk in range(move.chunk_begin, move.chunk_begin + move.chunk_count)
            ]
            assert len(sent) == len(set(sent))


SINGLE_PORT_LABELS = {
    "ring",
    "ring order",
    "recursive_doubling",
    "halving_doubling",
    "pairwise",
    "dissemination",
    "chain",
}
SINGLE_PORT = [case for case in CASES if case[0] in SINGLE_PORT_LABELS]


@pytest.mark.parametrize(("label", "collective"), SINGLE_PORT)
def test_single_port_schedules_send_to_one_rank_and_hear_one_rank_a_round(label, collective):
    for n in (2, 3, 7, 16, 29):
        for moves in all_rounds(ks.build(spec_of(label, n), n, collective)):
            links = {(move.src, move.dst) for move in moves}
            assert len({src for src, _ in links}) == len(links)
            assert len({dst for _, dst in links}) == len(links)


def all_rounds(schedule):
    return [moves for rounds in schedule.channels for moves in rounds]


SUMS = {"all_reduce", "reduce", "reduce_scatter", "barrier"}


def is_right(schedule) -> bool:
    """Slow reference for validate(): counts contributions one by one, as multisets."""
    n, chunks, collective = schedule.world_size, schedule.chunk_count, schedule.collective
    held = {
        (rank, chunk): Counter({rank: 1} if collective in SUMS else {0: 1})
        for rank in range(n)
        for chunk in range(chunks)
        if starts(schedule, rank, chunk)
    }
    for moves in all_rounds(schedule):
        writes: dict[tuple[int, int], list[str]] = {}
        before = {cell: Counter(what) for cell, what in held.items()}
        for move in moves:
            for chunk in range(move.chunk_begin, move.chunk_begin + move.chunk_count):
                cell = (move.dst, chunk)
                incoming = before.get((move.src, chunk))
                if incoming is None or (move.combine == "reduce" and cell not in held):
                    return False
                writes.setdefault(cell, []).append(move.combine)
                held[cell] = incoming + (held[cell] if move.combine == "reduce" else Counter())
                if max(held[cell].values()) > 1 and collective != "barrier":
                    return False
        if any(len(kinds) > 1 and "replace" in kinds for kinds in writes.values()):
            return False
    everything = set(range(n)) if collective in SUMS else {0}
    return all(
        set(held.get((rank, chunk), ())) == everything
        for rank in range(n)
        for chunk in range(chunks)
        if ends(schedule, rank, chunk)
    )


def starts(schedule, rank: int, chunk: int) -> bool:
    n, per_rank = schedule.world_size, max(1, schedule.chunk_count // schedule.world_size)
    return {
        "broadcast": rank == schedule.root,
        "scatter": rank == schedule.root,
        "all_gather": chunk // per_rank == rank,
        "gather": chunk // per_rank == rank,
        "all_to_all": chunk // n == rank,
    }.get(schedule.collective, True)


def ends(schedule, rank: int, chunk: int) -> bool:
    n, per_rank = schedule.world_size, max(1, schedule.chunk_count // schedule.world_size)
    return {
        "reduce": rank == schedule.root,
        "gather": rank == schedule.root,
        "reduce_scatter": chunk // per_rank == rank,
        "scatter": chunk // per_rank == rank,
        "all_to_all": chunk % n == rank,
    }.get(schedule.collective, True)


@given(case=st.sampled_from(CASES), n=st.integers(1, 12))
def test_reference_accepts_what_the_generators_build(case, n):
    assert is_right(ks.build(spec_of(case[0], n), n, case[1]))


@settings(max_examples=500)
@given(
    case=st.sampled_from(CASES),
    n=st.integers(3, 17),
    kind=st.sampled_from(["drop", "duplicate", "dst", "chunk", "combine"]),
    data=st.data(),
)
def test_validate_catches_every_corruption_that_the_reference_catches(case, n, kind, data):
    label, collective = case
    schedule = ks.build(spec_of(label, n), n, collective, data.draw(st.integers(0, n - 1)))
    text = json.loads(ks.to_json(schedule))
    rounds = [moves for channel in text["channels"] for moves in channel]
    moves = data.draw(st.sampled_from(rounds))
    index = data.draw(st.integers(0, len(moves) - 1))
    if not corrupt(moves, index, kind, schedule, data):
        return
    damaged = ks.from_json(json.dumps(text))
    if crosses_channels(damaged) or not is_right(damaged):
        with pytest.raises(UsageError, match="is wrong"):
            ks.validate(damaged)
        return
    ks.validate(damaged)
    # Sending a contribution by another way can be right; hearing twice harms no barrier.
    assert kind in {"dst", "chunk"} or collective == "barrier"


def crosses_channels(schedule) -> bool:
    users: dict[int, set[int]] = {}
    for channel, rounds in enumerate(schedule.channels):
        for move in (move for moves in rounds for move in moves):
            for chunk in range(move.chunk_begin, move.chunk_begin + move.chunk_count):
                users.setdefault(chunk, set()).add(channel)
    return any(len(channels) > 1 for channels in users.values())


def corrupt(moves, index, kind, schedule, data) -> bool:
    """Changes one transfer; False where the change would leave the schedule as it was."""
    move = moves[index]
    if kind == "drop":
        del moves[index]
    elif kind == "duplicate":
        moves.append(dict(move))
    elif kind == "dst":
        others = set(range(schedule.world_size)) - {move["src"], move["dst"]}
        move["dst"] = data.draw(st.sampled_from(sorted(others)))
    elif kind == "chunk":
        last = schedule.chunk_count - move["chunk_count"]
        others = set(range(last + 1)) - {move["chunk_begin"]}
        if not others:
            return False
        move["chunk_begin"] = data.draw(st.sampled_from(sorted(others)))
    else:
        move["combine"] = "reduce" if move["combine"] == "replace" else "replace"
    return True


@given(
    case=st.sampled_from(CASES),
    n=st.integers(1, 12),
)
def test_json_keeps_every_schedule(case, n):
    schedule = ks.build(spec_of(case[0], n), n, case[1])
    assert ks.from_json(ks.to_json(schedule)) == schedule


@given(n=st.integers(1, 10), seed=st.integers(0, 2**32 - 1), low=st.floats(0.01, 1))
def test_schedules_for_measured_links_are_proved(n, seed, low):
    rng = random.Random(seed)
    matrix = [[rng.uniform(low, 1) for _ in range(n)] for _ in range(n)]
    ks.validate(ks.from_bandwidth(matrix))
    tree = ks.minimum_spanning_tree(matrix)
    ks.validate(tree)
    assert tree_weight(tree, matrix) <= star_weight(matrix) + 1e-12


def tree_weight(tree, matrix):
    edges = {
        frozenset((move.src, move.dst))
        for rounds in tree.channels
        for r in rounds
        for move in r
    }
    return sum((matrix[a][b] + matrix[b][a]) / 2 for a, b in map(tuple, edges))


def star_weight(matrix):
    return sum((matrix[0][v] + matrix[v][0]) / 2 for v in range(1, len(matrix)))


PARTS = [
    *ks.names(),
    "(",
    ")",
    ",",
    "=",
    "*",
    "0",
    "1",
    "2",
    "-1",
    "root",
    "order",
    "intra",
    " ",
]


@settings(max_examples=1_000)
@given(text=st.lists(st.sampled_from(PARTS), max_size=14).map("".join), n=st.integers(1, 5))
def test_any_text_is_a_right_schedule_or_refused(text, n):
    try:
        schedule = ks.build(text, n)
    except UsageError:
        return
    ks.validate(schedule)
    assert ks.build(schedule.name, n) == schedule
