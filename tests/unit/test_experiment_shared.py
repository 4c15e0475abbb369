"""The experiment harness's parts: rows, manifests, statistics, figures."""

import json

import pytest

from experiments._shared import compare, grid, record, stats, style
from experiments._shared.record import RowWriter, read_rows

COLUMNS = ["system", "workers", "time_s"]


def writer(path):
    return RowWriter(path, COLUMNS, key=["system", "workers"])


def test_rows_come_back_with_their_types(tmp_path):
    path = tmp_path / "rows.csv"
    with writer(path) as rows:
        rows.add(system="a,b", workers=2, time_s=0.1)
        rows.add(system="c", workers=3, time_s=float("nan"))
        rows.add(system="d", workers=True, time_s=None)
    assert read_rows(path) == [
        {"system": "a,b", "workers": 2, "time_s": 0.1},
        {"system": "c", "workers": 3, "time_s": None},
        {"system": "d", "workers": 1, "time_s": None},
    ]


def test_rows_are_on_disk_at_once_and_known_after_reopening(tmp_path):
    path = tmp_path / "rows.csv"
    rows = writer(path)
    rows.add(system="a", workers=2, time_s=1 / 3)
    assert read_rows(path)[0]["time_s"] == 1 / 3
    again = writer(path)
    assert again.has(system="a", workers=2)
    assert not again.has(system="a", workers=3)
    assert len(again) == 1
    with pytest.raises(ValueError, match="is there already"):
        again.add(system="a", workers=2, time_s=0.0)


def test_line_cut_short_by_a_kill_is_dropped(tmp_path):
    path = tmp_path / "rows.csv"
    with writer(path) as rows:
        rows.add(system="a", workers=1, time_s=1.0)
    with path.open("a") as file:
        file.write("a,2,0.")
    with writer(path) as rows:
        assert len(rows) == 1
        rows.add(system="a", workers=2, time_s=2.0)
    assert path.read_text() == "system,workers,time_s\na,1,1.0\na,2,2.0\n"


@pytest.mark.parametrize(
    ("columns", "key"),
    [([], ["a"]), (["a", "a"], ["a"]), (["Time"], ["Time"]), (["a"], []), (["a"], ["b"])],
)
def test_malformed_columns_are_refused(tmp_path, columns, key):
    with pytest.raises(ValueError, match=r"columns|key"):
        RowWriter(tmp_path / "rows.csv", columns, key)


def test_rows_with_other_columns_are_refused(tmp_path):
    path = tmp_path / "rows.csv"
    with writer(path) as rows, pytest.raises(ValueError, match=r"missing or unknown.*'time'"):
        rows.add(system="a", workers=1, time=1.0)
    with pytest.raises(ValueError, match="has the columns"):
        RowWriter(path, ["other"], key=["other"])


def test_median_interval_holds_the_median_and_is_reproducible():
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    first = stats.median_interval(values)
    assert first.median == 3.0
    assert first.low <= 3.0 <= first.high
    assert first.low < first.high
    assert first.count == 5
    assert stats.median_interval(sorted(values)) == first
    wider = stats.median_interval(values, confidence=0.999)
    assert wider.high - wider.low >= first.high - first.low


def test_median_interval_of_one_value_has_no_width():
    assert stats.median_interval([2.5]) == stats.Interval(2.5, 2.5, 2.5, 1)


@pytest.mark.parametrize("values", [[], [float("nan")], [1.0, float("inf")]])
def test_median_interval_refuses_what_has_no_median(values):
    with pytest.raises(ValueError, match="finite"):
        stats.median_interval(values)


def test_median_interval_covers_the_true_median_about_as_often_as_it_says():
    import numpy as np

    rng = np.random.default_rng(3)
    hits = 0
    for trial in range(200):
        interval = stats.median_interval(rng.normal(size=25), resamples=300, seed=trial)
        hits += interval.low <= 0.0 <= interval.high
    assert 180 <= hits <= 200


def test_equal_figures_are_equal_files(tmp_path):
    def draw(stem):
        figure, [left, right] = style.new_figure(1, 2)
        left.plot([1, 2], [1, 4], **style.series_style("kf"), label="kf")
        style.axis_labels(left, "workers", "time (s)", better="lower")
        right.plot([1, 2], [2, 1], **style.series_style("something else"))
        left.legend()
        return style.save(figure, tmp_path / stem)

    first, second = draw("a"), draw("b")
    assert [path.suffix for path in first] == [".png", ".pdf"]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
        assert one.stat().st_size > 1000


