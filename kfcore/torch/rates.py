"""Learning rates that a policy changes while an optimizer holds them."""

from typing import Any

import torch

__all__ = ["scale_rates"]

_RATES = ("lr", "initial_lr", "max_lr", "min_lr")


def scale_rates(
    optimizer: torch.optim.Optimizer, factor: float, schedulers: tuple[Any, ...] = ()
) -> None:
    """Scale the learning rates of all groups, and what schedulers compute them from.

    Args:
        optimizer: Whose groups are changed.
        factor: New rates over old ones, >= 0.
        schedulers: Of torch, over this optimizer.
    """
    for group in optimizer.param_groups:
        for name in _RATES:
            if name in group:
                group[name] = group[name] * factor
    for scheduler in schedulers:
        bases = getattr(scheduler, "base_lrs", None)
        if bases is not None:
            scheduler.base_lrs = [base * factor for base in bases]
