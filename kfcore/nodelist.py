"""Slurm's compressed texts: node lists and tasks per node. Pure; never runs ``scontrol``.

Grammar of a list: names separated by commas or blanks; a name may hold any number of brackets
with numbers and ranges, ``host[001,003-004]``, whose zero padding is kept; or one box,
``bgl[123x456]``, whose two corners have one digit (0-9, A-Z) a dimension.
Source: ``man scontrol``, ``man slurm.conf`` (NodeName).
"""

import itertools
import re
import string

from kfcore.errors import UsageError

__all__ = ["expand_counts", "expand_nodelist"]

MAX_NODES = 1 << 16  # a typing error must not fill the memory
_DIGITS = string.digits + string.ascii_uppercase
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")
_BOX = re.compile(r"([0-9A-Z]+)x([0-9A-Z]+)")


def expand_nodelist(text: str) -> list[str]:
    """Expand a Slurm node list.

    Args:
        text: Such as ``SLURM_STEP_NODELIST`` holds: ``nodeA,nodeB[001,003-004]``.

    Returns:
        The names in the order of the text; a name that stands twice comes twice.

    Raises:
        UsageError: A bracket that is not closed, an empty or descending range, something that
            is no number, or more than 65536 names; the text says which part.

    Example:
        >>> expand_nodelist("tux[08-10],a[1-2]b[3-4]")
        ['tux08', 'tux09', 'tux10', 'a1b3', 'a1b4', 'a2b3', 'a2b4']
    """
    names: list[str] = []
    for part in _parts(text):
        names.extend(_expand(part, text, MAX_NODES - len(names)))
    return names


def expand_counts(text: str) -> list[int]:
    """Expand Slurm's tasks per node.

    Args:
        text: Such as ``SLURM_STEP_TASKS_PER_NODE`` holds: ``2(x3),1``.

    Returns:
        One number a node, in the order of the node list.

    Raises:
        UsageError: The text does not follow the form.

    Example:
        >>> expand_counts("2(x3),1")
        [2, 2, 2, 1]
    """
    counts: list[int] = []
    for part in text.split(","):
        found = _COUNT.fullmatch(part.strip())
        if found is None:
            raise UsageError(f"tasks per node {text!r}: {part!r} is not N or N(xTIMES)")
        times = int(found[2] or 1)
        if len(counts) + times > MAX_NODES:
            raise UsageError(f"tasks per node {text!r}: more than {MAX_NODES} nodes")
        counts.extend([int(found[1])] * times)
    return counts


def _parts(text: str) -> list[str]:
    """Cut at commas and blanks outside brackets."""
    parts, depth, begin = [], 0, 0
    for at, letter in enumerate(text):
        if letter == "[":
            depth += 1
        elif letter == "]":
            depth -= 1
        if depth not in (0, 1):
            raise UsageError(f"node list {text!r}: unexpected {letter!r} at position {at}")
        if depth == 0 and (letter == "," or letter.isspace()):
            parts.append(text[begin:at])
            begin = at + 1
    if depth:
        raise UsageError(f"node list {text!r}: a bracket is not closed")
    parts.append(text[begin:])
    return [part for part in parts if part]


def _expand(part: str, whole: str, room: int) -> list[str]:
    pieces = [
        _numbers(piece[1:-1], whole) if piece.startswith("[") else [piece]
        for piece in re.split(r"(\[[^]]*\])", part)
        if piece
    ]
    total = 1
    for piece in pieces:
        total *= len(piece)
    if total > room:
        raise UsageError(f"node list {whole!r}: more than {MAX_NODES} names")
    return ["".join(choice) for choice in itertools.product(*pieces)]


def _numbers(inside: str, whole: str) -> list[str]:
    out: list[str] = []
    for item in inside.split(","):
        box = _BOX.fullmatch(item.strip())
        if box is not None:
            out.extend(_box(box[1], box[2], whole))
            continue
        first, dash, last = item.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UsageError(f"node list {whole!r}: [{inside}] is not numbers and ranges")
        low, high = int(first), int(last or first)
        if high < low:
            raise UsageError(f"node list {whole!r}: the range {item.strip()} descends")
        if high - low >= MAX_NODES:
            raise UsageError(f"node list {whole!r}: more than {MAX_NODES} names")
        out.extend(f"{number:0{len(first)}d}" for number in range(low, high + 1))
    return out


def _box(low: str, high: str, whole: str) -> list[str]:
    spans = [(_DIGITS.index(a), _DIGITS.index(b)) for a, b in zip(low, high, strict=False)]
    if len(low) != len(high) or any(b < a for a, b in spans):
        raise UsageError(f"node list {whole!r}: {low}x{high} is not two corners of a box")
    axes = [_DIGITS[a : b + 1] for a, b in spans]
    return ["".join(digits) for digits in itertools.product(*axes)]