def test_axis_labels_name_unit_and_direction():
    _, [axes] = style.new_figure()
    style.axis_labels(axes, "VMs", "throughput (samples/s)", better="higher")
    assert axes.get_ylabel() == "throughput (samples/s), higher is better"
    with pytest.raises(ValueError, match="must be 'higher', 'lower' or None"):
        style.axis_labels(axes, "x", "y", better="more")


def test_named_series_differ_without_colour():
    looks = [(s["marker"], s["linestyle"]) for s in style.SERIES.values()]
    assert len(set(looks)) == len(looks)


def test_host_and_version_facts_are_json_and_name_this_machine():
    facts = json.loads(json.dumps({"host": record.host_facts(), "versions": record.versions()}))
    assert facts["host"]["cores_usable"] >= 1
    assert facts["host"]["memory_bytes"] > 1 << 20
    assert facts["versions"]["numpy"] is not None
    assert record.versions(["no-such-package"])["no-such-package"] is None


def test_source_facts_outside_a_checkout_still_name_every_file(tmp_path):
    (tmp_path / "scenario.toml").write_text("x")
    facts = record.source_facts(tmp_path)
    assert facts["commit"] is None
    assert list(facts["files"]) == ["scenario.toml"]


def test_grid_rows_are_measured_once_and_summarized_over_repeats(tmp_path):
    points = grid.grid(workers=(2, 4), repeat=range(3))
    asked = []

    def measure(workers, repeat):
        asked.append((workers, repeat))
        if len(asked) == 4:
            raise KeyboardInterrupt
        return {"time_s": workers + 0.1 * repeat}

    path = tmp_path / "rows.csv"
    with pytest.raises(KeyboardInterrupt):
        grid.fill_rows(path, points, measure, ["time_s"], lambda *_: None)
    grid.fill_rows(path, points, measure, ["time_s"], lambda *_: None)
    assert asked == [(2, 0), (2, 1), (2, 2), (4, 0), (4, 0), (4, 1), (4, 2)]
    found = grid.intervals(path, "workers", "time_s")
    assert (found[2].median, found[4].median) == (2.1, 4.1)
    assert found[2].count == 3
    assert list(grid.intervals(path, "workers", "time_s", repeat=1)) == [2, 4]
    assert record.key_of(path) == ("workers", "repeat")


def test_seeds_of_repeats_do_not_depend_on_their_number():
    assert grid.repeat_seeds(1, 5)[:2] == grid.repeat_seeds(1, 2)
    assert len(set(grid.repeat_seeds(1, 50))) == 50


def run_of(rows, key=("n", "repeat"), experiment="e01_x"):
    return compare.Run(None, experiment, {"key": list(key)}, rows)


def test_compare_judges_by_the_intervals_of_repeats():
    def rows(offset):
        return [{"n": 1, "repeat": r, "time_s": 1 + offset + 0.01 * r} for r in range(5)]

    [near] = compare.compare_runs(run_of(rows(0)), run_of(rows(0.02)))
    [far] = compare.compare_runs(run_of(rows(0)), run_of(rows(0.5)))
    assert (near.verdict, far.verdict) == ("same", "differs")
    assert far.change_percent == pytest.approx(100 * 0.5 / 1.02)
    [lost] = compare.compare_runs(run_of(rows(0)), run_of([]))
    assert lost.verdict == "only in A"
    with pytest.raises(ValueError, match="not the same experiment"):
        compare.compare_runs(run_of([]), run_of([], experiment="e02_y"))


def test_bands_and_published_points_are_drawn_in_the_look_of_their_series():
    _, [axes] = style.new_figure()
    points = {n: stats.Interval(n, n - 0.1, n + 0.1, 5) for n in (4, 2)}
    style.draw_intervals(axes, "kf", points, label="ours")
    style.draw_published(axes, "kf", 2, 2.5, 0.2, label="published")
    line = axes.lines[0]
    assert list(line.get_xdata()) == [2, 4]
    assert line.get_label() == "ours"
    assert axes.lines[1].get_color() == line.get_color()
    assert "5 repeats" in style.spread_note(5)
    assert style.spread_note(1) == "1 run, no spread"
