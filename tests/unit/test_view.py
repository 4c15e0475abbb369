"""The view: an ordered membership that cannot be malformed."""

import pytest

from kfcore.errors import UsageError
from kfcore.view import View


def test_ranks_are_places_in_the_list():
    view = View(4, ("a", "b", "c"))
    assert view.world_size == 3
    assert view.rank_of("c") == 2
    assert view.rank_of("d") is None


@pytest.mark.parametrize(
    ("version", "members", "text"),
    [(-1, ("a",), "version"), (1, (), "at least one"), (1, ("a", "a"), "distinct")],
)
def test_a_malformed_view_is_refused(version, members, text):
    with pytest.raises(UsageError, match=text):
        View(version, members)
