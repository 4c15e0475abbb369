"""The check on the report's numbers is red when one has no source."""

import json
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import build_paper  # noqa: E402
import check_claims  # noqa: E402


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "results" / "e01_scaling"
    folder.mkdir(parents=True)
    (folder / "numbers.json").write_text(json.dumps({"rate": 44.8}))
    (folder / "figure.png").write_bytes(b"png")
    (tmp_path / "set_up.toml").write_text("nic_gbps = 7.0\nsamples = 1_281_167\n")
    (tmp_path / "points.csv").write_text("batch,rate\n512,2769\n")
    return tmp_path / "results"


@pytest.mark.parametrize(
    "text",
    [
        'It says #n("e01", "rate", digits: 2) on ResNet-50, VGG-16 and K80 in Figure 9.',
        'Cards of #given("7", "set_up.toml"), #given("1,281,167", "set_up.toml") images.',
        '#drawn("e01", [One line.], width: 75%)',
        "// a comment of 2020\nNo numbers @kungfu, `results/e01`.",
        "#set page(margin: 2.2cm)",
        '[A], n("e01", "rate"), n("e01", "rate", digits: 0),',
        'Batch #given("512", "points.csv").',
    ],
)
def test_numbers_with_a_source_pass(results, text):
    assert check_claims.check_text(text, results, results.parent) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("It is 44.8 images/s.", "typed, not generated: ... It is 44.8 images/s"),
        ('#n("e01", "speed")', "e01: no number 'speed' in e01_scaling/numbers.json"),
        ('#n("e99", "rate")', "e99: no numbers.json"),
        ('#given("8", "set_up.toml")', "given 8: not in set_up.toml"),
        ('#given("7", "other.toml")', "there is no file other.toml"),
        ('#drawn("e01", name: "figure_models", [x])', "e01: no figure_models.png"),
        ("Twice as fast, 3x, 95 % of it.", "typed, not generated"),
    ],
)
def test_numbers_without_a_source_are_named(results, text, fault):
    found = check_claims.check_text(text, results, results.parent)
    assert any(fault in line for line in found), found


def test_committed_results_are_whole_and_the_text_has_its_numbers():
    assert check_claims.check_results(ROOT / "results") == []
    texts = check_claims.texts_of(ROOT / "paper", ROOT / "results")
    for path in texts:
        assert check_claims.check_text(path.read_text(), ROOT / "results", ROOT) == []
    assert len(check_claims.NUMBER.findall(texts[0].read_text())) > 50


def test_edited_rows_and_stale_numbers_are_found(tmp_path):
    source = next(iter(sorted((ROOT / "results").glob("e03_*"))))
    copy = tmp_path / source.name
    shutil.copytree(source, copy)
    assert check_claims.check_results(tmp_path) == []
    numbers = json.loads((copy / "numbers.json").read_text())
    (copy / "numbers.json").write_text(json.dumps({**numbers, "published_flat": 1.0}))
    [fault] = check_claims.check_results(tmp_path)
    assert "numbers.json is not what its rows say" in fault
    rows = (copy / "rows.csv").read_text()
    (copy / "rows.csv").write_text(rows.replace("flat,2.5", "flat,2.6"))
    [fault] = check_claims.check_results(tmp_path)
    assert "rows.csv is not what was measured" in fault


def test_stale_published_numbers_are_found(tmp_path):
    source = next(iter(sorted((ROOT / "results").glob("e03_*"))))
    copy = tmp_path / source.name
    shutil.copytree(source, copy)
    table = (copy / "published.csv").read_text()
    (copy / "published.csv").write_text(table.replace(",compared,", ",fitted,"))
    [fault] = check_claims.check_results(tmp_path)
    assert "published.csv is not what its rows say" in fault
    (copy / "published.csv").unlink()
    assert len(check_claims.check_results(tmp_path)) == 1


def test_report_builds_without_a_network(tmp_path):
    pytest.importorskip("typst")
    build_paper.build(ROOT, tmp_path / "x.pdf")
    assert (tmp_path / "x.pdf").read_bytes().startswith(b"%PDF")


def test_sections_appear_with_their_results_and_are_checked_then(tmp_path):
    pytest.importorskip("typst")
    for name in ("paper", "results", "experiments"):
        shutil.copytree(ROOT / name, tmp_path / name)
    results, paper = tmp_path / "results", tmp_path / "paper"
    for folder in results.glob("e13_*"):
        shutil.rmtree(folder)
    build_paper.build(tmp_path, tmp_path / "without.pdf")
    section = paper / "sections" / "e13.typ"
    assert section not in check_claims.texts_of(paper, results)
    folder = results / "e13_real_throughput"
    shutil.copytree(next(iter(sorted(results.glob("e03_*")))), folder)
    (folder / "published.csv").unlink()
    (folder / "table.md").write_text(
        "| our aim | limit | measured | verdict |\n|---|---|---|---|\n"
        "| small | >= 1 | 2 | met |\n| large | >= 1 | 0.5 | missed |\n"
        "| vast | >= 1 |  | not measured |\n"
    )
    build_paper.build(tmp_path, tmp_path / "with.pdf")
    without, with_it = (tmp_path / f"{name}.pdf" for name in ("without", "with"))
    assert with_it.stat().st_size > without.stat().st_size + 2_000
    assert section in check_claims.texts_of(paper, results)
    assert check_claims.check_text(section.read_text(), results, tmp_path) == []
