"""Running one experiment into a folder: rows, manifest, figures; resumed where it stopped."""

import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments._shared import record
from experiments._shared.catalog import Experiment
from experiments._shared.published import write_published
from kfcore.errors import UsageError

__all__ = ["NotHere", "Outcome", "Progress", "plot_experiment", "run_experiment"]

# A one-minute load above this many runnable processes a core marks a run as disturbed.
BUSY_LOAD_PER_CORE = 0.5

# Called as progress(done, total, what) as often as the experiment likes.
Progress = Callable[[int, int, str], None]


class NotHere(UsageError):  # noqa: N818 - the name says what happened
    """This machine lacks what an experiment needs, such as root; others may still run."""


class Outcome:
    """What running an experiment left in its folder.

    Attributes:
        folder: where manifest, rows and figures are.
        manifest: the fields of ``manifest.json``.
        was_complete: True when all rows were there already and nothing was measured.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any], *, was_complete: bool) -> None:
        self.folder, self.manifest, self.was_complete = folder, manifest, was_complete


def fingerprint(source: dict[str, Any], seed: int, *, quick: bool) -> str:
    """One hash of everything that decides the rows: code, experiment files, seed, size."""
    text = json.dumps([source, seed, quick], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def run_experiment(
    experiment: Experiment, out: Path, *, seed: int, quick: bool, progress: Progress
) -> Outcome:
    """Measure an experiment's rows, or the rest of them.

    Rows written by the same code, files, seed and size are kept and not measured again; those
    of any other are discarded, for rows of two versions must not be mixed.

    Args:
        experiment: which.
        out: folder for all results; this one's go to ``out/<name>``.
        seed: of everything random.
        quick: whether to take the experiment's small size.
        progress: told how far it is.

    Returns:
        The folder and the manifest.

    Raises:
        UsageError: the experiment has no ``run``, or wrote no rows.
        NotHere: this machine lacks what it needs; no folder is left, unless there are rows.
        KfError: what the experiment itself raises.
    """
    folder = out / experiment.name
    folder.mkdir(parents=True, exist_ok=True)
    manifest_path = folder / "manifest.json"
    source = record.source_facts(experiment.folder)
    identity = fingerprint(source, seed, quick=quick)
    old = _read_manifest(manifest_path)
    if old.get("experiment") != experiment.name and any(folder.iterdir()):
        raise UsageError(f"{folder} holds files but no manifest of {experiment.name}")
    if old.get("fingerprint") != identity:
        old = {}
        for stale in folder.glob("*"):
            if stale.is_file():
                stale.unlink()
    elif old.get("finished"):
        return Outcome(folder, old, was_complete=True)
    manifest: dict[str, Any] = {
        "experiment": experiment.name,
        "question": experiment.question,
        "worlds": experiment.worlds,
        "command": record.command_line(),
        "source": source,
        "fingerprint": identity,
        "seed": seed,
        "quick": quick,
        "host": record.host_facts(),
        "threads": record.thread_settings(),
        "versions": record.versions(),
        "started": old.get("started", record.now_utc()),
        "sittings": old.get("sittings", 0) + 1,
        "duration_s": old.get("duration_s", 0.0),
        "load_before": list(os.getloadavg()),
        "busy": os.getloadavg()[0] > BUSY_LOAD_PER_CORE * len(os.sched_getaffinity(0)),
        "key": old.get("key", []),
        "finished": False,
    }
    record.write_manifest(manifest_path, manifest)
    begin = time.monotonic()
    try:
        parameters = experiment.module("run").run(folder, seed, quick, progress)
        rows_path = folder / "rows.csv"
        if not rows_path.is_file():
            raise UsageError(f"experiment {experiment.name} wrote no rows.csv")
        manifest["parameters"] = parameters or {}
        manifest["key"] = list(record.key_of(rows_path))
        manifest["threads"] = record.thread_settings()
        manifest["rows_sha256"] = hashlib.sha256(rows_path.read_bytes()).hexdigest()
        manifest["rows"] = len(record.read_rows(rows_path))
        manifest["finished"] = True
    except NotHere:
        if not (folder / "rows.csv").is_file():
            manifest_path.unlink()
            folder.rmdir()
        raise
    finally:
        manifest["duration_s"] += time.monotonic() - begin
        manifest["load_after"] = list(os.getloadavg())
        if folder.is_dir():
            record.write_manifest(manifest_path, manifest)
    return Outcome(folder, manifest, was_complete=False)


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return fields if isinstance(fields, dict) else {}


def plot_experiment(
    experiment: Experiment, out: Path
) -> tuple[list[Path], list[dict[str, Any]]]:
    """Draw an experiment's figures from its rows.

    Args:
        experiment: which.
        out: folder for all results, as given to `run_experiment`.

    Returns:
        The figures' paths, and the rows of the table that goes with them (empty when the
        experiment's ``plot.py`` has no ``table``); the table is also written to ``table.md``,
        and what ``numbers``, ``aims`` and ``published`` say, where there are such functions,
        to ``numbers.json``, ``aims.md`` and ``published.csv``.

    Raises:
        UsageError: there are no rows yet, or no ``plot``.
    """
    folder = out / experiment.name
    rows_path = folder / "rows.csv"
    if not rows_path.is_file():
        raise UsageError(
            f"no rows in {folder}: run 'kf experiment run {experiment.name} --out {out}' first"
        )
    module = experiment.module("plot")
    figures = [Path(path) for path in module.plot(rows_path, folder)]
    table = list(module.table(rows_path)) if hasattr(module, "table") else []
    if table:
        (folder / "table.md").write_text(markdown_table(table), encoding="utf-8")
    if hasattr(module, "numbers"):
        found = json.dumps(module.numbers(rows_path), indent=1, sort_keys=True, allow_nan=False)
        (folder / "numbers.json").write_text(found + "\n", encoding="utf-8")
    if hasattr(module, "aims"):
        aims = markdown_table(module.aims(rows_path))
        (folder / "aims.md").write_text(aims, encoding="utf-8")
    if hasattr(module, "published"):
        write_published(folder / "published.csv", module.published(rows_path))
    return figures, table


def markdown_table(rows: list[dict[str, Any]]) -> str:
    """Write rows as a Markdown table; the first row's keys are the columns."""
    columns = list(rows[0])
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(text(row.get(c)) for c in columns) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def text(value: Any) -> str:
    """A cell for people: four significant digits, empty for None."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
