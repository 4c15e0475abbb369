"""Traces of spot markets as their owners write them: Bamboo, SkyPilot, AWS price history."""

import csv
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from kfcore.errors import UsageError

__all__ = ["HostEvent", "PriceHistory", "TraceFacts", "facts", "read_prices", "read_trace"]

_NS = 1_000_000_000


@dataclass(frozen=True)
class HostEvent:
    """A host comes or goes.

    Attributes:
        time_ns: Since the trace's start, >= 0.
        host: Its name.
        up: It comes.
    """

    time_ns: int
    host: str
    up: bool


@dataclass(frozen=True)
class TraceFacts:
    """What a trace amounts to.

    Attributes:
        host_hours: Sum over hosts of the hours they were up, until the last event.
        mean: Hosts, over time until the last event.
        most: Largest number of hosts.
        final: Hosts after the last event.
    """

    host_hours: float
    mean: float
    most: int
    final: int


def facts(events: Sequence[HostEvent]) -> TraceFacts:
    """Counts a trace.

    Args:
        events: In time order.

    Returns:
        Its facts.
    """
    up = most = area = last = 0
    for event in events:
        area += up * (event.time_ns - last)
        up, last = up + (1 if event.up else -1), event.time_ns
        most = max(most, up)
    mean = area / last if last else float(up)
    return TraceFacts(area / _NS / 3600, mean, most, up)


def read_trace(path: str | Path) -> list[HostEvent]:
    """Reads who was up when. The name's end decides: ``.json`` SkyPilot, else Bamboo.

    Bamboo (uclasystem/bamboo): rows ``milliseconds,add|remove,host`` without a header.
    SkyPilot: ``{"metadata": {"gap_seconds": N}, "data": [hosts up at each tick, ...]}``; hosts
    that go are those that came last.

    Args:
        path: File.

    Returns:
        Events in the file's order.

    Raises:
        UsageError: the file cannot be read, or a line breaks a rule; the text names the line.
    """
    text = _text(path)
    return _skypilot(text, path) if str(path).endswith(".json") else _bamboo(text, path)


def _bamboo(text: str, path: str | Path) -> list[HostEvent]:
    events: list[HostEvent] = []
    up: set[str] = set()
    for number, row in enumerate(csv.reader(text.splitlines()), 1):
        where = f"{path}, line {number}"
        if len(row) != 3 or row[1] not in ("add", "remove") or not row[0].strip().isdecimal():
            raise UsageError(f"{where}: must read MILLISECONDS,add|remove,HOST, got {row!r}")
        time_ns, adds, host = int(row[0]) * 1_000_000, row[1] == "add", row[2]
        if events and time_ns < events[-1].time_ns:
            raise UsageError(
                f"{where}: time goes back from {events[-1].time_ns} to {time_ns} ns"
            )
        if adds == (host in up):
            raise UsageError(f"{where}: {host} is {'already' if adds else 'not'} up")
        (up.add if adds else up.remove)(host)
        events.append(HostEvent(time_ns, host, adds))
    return events


def _skypilot(text: str, path: str | Path) -> list[HostEvent]:
    try:
        raw = json.loads(text)
        gap_s, data = raw["metadata"]["gap_seconds"], raw["data"]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: must hold metadata.gap_seconds and data: {error}") from error
    if not isinstance(gap_s, int | float) or not gap_s > 0 or not isinstance(data, list):
        raise UsageError(f"{path}: gap_seconds must be > 0 and data a list, got {gap_s!r}")
    events: list[HostEvent] = []
    up = 0
    for tick, count in enumerate(data):
        if not isinstance(count, int) or count < 0:
            raise UsageError(f"{path}: data[{tick}] must be a count >= 0, got {count!r}")
        time_ns = round(tick * gap_s * _NS)
        while up < count:
            events.append(HostEvent(time_ns, f"host{up}", True))
            up += 1
        while up > count:
            up -= 1
            events.append(HostEvent(time_ns, f"host{up}", False))
    return events


class PriceHistory:
    """A price that holds until the next one.

    Args:
        times_s: When each price begins, increasing, seconds.
        prices: Per host and hour.
    """

    def __init__(self, times_s: Sequence[float], prices: Sequence[float]) -> None:
        self._times_s, self._prices = tuple(times_s), tuple(prices)

    def at(self, time_s: float) -> float:
        """The price at a time; before the first, the first."""
        found = self._prices[0]
        for since_s, price in zip(self._times_s, self._prices, strict=True):
            if since_s > time_s:
                break
            found = price
        return found

    def cost(self, begin_s: float, end_s: float) -> float:
        """What one host costs from one time to another, billed by the second."""
        edges = [begin_s, *(t for t in self._times_s if begin_s < t < end_s), end_s]
        return sum(self.at(a) * (b - a) / 3600 for a, b in itertools.pairwise(edges))


def read_prices(path: str | Path, instance_type: str, zone: str = "") -> PriceHistory:
    """Reads what ``aws ec2 describe-spot-price-history`` prints.

    Args:
        path: JSON file.
        instance_type: E.g. ``p3.2xlarge``.
        zone: Availability zone; empty: the only one in the file.

    Returns:
        Prices since the earliest of that type and zone.

    Raises:
        UsageError: the file cannot be read, or has no or several lines of prices for this.
    """
    try:
        rows = json.loads(_text(path))["SpotPriceHistory"]
        mine = [row for row in rows if row["InstanceType"] == instance_type]
        mine = [row for row in mine if not zone or row["AvailabilityZone"] == zone]
        kinds = sorted({(r["AvailabilityZone"], r.get("ProductDescription", "")) for r in mine})
        points = sorted((_stamp(row["Timestamp"]), float(row["SpotPrice"])) for row in mine)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path}: not a spot price history: {error!r}") from error
    if len(kinds) != 1:
        raise UsageError(
            f"{path}: {instance_type} in {zone or 'any zone'} must have one zone and product, "
            f"got {kinds}"
        )
    first_s = points[0][0]
    return PriceHistory([t - first_s for t, _ in points], [price for _, price in points])


def _stamp(text: str) -> float:
    stamp = datetime.fromisoformat(text)
    if stamp.tzinfo is None:
        raise UsageError(f"Timestamp must have a zone, got {text!r}")
    return stamp.timestamp()


def _text(path: str | Path) -> Any:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error
