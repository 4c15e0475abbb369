"""One page over all results: question, origin, table and figure of each run."""

from pathlib import Path
from typing import Any

from experiments._shared.compare import Run, find_runs
from experiments._shared.published import collect
from experiments._shared.runner import markdown_table

__all__ = ["write_report"]


def write_report(out: Path) -> Path:
    """Write ``report.md`` beside the runs.

    Args:
        out: folder of all results.

    Returns:
        The file.

    Raises:
        UsageError: there are no results.
    """
    runs = find_runs(out)
    parts = ["# Results\n", "Written by `kf experiment report` from the folders beside it.\n"]
    known = collect(out)
    if known:
        parts += ["## Published numbers and ours\n", markdown_table(known)]
    parts += [_section(run) for _, run in sorted(runs.items())]
    path = out / "report.md"
    path.write_text("\n".join(parts), encoding="utf-8")
    return path


def _section(run: Run) -> str:
    manifest = run.manifest
    lines = [f"## {run.experiment}\n", f"{manifest.get('question', '')}\n"]
    lines.append(f"{_origin(manifest)}\n")
    lines += [f"Left out: {reason}.\n" for reason in _left_out(manifest)]
    for name in ("aims.md", "table.md"):
        table = run.folder / name
        if table.is_file():
            lines.append(table.read_text(encoding="utf-8"))
    lines += [
        f"![{run.experiment}]({run.folder.name}/{figure.name})\n"
        for figure in sorted(run.folder.glob("figure*.png"))
    ]
    return "\n".join(lines)


def _left_out(manifest: dict[str, Any]) -> list[str]:
    return [str(reason) for reason in manifest.get("parameters", {}).get("left_out", [])]


def _origin(manifest: dict[str, Any]) -> str:
    host, parameters = manifest.get("host", {}), manifest.get("parameters", {})
    size = "quick" if manifest.get("quick") else "full"
    state = "" if manifest.get("finished") else " **Unfinished.**"
    busy = ""
    if manifest.get("busy") and "real" in str(manifest.get("worlds")):
        busy = " **The machine was busy: times of its real part are not to be quoted.**"
    commit = str(manifest.get("source", {}).get("commit"))[:10]
    changed = " with uncommitted changes" if manifest.get("source", {}).get("dirty") else ""
    return (
        f"{manifest.get('rows', 0)} rows, {size} size, {parameters.get('repeats', 1)} repeats, "
        f"seed {manifest.get('seed')}, commit {commit}{changed}, {host.get('cpu')} "
        f"({host.get('cores_usable')} cores), {manifest.get('duration_s', 0.0):.0f} s."
        f"{state}{busy}"
    )
