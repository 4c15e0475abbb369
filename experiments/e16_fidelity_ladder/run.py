"""Fits and judges every table of the ladder; a row a published row."""

from pathlib import Path
from typing import Any

from experiments._shared.record import RowWriter
from experiments._shared.runner import Progress
from kfsim.fidelity import case_names, run_case

KEY = ("table", "line")
VALUES = ("title", "group", "use", "unit", "published", "simulated", "error_percent")


def run(out: Path, seed: int, quick: bool, progress: Progress) -> dict[str, Any]:  # noqa: ARG001
    """All tables; each is whole or measured again."""
    names = case_names()
    with RowWriter(out / "rows.csv", (*KEY, *VALUES), key=KEY) as rows:
        for done, name in enumerate(names):
            progress(done, len(names), name)
            case = run_case(name)
            for one in case.fit.outcomes:
                if not rows.has(table=name, line=one.point.line):
                    rows.add(
                        table=name,
                        line=one.point.line,
                        title=case.title,
                        group=one.point.group,
                        use="fitted" if one.point.fitted else "predicted",
                        unit=one.point.unit,
                        published=one.point.measured,
                        simulated=one.predicted,
                        error_percent=100 * one.error,
                    )
        progress(len(names), len(names), "done")
    return {
        "repeats": 1,
        "seed_is_unused": f"the ladder has its own; {seed} changes nothing",
        "warmup_steps": 1,
        "tables": list(names),
    }
