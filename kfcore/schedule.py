"""Schedules: collectives as data, the same value for the executor and the simulator.

A schedule is denoted by a *spec*, a short text such as ``ring``, ``star(root=1)`` or
``tree(fanout=4)``. Every rank that builds the same spec gets the same schedule.
``native/include/kf/schedule.h`` states exactly what a schedule means; ``docs/algorithms.md``
lists the generators with what they cost.

Example:
    >>> ring = build("ring", 4)
    >>> validate(ring)
    >>> cost(ring, 4_000, latency_s=1e-6, bytes_per_s=1e9).bytes_sent
    (6000, 6000, 6000, 6000)
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfcore import _native, checks
from kfcore._native import Schedule, Transfer
from kfcore.choosing import Choice, Hosts, choices, choose
from kfcore.errors import UsageError

__all__ = [
    "Choice",
    "Cost",
    "Hosts",
    "Schedule",
    "Transfer",
    "build",
    "choices",
    "choose",
    "collectives",
    "cost",
    "from_bandwidth",
    "from_json",
    "minimum_spanning_tree",
    "names",
    "spec_of",
    "to_json",
    "validate",
]

FORMAT = "kf-schedule/1"

Matrix = Sequence[Sequence[float]] | NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Cost:
    """What one run of a schedule costs on a uniform network (model: ``kf/cost.h``)."""

    rounds: int
    """Rounds of the longest channel; each pays the latency once."""
    bytes_sent: tuple[int, ...]
    """Bytes that each rank puts on the wire, by rank."""
    time_s: float
    """Seconds from the common start until the last rank is done, not segmented."""


def build(
    spec: str, world_size: int, collective: str = "all_reduce", root: int = 0
) -> Schedule:
    """Builds the schedule that a spec denotes.

    Args:
        spec: Name of a generator, with arguments in parentheses where it takes some.
        world_size: Number of ranks, in ``[1, 8192]``.
        collective: ``all_reduce``, ``reduce``, ``broadcast``, ``reduce_scatter``,
            ``all_gather``, ``gather``, ``scatter``, ``all_to_all`` or ``barrier``.
        root: Rank that has (broadcast, scatter) or gets (reduce, gather) the data, in
            ``[0, world_size)``; other collectives ignore it.

    Returns:
        The schedule; its ``name`` is the canonical spec. With one rank it has no transfers.

    Raises:
        UsageError: The spec is malformed, a number is out of range, or the generator does not
            offer the collective; the text lists what exists.

    Example:
        >>> build("star( root=1 )", 3).name
        'star(root=1)'
    """
    return _native.build_schedule(
        checks.text(spec, "schedule"),
        checks.text(collective, "collective"),
        checks.whole_number(world_size, "world_size"),
        checks.whole_number(root, "root"),
    )


def spec_of(schedule: Schedule) -> str:
    """Text from which :func:`build` makes the same schedule on every rank.

    Args:
        schedule: Any valid schedule, such as one that :func:`from_json` read.

    Returns:
        Its name where a generator makes the same transfers of it, else ``custom(...)``, the
        schedule written out.

    Raises:
        UsageError: The schedule is not valid; see :func:`validate`.

    Example:
        >>> spec_of(from_json(to_json(build("ring", 4))))
        'ring'
    """
    validate(schedule)
    try:
        same = build(schedule.name, schedule.world_size, schedule.collective, schedule.root)
    except UsageError:  # a name of the user's own
        return _native.custom_spec(schedule)
    return schedule.name if same == schedule else _native.custom_spec(schedule)


def names() -> tuple[str, ...]:
    """Returns the names of all generators, sorted."""
    return tuple(_native.generator_names())


def collectives(name: str) -> tuple[str, ...]:
    """Names the collectives that a generator offers.

    Args:
        name: A generator's name, or a spec.

    Returns:
        Collectives, in the order in which ``docs/algorithms.md`` defines them.

    Raises:
        UsageError: There is no such generator.
    """
    return tuple(_native.collectives_of(name))


def validate(schedule: Schedule) -> None:
    """Proves by symbolic execution that a schedule does what its collective promises.

    Every rank must end with each contribution exactly once, nothing may be read before it is
    there, and no two writes may meet; ``kf/validate.h`` has the list.

    Args:
        schedule: Any schedule, built or read from JSON.

    Raises:
        UsageError: The first fault found: channel, round, ranks, chunk, and what is wrong.
    """
    _native.validate(schedule)


def cost(
    schedule: Schedule,
    buffer_bytes: int,
    *,
    latency_s: float,
    bytes_per_s: float,
    reduce_bytes_per_s: float = math.inf,
    unit_bytes: int = 1,
) -> Cost:
    """Prices one un-segmented run of a schedule on a uniform full-duplex network.

    Each round takes ``latency_s + B / bytes_per_s + R / reduce_bytes_per_s``: B the most bytes
    that leave or enter one rank in the round, R the most bytes that one rank adds in it.

    Args:
        schedule: Any schedule whose ranks and chunks are in range.
        buffer_bytes: Size of the whole buffer, in bytes, in ``[0, 2**48]``, a multiple of
            ``unit_bytes``.
        latency_s: Cost of a round apart from its bytes (alpha), in s, >= 0.
        bytes_per_s: Bandwidth of each rank's port in each direction (1 / beta), > 0.
        reduce_bytes_per_s: Speed of adding (1 / gamma), > 0; adding is free by default.
        unit_bytes: Size of an element, in bytes, >= 1; chunks are whole elements.

    Returns:
        Rounds, bytes sent by each rank, and time.

    Raises:
        UsageError: A number is outside its range.

    Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication
    operations in MPICH", IJHPCA 2005, section 3.

    Example:
        >>> cost(build("star", 3), 1_000, latency_s=0.0, bytes_per_s=1e3).time_s
        4.0
    """
    priced = _native.cost(
        schedule,
        checks.whole_number(buffer_bytes, "buffer_bytes", bits=64),
        latency_s,
        bytes_per_s,
        reduce_bytes_per_s,
        checks.whole_number(unit_bytes, "unit_bytes", bits=64),
    )
    return Cost(priced.rounds, tuple(priced.bytes_sent), priced.time_s)


def minimum_spanning_tree(
    latency_s: Matrix, collective: str = "all_reduce", root: int = 0
) -> Schedule:
    """Builds the tree of least total latency, hung from the rank nearest to all others.

    Args:
        latency_s: [world_size, world_size] s, row = from, column = to; finite, >= 0. The two
            directions of a link are averaged; the diagonal is ignored.
        collective: One that ``from_parents`` offers.
        root: As in :func:`build`.

    Returns:
        A schedule whose name is a ``from_parents(...)`` spec, so it can be agreed on as text.

    Raises:
        UsageError: The matrix is not square or holds a value outside its range.

    Source: Prim's algorithm; KungFu's MST strategy (Mai et al., OSDI 2020).

    Example:
        >>> minimum_spanning_tree([[0, 1, 9], [1, 0, 1], [9, 1, 0]]).name
        'from_parents(1,1,1)'
    """
    values, world_size = _square(latency_s, "latency_s")
    return build(
        _native.minimum_spanning_tree(values, world_size), world_size, collective, root
    )


def from_bandwidth(bytes_per_s: Matrix) -> Schedule:
    """Builds the all-reduce that keeps the busiest link busy for the shortest time.

    The best of a ring through wide links and forests of several trees, each grown where links
    and ports are least loaded; ``kf/choose.h`` states the search. A heuristic: the exact
    problem is NP-hard.

    Args:
        bytes_per_s: [world_size, world_size] bytes/s, row = from, column = to; finite, >= 0,
            0 = no link; the diagonal is ignored.

    Returns:
        An all-reduce whose name is a ``ring``, ``from_parents`` or ``forest`` spec.

    Raises:
        UsageError: The matrix is not square, holds a value outside its range, or its links do
            not join all ranks in both directions.

    Example:
        >>> from_bandwidth([[0, 9, 1, 9], [9, 0, 9, 1], [1, 9, 0, 9], [9, 1, 9, 0]]).name
        'ring'
    """
    values, world_size = _square(bytes_per_s, "bytes_per_s")
    return build(_native.from_bandwidth(values, world_size), world_size)


def _square(matrix: Matrix, what: str) -> tuple[list[float], int]:
    """Flattens a square matrix, row by row."""
    try:
        values = np.asarray(matrix, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{what} must be a square matrix of numbers: {error}") from error
    if values.ndim != 2 or values.shape[0] != values.shape[1]:
        raise UsageError(f"{what} must be a square matrix, got shape {values.shape}")
    return values.ravel().tolist(), values.shape[0]


def to_json(schedule: Schedule) -> str:
    """Writes a schedule as JSON, in the format that ``docs/algorithms.md`` documents.

    Args:
        schedule: Any schedule.

    Returns:
        One JSON object; each round stands on a line of its own.
    """
    head = {
        "format": FORMAT,
        "name": schedule.name,
        "collective": schedule.collective,
        "world_size": schedule.world_size,
        "root": schedule.root,
        "chunk_count": schedule.chunk_count,
    }
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    channels = [
        "    [\n" + ",\n".join("      " + _round_json(moves) for moves in rounds) + "\n    ]"
        for rounds in schedule.channels
    ]
    lines.append('  "channels": [\n' + ",\n".join(channels) + "\n  ]")
    return "{\n" + "\n".join(lines) + "\n}\n"


def _round_json(moves: Sequence[Transfer]) -> str:
    return json.dumps([{key: getattr(move, key) for key in _TRANSFER_KEYS} for move in moves])


def from_json(text: str) -> Schedule:
    """Reads a schedule that :func:`to_json` or a user wrote. Does not prove it.

    Args:
        text: One JSON object; ``docs/algorithms.md`` documents the format.

    Returns:
        The schedule. Call :func:`validate` before use.

    Raises:
        UsageError: The text is not JSON, or a key is missing, unknown or of the wrong type; the
            text says where.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:  # also: nested too deep, a number too long
        raise UsageError(f"a schedule must be JSON: {error}") from error
    head = _fields(data, _SCHEDULE_KEYS, "the schedule")
    if head["format"] != FORMAT:
        raise UsageError(f'format must be "{FORMAT}", got {head["format"]!r}')
    channels = [
        [
            [
                Transfer(
                    **_fields(move, _TRANSFER_KEYS, f"channel {c}, round {r}, transfer {i}")
                )
                for i, move in enumerate(_list(moves, f"channel {c}, round {r}"))
            ]
            for r, moves in enumerate(_list(rounds, f"channel {c}"))
        ]
        for c, rounds in enumerate(head["channels"])
    ]
    del head["format"]
    return _native.make_schedule(**{**head, "channels": channels})


