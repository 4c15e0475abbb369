"""What schedules cost: the closed forms of docs/algorithms.md, on every rank."""

import math

import pytest
from schedule_cases import CASES, spec_of

from kfcore import schedule as ks

UNIT = 60  # bytes of a chunk, so that every buffer below is cut evenly


def tree_children(label: str, n: int) -> tuple[list[int], int]:
    """Children of each rank and the root of the trees that one can write down at once."""
    fanout = {"binary_tree": 2, "tree": 2, "tree 3": 3, "chain": 1}
    if label in fanout:
        k = fanout[label]
        return [max(0, min(n - 1, k * r + k) - k * r) for r in range(n)], 0
    if label == "binomial_tree":
        return [sum(v & (v - 1) == r for v in range(1, n)) for r in range(n)], 0
    root = n - 1 if label == "star root" else 0
    return [n - 1 if r == root else 0 for r in range(n)], root


def folded(n: int) -> tuple[int, list[str]]:
    """Largest power of two <= n, and the part each rank plays in doubling."""
    p = 1 << (n.bit_length() - 1)
    rem = n - p
    plays = ["hears" if r % 2 == 0 else "folds" for r in range(2 * rem)]
    return p, plays + ["works"] * (n - 2 * rem)


FLAT = {"ring", "ring order", "clique", "pairwise"}
PLAIN_TREES = {"binary_tree", "tree", "tree 3", "chain", "binomial_tree", "star", "star root"}


def part_sent(label: str, collective: str, n: int) -> list[float] | None:
    """Closed form of docs/algorithms.md for root 0; None where it has none for each rank."""
    near = (n - 1) / n
    if label in FLAT and collective in {"all_reduce", "reduce_scatter", "all_gather"}:
        return [2 * near if collective == "all_reduce" else near] * n
    if label == "multi_binary_tree_star" and collective == "all_reduce":
        return [2 * near] * n
    if label in {"recursive_doubling", "halving_doubling"} and collective == "all_reduce":
        p, plays = folded(n)
        work = math.log2(p) if label == "recursive_doubling" else 2 * (p - 1) / p
        return [{"folds": 1, "hears": work + 1, "works": work}[play] for play in plays]
    if label in PLAIN_TREES:
        return tree_part_sent(label, collective, n)
    return rooted_part_sent(label, collective, n)


def rooted_part_sent(label: str, collective: str, n: int) -> list[float] | None:
    near = (n - 1) / n
    chain = {
        "broadcast": [1.0] * (n - 1) + [0.0],
        "reduce": [0.0] + [1.0] * (n - 1),
        "gather": [0.0] + [(n - d) / n for d in range(1, n)],
        "scatter": [(n - 1 - d) / n for d in range(n)],
    }
    direct = {
        "all_to_all": [(n - 1) / n**2] * n,
        "gather": [0.0] + [1 / n] * (n - 1),
        "scatter": [near] + [0.0] * (n - 1),
        "reduce": [near] + [near + 1 / n] * (n - 1),
        "broadcast": [2 * near] + [(n - 2) / n] * (n - 1),
    }
    forms = {"ring": chain, "clique": direct, "pairwise": direct}
    return forms.get(label, {}).get(collective)


def tree_part_sent(label: str, collective: str, n: int) -> list[float] | None:
    children, root = tree_children(label, n)
    if collective != "all_reduce" and root != 0:
        return None  # turned to hang from the collective's root: another tree
    down = [float(count) for count in children]
    up = [0.0 if r == root else 1.0 for r in range(n)]
    return {
        "all_reduce": [a + b for a, b in zip(up, down, strict=True)],
        "reduce": up,
        "broadcast": down,
    }.get(collective)


CLOSED = [case for case in CASES if part_sent(*case, 8) is not None]


