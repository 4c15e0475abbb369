"""Schedules from strangers: whatever a file or spec holds, it is read or refused."""

import contextlib
import copy
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfcore import schedule as ks
from kfcore.errors import UsageError

WHOLE = json.loads(ks.to_json(ks.build("double_binary_tree", 5)))
ODD = st.sampled_from(
    [
        None,
        True,
        -1,
        0,
        1,
        2,
        5,
        2**31 - 1,
        -(2**31),
        2**31,
        10**30,
        1.5,
        math.nan,
        "",
        "x",
        [],
        {},
    ]
)


def places(value, here=()):
    """Paths of all values inside."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in inside:
        yield (*here, key)
        if isinstance(item, dict | list):
            yield from places(item, (*here, key))


def use(schedule):
    """Whatever a user may do with a schedule that was read."""
    for call in (
        ks.validate,
        ks.spec_of,
        ks.to_json,
        lambda s: ks.cost(s, 1 << 40, latency_s=1e-6, bytes_per_s=1e9),
    ):
        with contextlib.suppress(UsageError):
            call(schedule)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(list(places(WHOLE))), ODD), min_size=1, max_size=3))
def test_any_change_of_a_file_is_read_or_refused(changes):
    data = json.loads(json.dumps(WHOLE))
    for path, value in changes:
        table = data
        with contextlib.suppress(LookupError, TypeError):  # an earlier change took it away
            for key in path[:-1]:
                table = table[key]
            table[path[-1]] = copy.deepcopy(value)  # or a later change could tie a knot
    try:
        schedule = ks.from_json(json.dumps(data))
    except UsageError:
        return
    use(schedule)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 50_000, "1" * 10_000, "", "nul", "[]"]
)
def test_text_that_is_no_schedule_is_refused(text):
    with pytest.raises(UsageError):
        ks.from_json(text)


@pytest.mark.parametrize("number", [0, -1, 8193, 2**31, 2**63, 10**30, 1.5, "4", None])
def test_a_world_that_cannot_be_is_refused_by_name(number):
    for call in (
        lambda: ks.build("ring", number),
        lambda: ks.choose(8, number, latency_s=0.0, bytes_per_s=1.0),
    ):
        with pytest.raises(UsageError, match="world_size must"):
            call()


@pytest.mark.parametrize("number", [-1, 2**48 + 1, 2**63, 10**30, math.nan, "4", None])
def test_a_size_that_cannot_be_is_refused_by_name(number):
    with pytest.raises(UsageError, match="buffer_bytes must"):
        ks.cost(ks.build("ring", 4), number, latency_s=0.0, bytes_per_s=1.0)


@pytest.mark.parametrize("spec", [None, 5, b"ring", "ring\udc80"])
def test_a_spec_that_is_no_text_is_refused_by_name(spec):
    with pytest.raises(UsageError, match="schedule must be"):
        ks.build(spec, 4)


def test_chunks_are_bounded_before_memory_is_taken():
    with pytest.raises(UsageError, match="chunk_count must be <="):
        ks.build("custom(chunks=2147483647,((0+1:0,1+0:0)))", 2)
