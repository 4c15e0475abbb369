#!/usr/bin/env python3
"""Builds the report from committed results: `python tools/build_paper.py [OUT.pdf]`.

The text asks which experiments have been measured and leaves out the sections of those that
have not; so a new folder of results needs no edit of the text.
"""

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def measured(results: Path) -> list[str]:
    """Short ids (``eNN``) of the experiments with finished results, sorted."""
    return [
        path.parent.name.partition("_")[0]
        for path in sorted(results.glob("e*/manifest.json"))
        if json.loads(path.read_text(encoding="utf-8")).get("finished")
    ]


def inputs(results: Path) -> dict[str, str]:
    """What the text is told: which experiments are there, with published numbers, with aims."""
    known = measured(results)

    def those_with(name: str) -> str:
        ids = [
            path.parent.name.partition("_")[0] for path in sorted(results.glob(f"e*/{name}"))
        ]
        return ",".join(found for found in ids if found in known)

    published, aims = those_with("published.csv"), those_with("aims.md")
    return {"measured": ",".join(known), "published": published, "aims": aims}


def build(root: Path, out: Path) -> None:
    """Compile ``paper/paper.typ`` of a source tree.

    Args:
        root: of the tree; holds ``paper/`` and ``results/``.
        out: the PDF.

    Raises:
        ImportError: typst is not installed.
        RuntimeError: the text is wrong, for example asks for a number that no result has.
    """
    import typst  # noqa: PLC0415 - only where a report is built

    out.parent.mkdir(parents=True, exist_ok=True)
    text = root / "paper" / "paper.typ"
    typst.compile(
        str(text), output=str(out), root=str(root), sys_inputs=inputs(root / "results")
    )


def main() -> None:
    """Build and say where."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "out" / "paper.pdf")
    out = parser.parse_args().out
    build(ROOT, out)
    sys.stdout.write(f"{out}\n")


if __name__ == "__main__":
    main()
