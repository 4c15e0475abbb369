"""What an experiment sets out to show, and whether its rows show it."""

from typing import Any

__all__ = ["aim"]


def aim(
    what: str,
    measured: float | None,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
) -> dict[str, Any]:
    """One aim as a line of a table.

    Args:
        what: in words, with its unit.
        measured: from the rows; None: they do not say.
        at_least: limit below.
        at_most: limit above; exactly one of the two is given.

    Returns:
        ``our aim``, ``limit``, ``measured`` and ``verdict``: met, missed or not measured.

    Raises:
        ValueError: not exactly one limit.

    Example:
        >>> aim("recovered (%)", 94.0, at_least=90.0)["verdict"]
        'met'
    """
    if (at_least is None) == (at_most is None):
        raise ValueError("an aim has exactly one limit, at_least or at_most")
    limit = f">= {at_least:g}" if at_least is not None else f"<= {at_most:g}"
    if measured is None:
        verdict = "not measured"
    else:
        low = float("-inf") if at_least is None else at_least
        high = float("inf") if at_most is None else at_most
        verdict = "met" if low <= measured <= high else "missed"
    return {"our aim": what, "limit": limit, "measured": measured, "verdict": verdict}
