"""Building, reading and choosing schedules in Python; what the errors say."""

import json

import numpy as np
import pytest

from kfcore import schedule as ks
from kfcore.errors import UsageError


def test_schedule_is_a_read_only_value():
    ring = ks.build("ring", 3)
    assert (ring.name, ring.collective, ring.world_size, ring.root) == (
        "ring",
        "all_reduce",
        3,
        0,
    )
    assert ring == ks.build("ring", 3)
    assert ring != ks.build("ring", 4)
    assert len({ring, ks.build("ring", 3)}) == 1
    with pytest.raises(AttributeError):
        ring.world_size = 4
    with pytest.raises(AttributeError):
        ring.channels[0][0][0].src = 1


def test_ring_of_three_sends_these_chunks():
    rounds = [
        [(move.src, move.dst, move.chunk_begin, move.combine) for move in moves]
        for moves in ks.build("ring", 3).channels[0]
    ]
    assert rounds == [
        [(0, 1, 2, "reduce"), (1, 2, 0, "reduce"), (2, 0, 1, "reduce")],
        [(0, 1, 1, "reduce"), (1, 2, 2, "reduce"), (2, 0, 0, "reduce")],
        [(0, 1, 0, "replace"), (1, 2, 1, "replace"), (2, 0, 2, "replace")],
        [(0, 1, 2, "replace"), (1, 2, 0, "replace"), (2, 0, 1, "replace")],
    ]


def test_combination_that_does_not_exist_lists_those_that_do():
    with pytest.raises(
        UsageError, match=r"star does not offer all_to_all; it offers all_reduce"
    ):
        ks.build("star", 4, "all_to_all")
    with pytest.raises(UsageError, match=r'collective must be one of .*; got "allreduce"'):
        ks.build("ring", 4, "allreduce")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "must look like name"),
        ("ring()", "an argument is empty"),
        ("ring(order=)", "an argument is empty"),
        ("star(root=1,root=1)", "argument root stands twice"),
        ("star(1)", "it takes root"),
        ("star(root=99999999999)", "whole number"),
        ("tree(fanout=0)", r"must be in \[1, 8192\], got 0"),
        ("auto(bytes_per_s=-1)", "finite number > 0"),
        ("forest(0*(0,0))", "weight must be in"),
        ("hierarchical(intra=ring", "must end with"),
        ("hierarchical(intra=ring))", "parentheses do not match"),
        ("hierarchical(intra=pairwise(,ranks_per_host=2)", "parentheses do not match"),
        ("hierarchical(inter=" * 40 + "ring" + ")" * 40, "nested too deeply"),
        ("Ring", "lower-case"),
    ],
)
def test_malformed_spec_is_refused(spec, message):
    with pytest.raises(UsageError, match=message):
        ks.build(spec, 2)


def test_hierarchical_keeps_most_bytes_inside_hosts():
    schedule = ks.build("hierarchical(ranks_per_host=4)", 16)
    between = sum(
        move.chunk_count
        for moves in schedule.channels[0]
        for move in moves
        if move.src // 4 != move.dst // 4
    )
    # four inter-host rings of four ranks, each over a quarter of the buffer: 2 * 3 quarters
    assert between / schedule.chunk_count == pytest.approx(4 * 2 * 3 / 4)


def test_auto_builds_the_choice_for_its_numbers():
    small = ks.build("auto(buffer_bytes=64,latency_s=1e-4,bytes_per_s=1e9)", 8)
    large = ks.build("auto(buffer_bytes=1e9,latency_s=1e-6,bytes_per_s=1e9)", 12)
    assert (small.name, large.name) == ("recursive_doubling", "ring")
    assert ks.build("auto", 8, "all_to_all").name == "pairwise"


def test_choose_handles_thousands_of_ranks():
    assert ks.choose(10**9, 3000, latency_s=1e-6, bytes_per_s=1e9) == "ring"


def test_from_bandwidth_goes_round_a_narrow_link():
    wide = np.full((6, 6), 10.0)
    wide[0, 1] = wide[1, 0] = 0.1  # the plain ring would use it
    schedule = ks.from_bandwidth(wide)
    used = {(m.src, m.dst) for rounds in schedule.channels for r in rounds for m in r}
    assert not used & {(0, 1), (1, 0)}


def test_from_bandwidth_finds_a_wide_ring_where_the_greedy_search_is_trapped():
    # Links of 10 make a ring 0-4-1-3-2-0, but every rank's greedy walk ends at a link of 1.
    wide = [(0, 1), (0, 2), (0, 4), (1, 3), (1, 4), (2, 3)]
    links = np.ones((5, 5))
    for a, b in wide:
        links[a, b] = links[b, a] = 10.0
    schedule = ks.from_bandwidth(links)
    assert schedule.name == "ring(order=(0,4,1,3,2))"
    used = {(m.src, m.dst) for rounds in schedule.channels for r in rounds for m in r}
    assert min(links[a, b] for a, b in used) == 10.0


