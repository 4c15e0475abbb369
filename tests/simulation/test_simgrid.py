"""Exact link sharing against SimGrid, an independent simulator (`simgrid_oracle.py`)."""

import csv
from pathlib import Path

import pytest
import simgrid_oracle as oracle

FACTS = Path(__file__).resolve().parents[1] / "data" / "simgrid_oracle.csv"
LIMIT = 1e-4  # a hundredth of a percent
NO_SIMGRID = "SimGrid is not installed (Debian: apt-get install python3-simgrid)"


def facts():
    lines = [line for line in FACTS.read_text().splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


def test_the_facts_on_file_are_of_the_cases_at_hand():
    described = [
        {name: str(value) for name, value in vars(case).items()} for case in oracle.CASES
    ]
    assert [{k: v for k, v in row.items() if k != "simgrid_s"} for row in facts()] == described


@pytest.mark.parametrize("place", range(len(oracle.CASES)))
def test_the_fluid_tier_is_simgrid_to_a_hundredth_of_a_percent(place):
    simgrid_s = float(facts()[place]["simgrid_s"])
    assert oracle.replay(oracle.CASES[place]) == pytest.approx(simgrid_s, rel=LIMIT)


@pytest.mark.slow
@pytest.mark.parametrize("place", range(len(oracle.CASES)))
def test_simgrid_still_says_what_is_on_file(place):
    pytest.importorskip("simgrid", reason=NO_SIMGRID)
    simgrid_s = float(facts()[place]["simgrid_s"])
    assert oracle.simgrid(oracle.CASES[place]) == pytest.approx(simgrid_s, rel=1e-6)
