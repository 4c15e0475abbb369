"""The record of one run: ``rows.csv``, resumable, and ``manifest.json``, what it came from.

`results/SCHEMA.md` lists the manifest's fields and the unit suffixes of column names.
"""

import csv
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

__all__ = [
    "RowWriter",
    "host_facts",
    "key_of",
    "read_rows",
    "source_facts",
    "thread_settings",
    "versions",
    "write_manifest",
]

MANIFEST_SCHEMA = 1
PACKAGES = ("kungfu-lab", "numpy", "torch", "simpy", "matplotlib", "scikit-learn")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_COLUMN = re.compile(r"[a-z][a-z0-9_]*")
_keys: dict[Path, tuple[str, ...]] = {}  # of the files opened in this process

Value = str | int | float | bool | None


class RowWriter:
    """Append rows to a CSV file; rows that are there already need not be measured again.

    Every row is on disk when `add` returns. A last line cut short by a kill is dropped when
    the file is opened again.

    Args:
        path: the file; made if missing.
        columns: names with units, lower case, such as ``throughput_samples_per_s``.
        key: the columns that tell one row from another.

    Raises:
        ValueError: a malformed or repeated column, a key that is no column, or a file with
            other columns.
    """

    def __init__(self, path: Path, columns: Sequence[str], key: Sequence[str]) -> None:
        bad = [name for name in columns if not _COLUMN.fullmatch(name)]
        if bad or len(set(columns)) != len(columns) or not columns:
            raise ValueError(f"columns must be distinct lower-case names, got {list(columns)}")
        if not key or not set(key) <= set(columns):
            raise ValueError(f"key must name columns of {list(columns)}, got {list(key)}")
        self.columns, self.key = tuple(columns), tuple(key)
        _keys[path.resolve()] = self.key
        self._done: set[tuple[str, ...]] = set()
        if path.exists():
            self._resume(path)
        self._file = path.open("a", newline="", encoding="utf-8")
        self._writer = csv.writer(self._file, lineterminator="\n")
        if self._file.tell() == 0:
            self._writer.writerow(self.columns)
            self._file.flush()

    def __enter__(self) -> "RowWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._done)

    def has(self, **key: Value) -> bool:
        """Whether the row with this key is there already.

        Raises:
            KeyError: a key column is missing.
        """
        return self._identity(key) in self._done

    def add(self, **row: Value) -> None:
        """Append one row; None and not-a-number become empty cells.

        Raises:
            ValueError: a missing or unknown column, or a key that is there already.
        """
        if set(row) != set(self.columns):
            wrong = sorted(set(row) ^ set(self.columns))
            raise ValueError(f"row must have exactly the columns; missing or unknown: {wrong}")
        identity = self._identity(row)
        if identity in self._done:
            raise ValueError(
                f"row {dict(zip(self.key, identity, strict=True))} is there already"
            )
        self._writer.writerow([_cell(row[name]) for name in self.columns])
        self._file.flush()
        self._done.add(identity)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _identity(self, row: Mapping[str, Value]) -> tuple[str, ...]:
        return tuple(_cell(row[name]) for name in self.key)

    def _resume(self, path: Path) -> None:
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            path.write_bytes(whole)
        rows = list(csv.reader(whole.decode().splitlines()))
        if rows and tuple(rows[0]) != self.columns:
            raise ValueError(f"{path} has the columns {rows[0]}, not {list(self.columns)}")
        positions = [self.columns.index(name) for name in self.key]
        self._done = {tuple(row[p] for p in positions) for row in rows[1:]}


def _cell(value: Value) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return str(int(value))
    return repr(float(value)) if isinstance(value, float) else str(value)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read rows back: numbers as int or float, empty cells as None, the rest as text.

    Args:
        path: a ``rows.csv``.

    Returns:
        One dictionary a row, in the order of the file.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open(newline="", encoding="utf-8") as file:
        return [{k: _parse(v) for k, v in row.items()} for row in csv.DictReader(file)]


def _parse(text: str) -> Value:
    if text == "":
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def key_of(path: Path) -> tuple[str, ...]:
    """The key columns with which this process opened a file of rows; empty if it did not."""
    return _keys.get(path.resolve(), ())


def source_facts(folder: Path) -> dict[str, Any]:
    """Name the code that a run uses.

    Args:
        folder: the experiment's.

    Returns:
        ``commit`` and ``dirty`` (None outside a git checkout), ``diff_sha256`` of uncommitted
        changes to tracked files, ``files``: each file of the experiment with its SHA-256, and
        ``scenario_sha256``: one hash of its scenario files (None: it has none).
    """
    files = {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    scenarios = [f"{name} {digest}" for name, digest in files.items() if name.endswith(".toml")]
    commit = _git(folder, "rev-parse", "HEAD")
    diff = None if commit is None else _git(folder, "diff", "HEAD")
    return {
        "commit": commit,
        "dirty": None if diff is None else bool(diff),
        "diff_sha256": hashlib.sha256(diff.encode()).hexdigest() if diff else None,
        "files": files,
        "scenario_sha256": hashlib.sha256("\n".join(scenarios).encode()).hexdigest()
        if scenarios
        else None,
    }


def _git(folder: Path, *args: str) -> str | None:
    try:
        result = subprocess.run(
            ["git", *args],  # noqa: S607 - whichever git the user has
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return result.stdout.strip()


def host_facts() -> dict[str, Any]:
    """Describe this machine as far as it explains a measurement."""
    return {
        "cpu": _cpu_model(),
        "cores_usable": len(os.sched_getaffinity(0)),
        "cores_total": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "governor": _first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "congestion_control": _first_line("/proc/sys/net/ipv4/tcp_congestion_control"),
    }


def _cpu_model() -> str | None:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", text, re.MULTILINE)
    return match.group(1).strip() if match else platform.processor() or None


def _first_line(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str | None]:
    """Versions of Python and packages; None for one that is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def thread_settings() -> dict[str, Any]:
    """What limits threads: the usual variables (None: unset), and torch's number if in use."""
    torch = sys.modules.get("torch")
    found: dict[str, Any] = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    return {**found, "torch": None if torch is None else torch.get_num_threads()}


def now_utc() -> str:
    """The time as ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def command_line() -> list[str]:
    """The command that runs; of the program and of absolute paths the last part only."""
    return [
        Path(word).name if position == 0 or word.startswith("/") else word
        for position, word in enumerate(sys.argv)
    ]


def write_manifest(path: Path, fields: Mapping[str, Any]) -> None:
    """Write a manifest so that a reader sees the old one or the new one, never a part.

    Args:
        path: ``manifest.json``.
        fields: what json can write.

    Raises:
        OSError: the file cannot be written.
    """
    text = json.dumps({"schema": MANIFEST_SCHEMA, **fields}, indent=2, sort_keys=True)
    part = path.with_suffix(".part")
    part.write_text(text + "\n", encoding="utf-8")
    part.replace(path)
