"""Turns samples into rows, a table and a figure."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from kfcore.compare.runner import Case, Sample

__all__ = ["draw", "rows", "table"]

OURS = "kf"  # names of our own contenders start with it


def rows(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Results with units in their names, one row a contender and case.

    Args:
        samples: From `compare`.

    Returns:
        Rows with times of the slowest rank in microseconds and rates in GB/s (1e9).
        ``ratio_to_best_peer`` is the median of the fastest other system over this median: above
        1 is faster than every peer; None where there is no peer.
    """
    return [_row(sample, samples) for sample in samples]


def _row(sample: Sample, samples: Sequence[Sample]) -> dict[str, Any]:
    peers = [
        other.p50_s
        for other in samples
        if other.case == sample.case and not other.contender.startswith(OURS)
    ]
    factor = 2 * (sample.world_size - 1) / sample.world_size
    low, high = np.percentile(sample.times_s, [5, 95])
    return {
        "contender": sample.contender,
        "case": sample.case.name,
        "world_size": sample.world_size,
        "buffer_bytes": sample.case.buffer_bytes,
        "operations": len(sample.times_s),
        "rounds": len(sample.round_p50_s),
        "min_us": 1e6 * min(sample.times_s),
        "p5_us": 1e6 * float(low),
        "p50_us": 1e6 * sample.p50_s,
        "p95_us": 1e6 * float(high),
        "best_round_p50_us": 1e6 * min(sample.round_p50_s),
        "algbw_gb_per_s": sample.algbw_gb_per_s,
        "busbw_gb_per_s": sample.algbw_gb_per_s * factor,
        "ratio_to_best_peer": min(peers) / sample.p50_s if peers else None,
    }


def table(samples: Sequence[Sample], floor_rows: Sequence[dict[str, Any]] = ()) -> Table:
    """Median times in microseconds: a line a contender, a column a case.

    Args:
        samples: From `compare`.
        floor_rows: From `floors`; two-process floors stand below the contenders.

    Returns:
        A table for rich.
    """
    cases = _cases(samples)
    grid = Table(title=f"median us, slowest of {samples[0].world_size} ranks (lower is better)")
    grid.add_column("")
    for case in cases:
        grid.add_column(_label(case), justify="right")
    by_name: dict[str, dict[Case, Sample]] = {}
    for sample in samples:
        by_name.setdefault(sample.contender, {})[sample.case] = sample
    for name, found in by_name.items():
        grid.add_row(name, *(_number(1e6 * found[case].p50_s) for case in cases))
    for name in by_name:
        if name.startswith(OURS):
            ratios = [
                _row(by_name[name][case], samples)["ratio_to_best_peer"] for case in cases
            ]
            if any(ratio is not None for ratio in ratios):
                texts = (f"{r:.2f} x" if r else "" for r in ratios)
                grid.add_row(f"{name} / best peer", *texts)
    for kind in ("registered", "staged"):
        known = {row["bytes"]: row["p50_us"] for row in floor_rows if row["case"] == kind}
        if known:
            at = (known.get(c.buffer_bytes) if c.name == "all_reduce" else None for c in cases)
            grid.add_row(f"floor: {kind}", *(_number(v) if v is not None else "" for v in at))
    return grid


def draw(
    samples: Sequence[Sample], path: Path, floor_rows: Sequence[dict[str, Any]] = ()
) -> None:
    """Draw time over size for each contender, with the 5-95 % band.

    Args:
        samples: From `compare`.
        path: File to write; its suffix chooses the format.
        floor_rows: From `floors`.
    """
    import matplotlib as mpl  # noqa: PLC0415 - slow to import, seldom wanted

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    names = list(dict.fromkeys(sample.contender for sample in samples))
    for name, marker in zip(names, "osD^vP*X<>", strict=False):
        mine = [s for s in samples if s.contender == name and s.case.name == "all_reduce"]
        sizes = [s.case.buffer_bytes for s in mine]
        low, high = 1e6 * np.array([np.percentile(s.times_s, [5, 95]) for s in mine]).T
        (line,) = axes.plot(sizes, [1e6 * s.p50_s for s in mine], marker=marker, label=name)
        axes.fill_between(sizes, low, high, color=line.get_color(), alpha=0.15)
    for kind, style in (("registered", ":"), ("staged", "--")):
        known = [row for row in floor_rows if row["case"] == kind]
        if known:
            points = [row["bytes"] for row in known], [row["p50_us"] for row in known]
            axes.plot(*points, style, color="black", label=f"floor: {kind}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("buffer (bytes)")
    axes.set_ylabel("time of the slowest rank (us, lower is better)")
    repeats = len(samples[0].round_p50_s)
    axes.set_title(
        f"all-reduce of float32 sums, {samples[0].world_size} ranks, one host\n"
        f"median of {repeats} interleaved rounds, band 5-95 %",
        fontsize="medium",
    )
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    undated = {"CreationDate": None} if path.suffix == ".pdf" else None  # same bytes again
    figure.savefig(path, dpi=150, metadata=undated)
    plt.close(figure)


def _cases(samples: Sequence[Sample]) -> list[Case]:
    return list(dict.fromkeys(sample.case for sample in samples))


def _label(case: Case) -> str:
    if case.name != "all_reduce":
        return case.name
    size: float = case.buffer_bytes
    for suffix in ("", "K", "M"):
        if size < 1024:
            return f"{size:g}{suffix}"
        size /= 1024
    return f"{size:g}G"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
