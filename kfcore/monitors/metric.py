"""Metrics by name, and what stands for a metric without a value: never NaN."""

from kfcore.errors import UsageError

__all__ = ["Metric", "Metrics", "Undefined"]


class Undefined:
    """A metric without a value, and why. Every comparison with it is false; so is it itself.

    Arithmetic with it gives it back, so ``seen.metrics["gns"] > 2 * seen.global_batch`` is safe
    to write whether or not the noise scale exists.

    Args:
        reason: Why there is no value.
        warn: True when the user should hear of it: it will not pass by itself.

    Attributes:
        reason: As given.
        warn: As given.

    Example:
        >>> gns = Undefined("no data yet")
        >>> gns > 1, gns < 1, bool(2 * gns)
        (False, False, False)
    """

    __slots__ = ("reason", "warn")

    def __init__(self, reason: str, *, warn: bool = False) -> None:
        self.reason = reason
        self.warn = warn

    def __repr__(self) -> str:
        return f"undefined ({self.reason})"

    def __bool__(self) -> bool:
        return False

    def _no(self, _other: object) -> bool:
        return False

    def _self(self, _other: object) -> "Undefined":
        return self

    def __float__(self) -> float:
        """Refuse: a number made of nothing would travel on unseen."""
        raise UsageError(f"a metric without a value was used as a number: {self!r}")

    __lt__ = __le__ = __gt__ = __ge__ = _no
    __add__ = __radd__ = __sub__ = __rsub__ = _self
    __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _self

    def __abs__(self) -> "Undefined":
        return self

    def __neg__(self) -> "Undefined":
        return self


Metric = float | Undefined


class Metrics(dict[str, Metric]):
    """Metrics by name. Asking for one that nobody measures is an error that lists the rest."""

    def value(self, name: str) -> float | None:
        """A metric as a number.

        Args:
            name: Of the metric.

        Returns:
            Its value; None when it is undefined.

        Raises:
            UsageError: nobody measures it.
        """
        metric = self[name]
        return None if isinstance(metric, Undefined) else metric

    def __missing__(self, name: str) -> Metric:
        """Explain the absence."""
        raise UsageError(
            f"no metric is named {name!r}; there are: {', '.join(sorted(self))} "
            "(a policy asks for more with its `monitors`)"
        )
