#!/usr/bin/env python3
"""Fails when the report says a number that no result has.

    python tools/check_claims.py [--paper paper] [--results results]

1. Each folder of results is whole: finished, its rows as they were measured (SHA-256), its
   numbers.json and published.csv what its experiment's plot.py computes from the rows now.
2. Each ``#n("eNN", "key")`` of the text is in a numbers.json; each ``#given("7", "file")`` is
   in that file; each ``#drawn("eNN")`` has its figure.
3. No digit stands in the text by itself: only inside those calls, in a name (ResNet-50, K80),
   or after "Figure", "Section" and the like.

A section in paper/sections/eNN.typ is checked once its experiment has results; until then the
report leaves it out.
"""

import argparse
import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from experiments._shared import catalog  # noqa: E402 - found by the line above
from experiments._shared.record import read_rows  # noqa: E402 - likewise
from tools.build_paper import measured  # noqa: E402 - likewise

AGAIN = "run 'kf experiment plot all --out results'"
NUMBER = re.compile(r'(?<!\w)#?n\(\s*"(e\d\d)",\s*"([^"]+)"(?:,\s*digits:\s*\d+)?\s*\)')
GIVEN = re.compile(r'(?<!\w)#?given\(\s*"([^"]+)",\s*"([^"]+)"\s*\)')
DRAWN = re.compile(r'#drawn\(\s*"(e\d\d)"(?:,\s*name:\s*"([^"]+)")?')
ALLOWED = (
    re.compile(
        r"^#(?:import|let|set|show|bibliography|origin|columns|v|pagebreak)\b.*$", re.MULTILINE
    ),
    re.compile(r'(?:width|name|columns|digits|gutter|size|inset):\s*[\d."\w%]+'),
    re.compile(r'#(?:drawn|origin)\(\s*"e\d\d"'),
    re.compile(
        r"\b(?:Figures?|Fig\.|Sections?|Table|OSDI|request)\s+[\d.]+(?:\s+(?:and|to)\s+\d+)?"
    ),
    re.compile(r"`[^`]*`"),
    re.compile(r"\b\d*[A-Za-z][\w+]*(?:-\d+)?\b"),  # e01, K80, V100, ResNet-50, VGG-16, f32
    re.compile(r"@\w+"),
)


def without_comments(text: str) -> str:
    """The text without Typst's line comments; addresses keep their slashes."""
    return re.sub(r"(?<!:)//.*$", "", text, flags=re.MULTILINE)


def typed_digits(text: str) -> list[str]:
    """Digits that were typed and not generated, each with what is around it."""
    left = text
    for pattern in (NUMBER, GIVEN, *ALLOWED):
        left = pattern.sub(lambda match: " " * len(match.group()), left)
    return [
        text[max(0, m.start() - 40) : m.end() + 20].replace("\n", " ").strip()
        for m in re.finditer(r"\d[\d.,]*", left)
    ]


def check_text(text: str, results: Path, root: Path) -> list[str]:
    """What is wrong with the calls and the digits of the text."""
    text = without_comments(text)
    faults = []
    for experiment, key in NUMBER.findall(text):
        folder = folder_of(experiment, results)
        path = folder / "numbers.json" if folder else None
        if path is None or not path.is_file():
            faults.append(f"{experiment}: no numbers.json in {results.name}/")
        elif key not in json.loads(path.read_text(encoding="utf-8")):
            faults.append(f"{experiment}: no number {key!r} in {path.parent.name}/numbers.json")
    for value, name in GIVEN.findall(text):
        path = root / name
        plain = value.replace(",", "")
        if not path.is_file():
            faults.append(f"given {value}: there is no file {name}")
        elif not re.search(rf"(?<![\d.]){re.escape(plain)}(?:\.0+)?(?![\d.]*\d)", _plain(path)):
            faults.append(f"given {value}: not in {name}")
    for experiment, name in DRAWN.findall(text):
        folder = folder_of(experiment, results)
        figure = f"{name or 'figure'}.png"
        if folder is None or not (folder / figure).is_file():
            faults.append(f"{experiment}: no {figure} in {results.name}/")
    return faults + [f"typed, not generated: ... {where} ..." for where in typed_digits(text)]


