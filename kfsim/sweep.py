"""Runs a scenario at every combination of some keys, and goes on after a kill.

Each finished point is one line of ``done.jsonl``, written at once; when all are there,
``rows.csv`` (and on request ``rows.parquet``) is written in the points' order, so its bytes do
not depend on how many processes there were, on Ray, or on how often it was interrupted. With
repeats ``differences.csv`` holds each point against the first: one seed gives all points the
same random numbers, so their repeats are pairs.
"""

import csv
import hashlib
import itertools
import json
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from kfcore.errors import UsageError
from kfcore.events import to_plain
from kfsim.result import differences
from kfsim.scenario import Scenario, parse
from kfsim.simulation import simulate

__all__ = ["grid", "run_sweep"]

Row = dict[str, Any]
Todo = Sequence[tuple[int, Mapping[str, Any]]]


def grid(vary: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """All combinations; the last key varies fastest.

    Args:
        vary: Values by scenario key.

    Returns:
        Points.
    """
    return [
        dict(zip(vary, values, strict=True)) for values in itertools.product(*vary.values())
    ]


def run_sweep(
    scenario: Scenario,
    points: Sequence[Mapping[str, Any]],
    out: str | Path,
    *,
    processes: int = 1,
    on: str = "processes",
    parquet: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Simulates each point once; points that ``out`` already holds are not run again.

    Args:
        scenario: What all points share.
        points: Keys to replace.
        out: Folder.
        processes: At a time, >= 1.
        on: ``processes`` of this machine, or an existing ``ray`` cluster.
        parquet: Also write ``rows.parquet`` (needs pyarrow).
        progress: Called with points done and points in all.

    Returns:
        The path of ``rows.csv``.

    Raises:
        UsageError: a point breaks a rule, the folder holds another sweep, or Ray or pyarrow is
            asked for and missing.
    """
    if on not in ("processes", "ray"):
        raise UsageError(f"on must be processes or ray, got {on!r}")
    for point in points:
        scenario.with_values(point)  # complain before hours have passed
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "done.jsonl"
    done = _known(log, _digest(scenario, points))
    todo = [(place, point) for place, point in enumerate(points) if place not in done]
    run = _on_ray if on == "ray" else _on_processes
    with log.open("a", encoding="utf-8") as file:
        if progress is not None:
            progress(len(done), len(points))
        for place, row in run(scenario, todo, processes):
            done[place] = row
            file.write(json.dumps({"point": place, "row": row}) + "\n")
            file.flush()
            if progress is not None:
                progress(len(done), len(points))
    kept = [(place, dict(done[place])) for place in sorted(done)]
    pairs = _differences([row.pop("replications", []) for _, row in kept])
    rows = [{"point": place, **points[place], **row} for place, row in kept]
    path = folder / "rows.csv"
    _write_csv(path, rows)
    if pairs:
        _write_csv(folder / "differences.csv", pairs)
    if parquet:
        _write_parquet(folder / "rows.parquet", rows)
    return path


def _write_csv(path: Path, rows: Sequence[Row]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _differences(replications: Sequence[Sequence[dict[str, float]]]) -> list[Row]:
    """Each point against the first, repeat by repeat on the same random numbers."""
    if len(replications) < 2 or min(map(len, replications)) < 2:
        return []
    return [
        {
            "point": place,
            "minus_point": 0,
            "figure": name,
            "mean_difference": found.mean,
            "half_width_95": found.half_width,
            "pairs": found.count,
            "beyond_chance": found.excludes_zero,
        }
        for place, ours in enumerate(replications[1:], 1)
        for name, found in differences(ours, replications[0]).items()
    ]


def _digest(scenario: Scenario, points: Sequence[Mapping[str, Any]]) -> str:
    text = json.dumps([scenario.raw, list(points)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _known(log: Path, digest: str) -> dict[int, Row]:
    """Points already done; a last line that a kill has cut short is dropped from the file."""
    if not log.exists():
        log.write_text(json.dumps({"sweep": digest}) + "\n", encoding="utf-8")
        return {}
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
    whole = [line for line in lines if line.endswith("\n")]
    if len(whole) < len(lines):
        log.write_text("".join(whole), encoding="utf-8")
    records = [json.loads(line) for line in whole]
    if not records:
        log.unlink()
        return _known(log, digest)
    if records[0].get("sweep") != digest:
        raise UsageError(f"{log.parent} holds another sweep; give another folder")
    return {record["point"]: record["row"] for record in records[1:]}


def run_point(raw: Mapping[str, Any], path: str, point: Mapping[str, Any]) -> Row:
    """One point, wherever it is run.

    Args:
        raw: Of the scenario.
        path: Of the scenario.
        point: Keys to replace.

    Returns:
        The figures that are numbers or texts; with repeats also half the width of each
        figure's 95 % interval, and the ``replications`` themselves.
    """
    result = simulate(parse(raw, path).with_values(point), on_row=_forget, on_event=_forget)
    plain = {name: to_plain(value) for name, value in result.summary.items()}
    row = {name: value for name, value in plain.items() if not isinstance(value, dict)}
    for name, found in plain["intervals"].items():
        row[f"{name}_half_width_95"] = found["half_width"]
    if plain["intervals"]:
        row["replications"] = to_plain(result.replications)
    return row


def _forget(_item: Row) -> None:
    """Takes what a sweep has no use for."""


def _on_processes(scenario: Scenario, todo: Todo, processes: int) -> Iterator[tuple[int, Row]]:
    if processes <= 1 or len(todo) <= 1:
        for place, point in todo:
            yield place, run_point(scenario.raw, scenario.path, point)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        places = {
            pool.submit(run_point, dict(scenario.raw), scenario.path, dict(point)): place
            for place, point in todo
        }
        for future in as_completed(places):
            yield places[future], future.result()


def _on_ray(scenario: Scenario, todo: Todo, _processes: int) -> Iterator[tuple[int, Row]]:
    try:
        import ray  # noqa: PLC0415 - optional
    except ImportError as error:
        raise UsageError("--on ray needs the package ray: pip install ray") from error
    ray.init(ignore_reinit_error=True)  # an existing cluster where RAY_ADDRESS names one
    remote = ray.remote(run_point)
    raw = dict(scenario.raw)
    places = {remote.remote(raw, scenario.path, dict(point)): place for place, point in todo}
    waiting = list(places)
    while waiting:
        ready, waiting = ray.wait(waiting, num_returns=1)
        for reference in ready:
            yield places[reference], ray.get(reference)


def _write_parquet(path: Path, rows: Sequence[Row]) -> None:
    try:
        import pyarrow as pa  # noqa: PLC0415 - optional
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError as error:
        raise UsageError("Parquet needs the package pyarrow: pip install pyarrow") from error
    parquet.write_table(pa.Table.from_pylist(list(rows)), path)
