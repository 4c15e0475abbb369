"""The ways in which gradients may travel, as a value with a text form."""

import re
from dataclasses import dataclass
from functools import cache

from kfcore.errors import UsageError

__all__ = ["Compression", "parse"]

_SPEC = re.compile(r"(?P<kind>\w+)(?:\((?P<number>[^()]*)\))?")
_BYTES = {"none": 4.0, "f16": 2.0, "bf16": 2.0, "int8": 1.0}
_FORMS = "none, f16, bf16, int8 or top_k(fraction)"


@dataclass(frozen=True)
class Compression:
    """One way in which gradients travel.

    Attributes:
        kind: ``none``, ``f16``, ``bf16``, ``int8`` or ``top_k``.
        fraction: Of ``top_k``: elements that travel, in (0, 1].
    """

    kind: str = "none"
    fraction: float = 1.0

    @property
    def spec(self) -> str:
        """The text that `parse` reads."""
        return f"top_k({self.fraction:g})" if self.kind == "top_k" else self.kind

    def wire_bytes(self, elements: int, world_size: int) -> int:
        """Payload bytes that a rank sends to average a float32 gradient.

        Args:
            elements: Of the gradient, >= 0.
            world_size: Ranks, >= 1.

        Returns:
            ``2 (n - 1) / n`` times the coded size where the coded chunks are scattered and
            gathered, ``(n - 1)`` times the coded size for ``top_k``, which is gathered whole.
            Scales, padding and messages are left out.
        """
        others = world_size - 1
        if self.kind == "top_k":
            kept = min(elements, max(1, round(elements * self.fraction)))
            return others * kept * 8
        return round(2 * others / world_size * elements * _BYTES[self.kind])


@cache
def parse(spec: str) -> Compression:
    """Read a compression's text.

    Args:
        spec: ``none``, ``f16``, ``bf16``, ``int8`` or ``top_k(fraction)``.

    Returns:
        The compression.

    Raises:
        UsageError: it reads otherwise, or the fraction is out of range.

    Example:
        >>> parse("top_k( 0.01 )")
        Compression(kind='top_k', fraction=0.01)
    """
    match = _SPEC.fullmatch(spec.replace(" ", "")) if isinstance(spec, str) else None
    if match is not None:
        kind, number = match["kind"], match["number"]
        if kind in _BYTES and number is None:
            return Compression(kind)
        try:
            if kind == "top_k" and 0 < float(number or "nan") <= 1:
                return Compression(kind, float(number))
        except ValueError:
            pass
    raise UsageError(
        f"a compression must read {_FORMS} with a fraction in (0, 1], got {spec!r}"
    )