def _plain(path: Path) -> str:
    """The file with numbers in plain digits; a comma separates the cells of a CSV file."""
    separators = "_" if path.suffix == ".csv" else "_,"
    return re.sub(rf"(?<=\d)[{separators}](?=\d{{3}})", "", path.read_text(encoding="utf-8"))


def folder_of(experiment: str, results: Path) -> Path | None:
    """The folder of an experiment's results."""
    return next(iter(sorted(results.glob(f"{experiment}_*"))), None)


def texts_of(paper: Path, results: Path) -> list[Path]:
    """The report's text, and its sections whose experiment has results."""
    texts = [path for path in sorted(paper.glob("*.typ")) if path.name != "lib.typ"]
    known = measured(results)
    return texts + [p for p in sorted((paper / "sections").glob("*.typ")) if p.stem in known]


def check_results(results: Path) -> list[str]:
    """What is wrong with the folders of results."""
    faults = []
    for path in sorted(results.glob("*/manifest.json")):
        folder = path.parent
        manifest = json.loads(path.read_text(encoding="utf-8"))
        rows = folder / "rows.csv"
        if not manifest.get("finished"):
            faults.append(f"{folder.name}: the run is not finished")
            continue
        if hashlib.sha256(rows.read_bytes()).hexdigest() != manifest.get("rows_sha256"):
            faults.append(f"{folder.name}: rows.csv is not what was measured (SHA-256 differs)")
            continue
        plot = catalog.find(folder.name, ROOT).module("plot")
        if hasattr(plot, "published") and not _same_published(folder, plot.published(rows)):
            faults.append(f"{folder.name}: published.csv is not what its rows say; {AGAIN}")
        if not hasattr(plot, "numbers"):
            continue
        now = json.dumps(plot.numbers(rows), indent=1, sort_keys=True) + "\n"
        numbers = folder / "numbers.json"
        if not numbers.is_file() or not _close(
            json.loads(now), json.loads(numbers.read_text("utf-8"))
        ):
            faults.append(f"{folder.name}: numbers.json is not what its rows say; {AGAIN}")
    return faults


def _same_published(folder: Path, now: list[dict[str, Any]]) -> bool:
    """Whether published.csv is what the rows say, but for the last digits."""
    path = folder / "published.csv"
    if not path.is_file():
        return False
    then = read_rows(path)
    return len(then) == len(now) and all(
        one["what"] == two["what"]
        and one["use"] == two["use"]
        and _close({"ours": one["ours"]}, {"ours": two["ours"]})
        for one, two in zip(then, now, strict=True)
    )


def _close(one: dict[str, float], two: dict[str, float]) -> bool:
    """Equal but for the last digits, in which machines differ."""
    return set(one) == set(two) and all(
        abs(one[key] - two[key]) <= 1e-9 * max(1, abs(one[key])) for key in one
    )


def main() -> None:
    """Check all, print what is wrong, and exit with 1 if something is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--paper", type=Path, default=ROOT / "paper")
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    options = parser.parse_args()
    faults = check_results(options.results)
    texts = texts_of(options.paper, options.results)
    for path in texts:
        found = check_text(path.read_text(encoding="utf-8"), options.results, ROOT)
        faults += [f"{path.name}: {fault}" for fault in found]
    for fault in faults:
        print(fault, file=sys.stderr)
    if faults:
        sys.exit(1)
    count = sum(len(NUMBER.findall(path.read_text(encoding="utf-8"))) for path in texts)
    print(f"{count} numbers in {len(texts)} texts, each from a result")


if __name__ == "__main__":
    main()
