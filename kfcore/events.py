"""The event log: one JSON object a line, the same format from real and simulated runs."""

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from kfcore.monitors import Undefined

__all__ = ["Change", "EventLog", "event", "to_plain"]


@dataclass(frozen=True)
class Change:
    """One installed change: a line of the decision log.

    Attributes:
        what: Name of the setting, e.g. ``local_batch``.
        old: Value before.
        new: Value in force from the next step on.
        reason: Why, for people.
        policy: Name of the policy that asked; empty for the caller's own.
        step: Step at whose boundary it was installed, from 1.
        view_version: View after the install.
    """

    what: str
    old: float | str
    new: float | str
    reason: str
    policy: str
    step: int
    view_version: int


def event(
    step: int,
    view_version: int,
    kind: str,
    what: str,
    *,
    old: Any = None,
    new: Any = None,
    reason: str = "",
    policy: str = "",
    **more: Any,
) -> dict[str, Any]:
    """One event of a job; ``docs/policies.md`` lists the kinds.

    Args:
        step: Steps finished.
        view_version: Current view.
        kind: What sort of event.
        what: The setting, hook or metric that it is about.
        old: Value before.
        new: Value after.
        reason: For people.
        policy: Who asked; empty for the caller.
        **more: Fields that only this kind has; units in the names.

    Returns:
        The event as a mapping, in the order in which it is written.
    """
    return {
        "step": step,
        "view_version": view_version,
        "kind": kind,
        "what": what,
        "old": old,
        "new": new,
        "reason": reason,
        "policy": policy,
        **more,
    }


def to_plain(value: Any) -> Any:
    """A value as strict JSON can hold it: undefined metrics and non-finite numbers say so.

    Args:
        value: Numbers, texts, mappings, sequences, `Undefined`, NumPy scalars.

    Returns:
        The same out of dict, list, str, int, float, bool and None. A number that is not finite
        becomes None; an undefined metric becomes ``{"undefined": reason}``.
    """
    if isinstance(value, Undefined):
        return {"undefined": value.reason}
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


class EventLog:
    """Writes events to a file as they come, one flushed line each. A context manager.

    Args:
        path: File to write; replaced if it exists, its folder made if missing.
        clock: Gives ``time_s`` of an event that has none, seconds since the log was opened.
        append: Go on with the log of another worker, and with its time.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        append: bool = False,
    ) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        self._clock = clock
        self._start_s = clock() - (_last_time_s(Path(path)) if append else 0.0)
        self._file: TextIO = Path(path).open(  # noqa: SIM115
            "a" if append else "w", encoding="utf-8"
        )

    def __call__(self, event: dict[str, Any]) -> None:
        """Append one event."""
        stamped = {"time_s": round(self._clock() - self._start_s, 6), **event}
        self._file.write(json.dumps(to_plain(stamped), allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file. Closing twice is harmless."""
        self._file.close()

    def __enter__(self) -> "EventLog":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _last_time_s(path: Path) -> float:
    """Time of a log's last whole line; half a line, of a worker that was killed, is cut off."""
    if not path.exists():
        return 0.0
    text = path.read_text(encoding="utf-8", errors="replace")
    whole, _, rest = text.rpartition("\n")
    if rest:
        path.write_text(whole + "\n" if whole else "", encoding="utf-8")
    for line in reversed(whole.splitlines()):
        try:
            return float(json.loads(line)["time_s"])
        except (ValueError, KeyError, TypeError):
            continue
    return 0.0
