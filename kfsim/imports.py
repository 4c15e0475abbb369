"""Workloads out of what profilers recorded: PyTorch's (Kineto) and Chakra execution traces.

Both give the order in which gradients are ready, and how much of the backward pass lies between
them; that is what a workload's table holds.
"""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from kfcore.errors import UsageError

__all__ = ["Imported", "read_chakra", "read_profile", "write_workload"]

Row = tuple[str, int, float]

_READY = "torch::autograd::AccumulateGrad"
_BACKWARD = "autograd::engine::evaluate_function"
# Chakra, schema/protobuf/et_def.proto (mlcommons/chakra @6dc63e1)
_COMP, _COMM_COLL, _ALL_REDUCE = 4, 7, 0


@dataclass(frozen=True)
class Imported:
    """A step of a model, as a profiler saw it.

    Attributes:
        rows: Tensor, elements, microseconds of backward until it was ready since the one
            before; in the order of the backward pass.
        forward_us: Before backward began, microseconds.
        backward_us: The backward pass.
    """

    rows: tuple[Row, ...]
    forward_us: float
    backward_us: float

    @property
    def forward_fraction(self) -> float:
        """As ``workload.forward_fraction``."""
        return self.forward_us / (self.forward_us + self.backward_us)


def read_profile(path: str | Path) -> Imported:
    """Reads a trace of ``torch.profiler`` with ``record_shapes=True``.

    The last step counts, where ``ProfilerStep#`` marks there are. Where kernels ran on a GPU,
    their times count, each at the moment when it was launched.

    Args:
        path: JSON file of ``export_chrome_trace``.

    Returns:
        The step.

    Raises:
        UsageError: the file is no such trace, or shows no gradient that got ready.
    """
    try:
        events = json.loads(Path(path).read_text(encoding="utf-8"))["traceEvents"]
        spans = [event for event in events if event.get("ph") == "X"]
        spans.sort(key=lambda event: event["ts"])
        return _step(_last_step(spans), path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path}: not a trace of torch.profiler: {error!r}") from error


