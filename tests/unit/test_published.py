"""A number beside a published one: its difference, and a reason where it is off."""

import pytest

from experiments._shared.aims import aim
from experiments._shared.published import collect, compared, write_published


def test_difference_is_relative_and_in_points_for_per_cent():
    assert compared("Figure", "rate", "images/s", 40.0, 42.0)["difference_percent"] == 5.0
    assert compared("Figure", "share", "%", 40.0, 42.0)["difference_percent"] == 2.0


def test_a_difference_beyond_the_band_needs_a_reason():
    with pytest.raises(ValueError, match=r"Figure, rate: \+20\.0 is beyond 10"):
        compared("Figure", "rate", "images/s", 40.0, 48.0)
    assert compared("Figure", "rate", "images/s", 40.0, 48.0, why="known")["why"] == "known"
    assert compared("Figure", "rate", "images/s", 40.0, 48.0, use="fitted")["why"] == ""
    with pytest.raises(ValueError, match="use must be one of"):
        compared("Figure", "rate", "images/s", 40.0, 48.0, use="unknown")


def test_rows_of_all_experiments_are_collected(tmp_path):
    (tmp_path / "e01_one").mkdir()
    rows = [compared("Figure 1, left", "rate", "images/s", 40.0, 42.0)]
    write_published(tmp_path / "e01_one" / "published.csv", rows)
    [found] = collect(tmp_path)
    assert (found["experiment"], found["source"], found["ours"]) == (
        "e01",
        "Figure 1, left",
        42.0,
    )


def test_an_aim_is_met_missed_or_not_measured():
    assert aim("rate", 5.0, at_least=5.0)["verdict"] == "met"
    assert aim("rate", 5.1, at_most=5.0)["verdict"] == "missed"
    assert aim("rate", None, at_most=5.0) == {
        "our aim": "rate",
        "limit": "<= 5",
        "measured": None,
        "verdict": "not measured",
    }
    with pytest.raises(ValueError, match="exactly one limit"):
        aim("rate", 5.0)