def test_closed_forms_exist_for_all_basic_generators():
    with_all_reduce = {label for label, collective in CLOSED if collective == "all_reduce"}
    assert with_all_reduce >= {
        "ring", "recursive_doubling", "halving_doubling", "binary_tree", "tree", "star",
        "clique", "pairwise", "multi_binary_tree_star", "binomial_tree",
    }  # fmt: skip
    assert len(CLOSED) >= 35


@pytest.mark.parametrize(("label", "collective"), CLOSED)
def test_bytes_sent_are_the_closed_form_on_every_rank(label, collective):
    for n in range(2, 65):
        schedule = ks.build(spec_of(label, n), n, collective)
        buffer_bytes = UNIT * schedule.chunk_count * n
        sent = ks.cost(schedule, buffer_bytes, latency_s=0, bytes_per_s=1).bytes_sent
        expected = [part * buffer_bytes for part in part_sent(label, collective, n)]
        assert sent == pytest.approx(expected, rel=1e-12), f"world size {n}"


@pytest.mark.parametrize("label", [label for label, what in CASES if what == "all_reduce"])
def test_all_reduce_moves_at_least_the_lower_bound(label):
    # Each of n contributions to each byte must leave n-1 ranks, and the sum must reach n-1.
    for n in (2, 3, 8, 21):
        schedule = ks.build(spec_of(label, n), n)
        buffer_bytes = UNIT * schedule.chunk_count * n
        sent = ks.cost(schedule, buffer_bytes, latency_s=0, bytes_per_s=1).bytes_sent
        assert sum(sent) >= 2 * (n - 1) * buffer_bytes


SPREADING = [case for case in CASES if case[1] in {"broadcast", "all_gather"}]


@pytest.mark.parametrize(("label", "collective"), SPREADING)
def test_nobody_hears_a_byte_that_it_has_already(label, collective):
    for n in (2, 3, 6, 8, 13, 16):
        schedule = ks.build(spec_of(label, n), n, collective)
        buffer_bytes = UNIT * schedule.chunk_count
        sent = ks.cost(schedule, buffer_bytes, latency_s=0, bytes_per_s=1).bytes_sent
        assert sum(sent) == (n - 1) * buffer_bytes


TREES = ["double_binary_tree", "multi_binary_tree_star hosts", "forest", "from_parents"]


@pytest.mark.parametrize("label", TREES)
def test_trees_send_every_byte_up_and_down_each_edge_once(label):
    for n in range(2, 65):
        schedule = ks.build(spec_of(label, n), n)
        buffer_bytes = UNIT * schedule.chunk_count
        sent = ks.cost(schedule, buffer_bytes, latency_s=0, bytes_per_s=1).bytes_sent
        assert sum(sent) == 2 * (n - 1) * buffer_bytes
        if label == "double_binary_tree":  # an inner rank sends 3 halves, as a leaf 1 half
            assert max(sent) <= 2 * buffer_bytes


# ---- Time ------------------------------------------------------------------------------

ALPHA, BETA, GAMMA = 3e-5, 1 / 1.25e9, 1 / 5e9


def time_s(label: str, n: int, buffer_bytes: int, collective: str = "all_reduce") -> float:
    return ks.cost(
        ks.build(spec_of(label, n), n, collective),
        buffer_bytes,
        latency_s=ALPHA,
        bytes_per_s=1 / BETA,
        reduce_bytes_per_s=1 / GAMMA,
    ).time_s


