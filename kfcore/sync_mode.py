"""How workers are kept together, as a value with a text form."""

import re
from dataclasses import dataclass
from functools import cache

from kfcore.errors import UsageError

__all__ = ["SyncMode"]

_SPEC = re.compile(r"(?P<kind>\w+)(?:\((?P<number>[^()]*)\))?")
_FORMS = "allreduce, local_sgd(k), sma(alpha) or pair_averaging"


@dataclass(frozen=True)
class SyncMode:
    """One way of keeping workers together.

    Attributes:
        kind: ``allreduce``: gradients are averaged before each update. ``local_sgd``: models
            are averaged after each ``every``-th update. ``sma``: after each update each model
            moves by ``alpha`` of its distance to the mean. ``pair_averaging``: after each
            update models are averaged two by two, another pairing each step.
        every: Updates between two exchanges, >= 1.
        alpha: Share of the distance to the mean, in (0, 1].

    Source: Stich, "Local SGD converges fast and communicates little", ICLR 2019; Koliousis et
    al., "CROSSBOW", VLDB 2019 (synchronous model averaging, in the form of KungFu's optimizer);
    Lian et al., "Asynchronous decentralized parallel SGD", ICML 2018.
    """

    kind: str = "allreduce"
    every: int = 1
    alpha: float = 1.0

    @classmethod
    @cache
    def parse(cls, spec: str) -> "SyncMode":
        """Read a mode's text.

        Args:
            spec: ``allreduce``, ``local_sgd(k)``, ``sma(alpha)`` or ``pair_averaging``.

        Returns:
            The mode.

        Raises:
            UsageError: it reads otherwise, or its number is out of range.

        Example:
            >>> SyncMode.parse("local_sgd( 8 )").spec
            'local_sgd(8)'
        """
        match = _SPEC.fullmatch(spec.replace(" ", "")) if isinstance(spec, str) else None
        if match is None:
            raise UsageError(f"a sync mode must read {_FORMS}, got {spec!r}")
        kind, number = match["kind"], match["number"]
        try:
            if kind in ("allreduce", "pair_averaging") and number is None:
                return cls(kind)
            if kind == "local_sgd" and int(number or "") >= 1:
                return cls(kind, every=int(number))
            if kind == "sma" and 0 < float(number or "nan") <= 1:
                return cls(kind, alpha=float(number))
        except ValueError:
            pass
        raise UsageError(
            f"a sync mode must read {_FORMS} with an integer k >= 1 and alpha in (0, 1], "
            f"got {spec!r}"
        )

    @property
    def spec(self) -> str:
        """The text that `parse` reads."""
        if self.kind == "local_sgd":
            return f"local_sgd({self.every})"
        return f"sma({self.alpha:g})" if self.kind == "sma" else self.kind

    @property
    def averages_models(self) -> bool:
        """Whether models are exchanged after updates, instead of gradients before them."""
        return self.kind != "allreduce"

    def exchanges_after(self, step: int) -> bool:
        """Whether models are exchanged after the update of a step.

        Args:
            step: From 1.

        Returns:
            False in every step of ``allreduce``.
        """
        return self.averages_models and step % self.every == 0
