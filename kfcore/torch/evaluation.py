"""Exact sums over a data set that workers share out without padding."""

from collections.abc import Callable, Mapping

import numpy as np

from kfcore.session import Session

__all__ = ["evaluate"]


def evaluate(
    session: Session, n_samples: int, measure: Callable[[range], Mapping[str, float]]
) -> dict[str, float]:
    """Measure each sample once, wherever, and add up.

    Args:
        session: Open session.
        n_samples: Of the data set; may be fewer than there are ranks.
        measure: Called with this rank's indices if there are any; gives sums over them (number
            right, summed loss), the same names on every rank.

    Returns:
        The sums over all samples, and their number as ``samples``.

    Raises:
        UsageError: A measure is named ``samples``.

    Example:
        >>> import kfcore
        >>> with kfcore.init(rank=0, world_size=1) as session:
        ...     evaluate(session, 10, lambda mine: {"even": sum(i % 2 == 0 for i in mine)})
        {'even': 5.0, 'samples': 10.0}
    """
    mine = range(session.rank, n_samples, session.world_size)
    sums = dict(measure(mine)) if mine else {}
    names = session.broadcast_object(sorted(sums))  # rank 0 has samples if anybody has
    values = np.array([*(sums.get(name, 0.0) for name in names), len(mine)], np.float64)
    session.all_reduce(values)
    return dict(zip([*names, "samples"], values.tolist(), strict=True))