@pytest.mark.parametrize("n", range(2, 65))
def test_time_is_the_closed_form(n):
    size = UNIT * n * n
    part = size / n
    ring = 2 * (n - 1) * (ALPHA + part * BETA) + (n - 1) * part * GAMMA
    assert time_s("ring", n, size) == pytest.approx(ring, rel=1e-12)
    assert time_s("pairwise", n, size) == pytest.approx(ring, rel=1e-12)
    clique = 2 * ALPHA + 2 * (n - 1) * part * BETA + (n - 1) * part * GAMMA
    assert time_s("clique", n, size) == pytest.approx(clique, rel=1e-12)
    star = 2 * ALPHA + 2 * (n - 1) * size * BETA + (n - 1) * size * GAMMA
    assert time_s("star", n, size) == pytest.approx(star, rel=1e-12)
    chain = 2 * (n - 1) * (ALPHA + size * BETA) + (n - 1) * size * GAMMA
    assert time_s("chain", n, size) == pytest.approx(chain, rel=1e-12)
    pipelined = (2 * n - 2) * (ALPHA + part * BETA)
    assert time_s("ring", n, size, "broadcast") == pytest.approx(pipelined, rel=1e-12)
    assert time_s("dissemination", n, 0, "barrier") == pytest.approx(
        math.ceil(math.log2(n)) * ALPHA, rel=1e-12
    )


@pytest.mark.parametrize("n", range(2, 65))
def test_doubling_time_is_the_closed_form_with_two_more_rounds_off_powers_of_two(n):
    p, _ = folded(n)
    size = UNIT * n * p
    k = math.log2(p)
    fold = 0.0 if n == p else 2 * (ALPHA + size * BETA) + size * GAMMA
    doubling = k * (ALPHA + size * (BETA + GAMMA)) + fold
    assert time_s("recursive_doubling", n, size) == pytest.approx(doubling, rel=1e-12)
    halving = 2 * k * ALPHA + (p - 1) / p * size * (2 * BETA + GAMMA) + fold
    assert time_s("halving_doubling", n, size) == pytest.approx(halving, rel=1e-12)


@pytest.mark.parametrize("height", range(1, 6))
def test_full_binary_tree_time_is_the_closed_form(height):
    n, size = 2 ** (height + 1) - 1, 4_000
    expected = 2 * height * (ALPHA + 2 * size * BETA) + height * 2 * size * GAMMA
    assert time_s("binary_tree", n, size) == pytest.approx(expected, rel=1e-12)
    assert time_s("tree", n, size) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("k", range(1, 7))
def test_binomial_tree_time_over_a_power_of_two_is_the_closed_form(k):
    size = 4_000
    expected = 2 * k * (ALPHA + size * BETA) + k * size * GAMMA
    assert time_s("binomial_tree", 2**k, size) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("n", range(2, 65))
def test_double_binary_tree_takes_as_many_rounds_as_its_deeper_tree(n):
    price = ks.cost(ks.build("double_binary_tree", n), 1 << 20, latency_s=1e-5, bytes_per_s=1e9)
    assert price.rounds == 2 * math.ceil(math.log2(n))
    assert max(price.bytes_sent) <= 2 << 20


@pytest.mark.parametrize("inter", ["ring", "recursive_doubling", "halving_doubling"])
@pytest.mark.parametrize(
    ("intra", "per_host"), [("ring", 2), ("ring", 3), ("halving_doubling", 4), ("ring", 8)]
)
@pytest.mark.parametrize("hosts", [2, 4, 8])
def test_hierarchical_rounds_and_bytes_are_those_of_its_parts(intra, inter, per_host, hosts):
    spec = f"hierarchical(intra={intra},inter={inter},ranks_per_host={per_host})"
    n, k = hosts * per_host, int(math.log2(hosts))
    size = 64 * n * n
    price = ks.cost(ks.build(spec, n), size, latency_s=1e-5, bytes_per_s=1e9)
    within = 2 * (per_host - 1) if intra == "ring" else 2 * int(math.log2(per_host))
    between, part = {
        "ring": (2 * (hosts - 1), 2 * (hosts - 1) / hosts),
        "recursive_doubling": (k, k),
        "halving_doubling": (2 * k, 2 * (hosts - 1) / hosts),
    }[inter]
    assert price.rounds == within + between
    sent = size * (2 * (per_host - 1) / per_host + part / per_host)
    assert price.bytes_sent == pytest.approx([sent] * n, rel=1e-12)