def _last_step(spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    marks = [span for span in spans if str(span["name"]).startswith("ProfilerStep#")]
    marks = [span for span in marks if span.get("cat") == "user_annotation"]
    if not marks:
        return spans
    begin, end = marks[-1]["ts"], marks[-1]["ts"] + marks[-1]["dur"]
    launched = {s["args"]["correlation"] for s in spans
                if begin <= s["ts"] < end and s.get("cat") == "cuda_runtime"}  # fmt: skip
    return [
        span
        for span in spans
        if (span["args"].get("correlation") in launched)
        or (span.get("cat") != "kernel" and begin <= span["ts"] < end and span not in marks)
    ]


def _step(spans: list[dict[str, Any]], path: str | Path) -> Imported:
    computing = [s for s in spans if s.get("cat") in ("cpu_op", "kernel")]
    ready = [s for s in computing if s["name"] == _READY and s["args"].get("Input Dims")]
    starts = [s["ts"] for s in computing if str(s["name"]).startswith(_BACKWARD)]
    if not ready or not starts:
        raise UsageError(
            f"{path}: shows no gradient that got ready; profile a backward pass with "
            "record_shapes=True"
        )
    kernels = _kernels(spans)
    first, backward = min(s["ts"] for s in computing if s.get("cat") == "cpu_op"), min(starts)
    rows: list[Row] = []
    since = backward
    for place, span in enumerate(ready):
        end = span["ts"] + span["dur"]
        took = _between(kernels, since, end) if kernels else end - since
        shape = span["args"]["Input Dims"][0]
        rows.append((f"grad{place}_{'x'.join(map(str, shape))}", prod(shape), float(took)))
        since = end
    forward = _between(kernels, first, backward) if kernels else backward - first
    return Imported(tuple(rows), float(forward), sum(row[2] for row in rows))


def _kernels(spans: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """When each GPU kernel was launched, and how long it ran, microseconds."""
    launched = {
        s["args"]["correlation"]: s["ts"] for s in spans if s.get("cat") == "cuda_runtime"
    }
    return [
        (launched[s["args"]["correlation"]], s["dur"])
        for s in spans
        if s.get("cat") == "kernel" and s["args"].get("correlation") in launched
    ]


def _between(kernels: list[tuple[float, float]], begin: float, end: float) -> float:
    return sum(length for at, length in kernels if begin <= at < end)


def read_chakra(path: str | Path, bytes_per_element: int = 4) -> Imported:
    """Reads a Chakra execution trace of one rank (``PREFIX.N.et``).

    Each all-reduce is a gradient buffer that is ready once the computing before it is done;
    nodes are taken in the order of their start times, or of the file where they have none.
    What is computed before the first all-reduce is forward and backward together: its share is
    the first buffer's.

    Args:
        path: Protobuf messages, each after its length.
        bytes_per_element: Of a gradient, to turn ``comm_size`` into elements.

    Returns:
        The step; ``forward_us`` is 0, because nodes do not say to which pass they belong.

    Raises:
        UsageError: the file is no such trace, or holds no all-reduce.
    """
    try:
        nodes = [_node(message) for message in list(_messages(Path(path).read_bytes()))[1:]]
    except (OSError, ValueError, IndexError) as error:
        raise UsageError(f"{path}: not a Chakra execution trace: {error}") from error
    nodes.sort(key=lambda node: node["start"])
    rows: list[Row] = []
    since = 0.0
    for node in nodes:
        if node["type"] == _COMP:
            since += node["duration"]
        elif node["type"] == _COMM_COLL and node["attr"].get("comm_type", 0) == _ALL_REDUCE:
            size = int(node["attr"].get("comm_size", 0))
            if size <= 0:
                raise UsageError(f"{path}: node {node['name']!r}: comm_size must be > 0")
            rows.append((node["name"], max(1, size // bytes_per_element), since))
            since = 0.0
    if not rows:
        raise UsageError(f"{path}: holds no all-reduce (type 7, comm_type 0)")
    if not any(row[2] for row in rows):
        raise UsageError(f"{path}: no node computes anything before an all-reduce")
    return Imported(tuple(rows), 0.0, sum(row[2] for row in rows) + since)


def write_workload(path: str | Path, step: Imported, note: str) -> None:
    """Writes a table that ``workload.model`` of a scenario may name.

    Args:
        path: CSV file, replaced if there.
        step: What was imported.
        note: Where it comes from; its first line.
    """
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        file.write(f"# {note} layer_macs: microseconds, of which only the shares count.\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("tensor", "elements", "layer_macs"))
        writer.writerows(step.rows)


def _messages(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        length, at = _varint(data, at)
        if at + length > len(data):
            raise ValueError("a message is cut off")
        yield data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Field numbers and values of a message in protobuf's wire format."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        value: Any
        if kind == 0:
            value, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            value, at = data[at : at + size], at + size
        elif kind == 2:
            length, at = _varint(data, at)
            value, at = data[at : at + length], at + length
        else:
            raise ValueError(f"wire type {kind}")
        if at > len(data):
            raise ValueError("a field is cut off")
        yield key >> 3, value


def _node(data: bytes) -> dict[str, Any]:
    node: dict[str, Any] = {"name": "", "type": 0, "start": 0, "duration": 0, "attr": {}}
    plain = {3: "type", 6: "start", 7: "duration"}
    for number, value in _fields(data):
        if number in plain:
            node[plain[number]] = value
        elif number == 2:
            node["name"] = value.decode()
        elif number == 10:
            found = dict(_fields(value))
            numbers = [found[kind] for kind in (7, 9, 11, 13, 27) if kind in found]
            if 1 in found and numbers:
                node["attr"][found[1].decode()] = numbers[0]
    return node
