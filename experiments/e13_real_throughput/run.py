"""Measures real all-reduces of several systems, interleaved: a row a setting, case, system."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments._shared.record import RowWriter
from experiments._shared.runner import Progress
from kfcore.compare import CONTENDERS, Case, Contender, compare, floors, missing_reason
from kfcore.compare.command import ending_on_signals
from kfcore.compare.contenders import find_python
from kfcore.compare.places import Place, ThisHost, cluster
from kfcore.compare.report import rows as report_rows
from kfcore.compare.runner import RESNET50_BYTES, Sample
from kfcore.errors import KfError, UsageError

K, M = 1 << 10, 1 << 20
COLUMNS = (
    "setting",
    "case",
    "buffer_bytes",
    "contender",
    "world_size",
    "hosts",
    "rate_mbit",
    "operations",
    "rounds",
    "min_us",
    "p50_us",
    "p95_us",
    "best_round_p50_us",
    "algbw_gb_per_s",
    "busbw_gb_per_s",
)


@dataclass(frozen=True)
class Setting:
    """Where ranks run, and what they do."""

    name: str
    world_size: int
    hosts: int
    rate_mbit: float | None
    sizes: tuple[int, ...]
    rounds: int
    resnet50: bool


FULL = (
    Setting("host2", 2, 1, None, (K, 16 * K, 256 * K, M, 4 * M, 16 * M, 64 * M), 7, True),
    Setting("host4", 4, 1, None, (K, 256 * K, M, 16 * M, 64 * M), 5, True),
    Setting("host8", 8, 1, None, (K, M, 16 * M), 3, False),
    Setting("hosts4x1", 4, 4, 1000.0, (K, 16 * K, M, 16 * M, 64 * M), 3, True),
    Setting("hosts2x1", 2, 2, 5000.0, (K, M, 16 * M, 64 * M), 5, True),
    Setting("hosts2x2", 4, 2, 1000.0, (K, M, 16 * M), 3, False),
)
QUICK = (
    Setting("host2", 2, 1, None, (K, M, 4 * M), 2, False),
    Setting("hosts2x2", 4, 2, 1000.0, (K, M), 2, False),
)
OURS = ("kf", "kf-registered")
# MPICH spins without ever yielding: more ranks than cores never end
SPINS = "mpich"
# mpiexec and horovodrun reach other hosts by ssh; what was seen to work without is here
BETWEEN_HOSTS = ("kf", "gloo", "horovod", "openmpi", "openmpi-tcp")


def run(out: Path, seed: int, quick: bool, progress: Progress) -> dict[str, Any]:  # noqa: ARG001 - times are not random
    """All settings in turn; one that is complete in the rows is not measured again."""
    settings = QUICK if quick else FULL
    left_out: list[str] = []
    present = []
    for contender in CONTENDERS.values():
        reason = missing_reason(contender, find_python(contender, {}))
        if reason is None:
            present.append(contender)
        else:
            left_out.append(reason)
    total = sum((len(s.sizes) + s.resnet50) * s.rounds * len(present) for s in settings)
    done = 0

    def step(text: str) -> None:
        nonlocal done
        done += 1
        progress(min(done, total), total, text)

    with (
        ending_on_signals(),
        RowWriter(out / "rows.csv", COLUMNS, key=COLUMNS[:4]) as rows,
    ):
        for setting in settings:
            try:
                left_out += _measure(setting, present, rows, step)
            except UsageError as error:  # no root, no namespaces
                left_out.append(f"{setting.name}: {error}")
    return {
        "repeats": max(setting.rounds for setting in settings),
        "settings": [setting.name for setting in settings],
        "left_out": left_out,
    }


def _takes_part(contender: Contender, setting: Setting) -> bool:
    if setting.hosts > 1:
        return contender.name in BETWEEN_HOSTS
    return not (contender.name == SPINS and setting.world_size > 2)


def _measure(
    setting: Setting, present: list[Contender], rows: RowWriter, step: Any
) -> list[str]:
    """Add the rows that are not there yet; returns who failed and how."""
    lost: list[str] = []
    cases = [Case("all_reduce", size) for size in setting.sizes]
    if setting.resnet50:
        cases.append(Case("resnet50", RESNET50_BYTES))
    taking = [each for each in present if _takes_part(each, setting)]

    def is_there(case: Case, name: str) -> bool:
        return rows.has(
            setting=setting.name,
            case=case.name,
            buffer_bytes=case.buffer_bytes,
            contender=name,
        )

    left = [c for c in cases if not all(is_there(c, each.name) for each in taking)]
    if left:
        with _place(setting) as place:

            def keep(sample: Sample) -> None:
                if not is_there(sample.case, sample.contender):
                    _add(rows, setting, report_rows([sample])[0])

            compare(
                taking,
                left,
                world_size=setting.world_size,
                rounds=setting.rounds,
                place=place,
                on_block=step,
                on_sample=keep,
                on_lost=lambda fault: lost.append(f"{setting.name}: {fault}"),
            )
    if setting.name == "host2":
        with contextlib.suppress(KfError):  # the program is not installed
            _floors(setting, rows)
    return lost


@contextlib.contextmanager
def _place(setting: Setting) -> Iterator[Place]:
    if setting.hosts == 1:
        yield ThisHost()
        return
    with cluster(setting.hosts, setting.rate_mbit) as hosts:
        yield hosts


def _add(rows: RowWriter, setting: Setting, row: dict[str, Any]) -> None:
    values = {name: row.get(name) for name in COLUMNS}
    values |= {
        "setting": setting.name,
        "world_size": setting.world_size,
        "hosts": setting.hosts,
        "rate_mbit": setting.rate_mbit,
    }
    rows.add(**values)


def _floors(setting: Setting, rows: RowWriter) -> None:
    wanted = [
        size
        for size in setting.sizes
        if not rows.has(
            setting=setting.name,
            case="all_reduce",
            buffer_bytes=size,
            contender="floor-registered",
        )
    ]
    if not wanted:
        return
    for floor in floors(wanted):
        if floor["case"] not in {"registered", "staged"} or floor["bytes"] not in wanted:
            continue
        row = {
            "case": "all_reduce",
            "buffer_bytes": floor["bytes"],
            "contender": f"floor-{floor['case']}",
            "min_us": floor["min_us"],
            "p50_us": floor["p50_us"],
        }
        _add(rows, setting, row)
