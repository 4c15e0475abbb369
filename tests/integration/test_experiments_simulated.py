"""The simulated experiments in a small size: they run, draw, and say what their text says."""

import json
import math
import sys

import pytest

from experiments._shared import catalog, runner


@pytest.fixture
def run_small(tmp_path, monkeypatch):
    """Runs and plots an experiment with some of its constants replaced; gives its numbers."""

    def run(name, **constants):
        experiment = catalog.find(name)
        module = experiment.module("run")
        for constant, value in constants.items():
            monkeypatch.setattr(module, constant, value)
        monkeypatch.setattr(type(experiment), "module", _module_of(experiment, module))
        outcome = runner.run_experiment(
            experiment, tmp_path, seed=1, quick=True, progress=lambda *_: None
        )
        figures, table = runner.plot_experiment(experiment, tmp_path)
        assert figures
        assert table
        assert all(path.stat().st_size > 1000 for path in figures)
        assert outcome.manifest["key"]
        assert "repeats" in outcome.manifest["parameters"]
        found = json.loads((outcome.folder / "numbers.json").read_text())
        assert all(math.isfinite(value) for value in found.values())
        return found

    return run


def _module_of(experiment, run_module):
    load = type(experiment).module
    return lambda self, part: run_module if part == "run" else load(self, part)


def test_e03_hierarchical_is_never_worse_where_ranks_share_a_card(run_small):
    found = run_small("e03", NIC_GBPS={"quick": (5.0, 10.0, 40.0)}, REPEATS={"quick": 1})
    for rate in ("5", "10"):
        flat, two = (found[f"{s}_{rate}_images_per_s"] for s in ("flat", "hierarchical"))
        assert two > 1.2 * flat


def test_e05_throughput_is_back_within_five_steps_of_the_switch(run_small):
    found = run_small("e05", REPEATS={"quick": 1}, why_not=lambda: "not in this test")
    assert found["simulated_adaptive_median_of_5_percent"] >= 90
    assert found["simulated_fixed_median_of_5_percent"] < 75
    assert 1 <= found["simulated_adaptive_steps_to_switch"] <= 3
    assert abs(found["difference_hit_percent"]) < 15


def test_e06_policy_grows_where_it_pays_and_stops_where_it_does_not(run_small):
    found = run_small("e06", REPEATS={"quick": 1}, WINDOW={"quick": 6})
    assert found["ring_10_adaptive_workers"] == 10
    assert 1 < found["star_25_adaptive_workers"] < 10
    assert found["ring_4_adaptive_workers"] == 1
    assert found["star_25_adaptive_price"] < found["star_25_fixed_10_price"]


def test_e09_advantage_shrinks_with_the_batch_as_published(run_small):
    found = run_small("e09", REPEATS={"quick": 1})
    ratios = [found[f"ratio_{batch}"] for batch in (256, 512, 1024, 2048, 4096)]
    assert ratios[0] == pytest.approx(found["published_ratio_256"], rel=0.03)  # fitted there
    assert ratios[-1] == pytest.approx(1, abs=0.1)
    assert found["predicted_worst_error_percent"] < 20


def test_e04_adaptive_batch_is_faster_and_untuned_large_batch_behind(run_small):
    found = run_small("e04", REPEATS={"quick": 1}, EPOCHS={"quick": 5})
    assert found["digits_speedup_ratio"] > 1.3
    assert found["digits_large_accuracy_percent"] < found["digits_small_accuracy_percent"]
    assert found["cifar10_adaptive_hours"] < found["cifar10_small_hours"]


def test_e11_policy_holds_the_deadline_for_less_than_static_choices(run_small):
    found = run_small("e11", REPEATS={"quick": 1})
    assert found["policy_met"] == found["policy_beats_on_demand"] == found["markets"] == 4
    for law in ("bamboo", "calm", "scarce", "bursts"):
        assert found[f"{law}_policy_usd"] < found[f"{law}_spot_restart_usd"]


def test_e15_search_finds_the_fastest_choice(run_small):
    def no_processes(out, choice, seed):
        return sys.modules["_kf_e15_policy_search_run"].simulated(out, choice, seed)

    found = run_small(
        "e15",
        STEPS=120,
        TARGET_LOSS=1.5,
        REPEATS={"quick": 1},
        CHOICES={"quick": {"factor": (0.5, 1000.0), "every": (20,), "cap": (64,)}},
        real=no_processes,
    )
    assert found["best_factor"] == 0.5
    assert found["speedup_ratio"] > 1
    assert found["runs_confirmed"] == found["runs"] == 2