_TRANSFER_KEYS: dict[str, type] = {
    "src": int,
    "dst": int,
    "chunk_begin": int,
    "chunk_count": int,
    "combine": str,
}
_SCHEDULE_KEYS: dict[str, type] = {
    "format": str,
    "name": str,
    "collective": str,
    "world_size": int,
    "root": int,
    "chunk_count": int,
    "channels": list,
}
_INT_LIMIT = 2**31


def _list(value: Any, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise UsageError(f"{place} must be a list, got {type(value).__name__}")
    return value


def _fields(value: Any, types: dict[str, type], place: str) -> dict[str, Any]:
    """Checks that an object has exactly these keys, with values of these types."""
    if not isinstance(value, dict):
        raise UsageError(f"{place} must be an object, got {type(value).__name__}")
    if value.keys() != types.keys():
        unknown = sorted(value.keys() - types.keys())
        missing = sorted(types.keys() - value.keys())
        raise UsageError(f"{place}: unknown keys {unknown}, missing keys {missing}")
    for key, expected in types.items():
        given = value[key]
        # bool is an int in Python, but true is no rank.
        if not isinstance(given, expected) or isinstance(given, bool):
            raise UsageError(
                f"{place}: {key} must be {expected.__name__}, got {type(given).__name__}"
            )
        if isinstance(given, int) and not -_INT_LIMIT <= given < _INT_LIMIT:
            raise UsageError(f"{place}: {key} must fit 32 bits, got {given}")
    return dict(value)