def test_from_bandwidth_keeps_trees_shallow_where_that_is_free():
    slow = np.full((8, 8), 10.0)
    slow[0, :] = slow[:, 0] = 1.0
    # rank 0 is the bottleneck whatever hangs below rank 1, so all of it hangs at once
    assert ks.from_bandwidth(slow).name == "from_parents(0,0,1,1,1,1,1,1)"


def test_from_bandwidth_makes_a_slow_rank_a_leaf():
    slow = np.full((5, 5), 10.0)
    slow[2, :] = slow[:, 2] = 1.0
    schedule = ks.from_bandwidth(slow)
    price = ks.cost(schedule, schedule.chunk_count * 100, latency_s=0, bytes_per_s=1)
    assert (
        price.bytes_sent[2] == schedule.chunk_count * 100
    )  # each byte once: the least possible


def test_from_bandwidth_of_equal_links_is_a_ring():
    assert ks.from_bandwidth(np.ones((7, 7))).name == "ring"
    assert ks.from_bandwidth([[0.0]]).channels == []


def test_matrix_faults_name_the_place():
    with pytest.raises(UsageError, match=r"got -1.0+ from rank 1 to rank 0"):
        ks.minimum_spanning_tree([[0, 1], [-1, 0]])
    with pytest.raises(UsageError, match="finite"):
        ks.from_bandwidth([[0, float("nan")], [1, 0]])
    with pytest.raises(UsageError, match=r"square matrix, got shape \(1, 2\)"):
        ks.minimum_spanning_tree([[0, 1]])
    with pytest.raises(UsageError, match="square matrix"):
        ks.minimum_spanning_tree([[0, 1], [2]])
    with pytest.raises(UsageError, match="do not join all ranks"):
        ks.from_bandwidth([[0, 0], [1, 0]])


def test_minimum_spanning_tree_follows_short_links_and_serves_rooted_collectives():
    line = [[abs(a - b) for b in range(5)] for a in range(5)]
    assert ks.minimum_spanning_tree(line).name == "from_parents(1,2,2,2,3)"
    broadcast = ks.minimum_spanning_tree(line, "broadcast", root=4)
    ks.validate(broadcast)
    assert broadcast.channels[0][0][0].src == 4


def edited(**changes) -> str:
    return json.dumps(json.loads(ks.to_json(ks.build("star", 2))) | changes)


MOVE = {"src": 0, "dst": 1, "chunk_begin": 0, "chunk_count": 1, "combine": "reduce"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "must be JSON"),
        ("[]", "the schedule must be an object, got list"),
        (edited(colour="red"), r"unknown keys \['colour'\]"),
        (edited(format="kf-schedule/9"), 'format must be "kf-schedule/1"'),
        (edited(world_size="2"), "world_size must be int, got str"),
        (edited(world_size=True), "world_size must be int, got bool"),
        (edited(chunk_count=2**31), "must fit 32 bits"),
        (edited(collective="sum"), "collective must be one of"),
        (edited(channels={}), "channels must be list, got dict"),
        (edited(channels=[1]), "channel 0 must be a list, got int"),
        (edited(channels=[[1]]), "channel 0, round 0 must be a list"),
        (edited(channels=[[[1]]]), "channel 0, round 0, transfer 0 must be an object"),
        (edited(channels=[[[MOVE | {"combine": "add"}]]]), "combine must be replace or reduce"),
        (edited(channels=[[[MOVE | {"tag": 1}]]]), r"transfer 0: unknown keys \['tag'\]"),
    ],
)
def test_json_faults_name_the_place(text, message):
    with pytest.raises(UsageError, match=message):
        ks.from_json(text)


def test_json_of_a_hand_written_schedule_is_read_and_proved():
    swap = [[[MOVE, MOVE | {"src": 1, "dst": 0}]]]
    schedule = ks.from_json(edited(name="swap", channels=swap))
    ks.validate(schedule)
    assert schedule.name == "swap"


def test_cost_refuses_numbers_outside_their_range():
    ring = ks.build("ring", 2)
    with pytest.raises(UsageError, match="bytes_per_s must be > 0"):
        ks.cost(ring, 8, latency_s=0, bytes_per_s=0)
    with pytest.raises(UsageError, match="multiple of 4, got 6"):
        ks.cost(ring, 6, latency_s=0, bytes_per_s=1, unit_bytes=4)
