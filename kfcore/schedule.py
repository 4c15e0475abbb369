"""Schedules: collectives as data, the same value for the executor and the simulator.

A schedule is denoted by a *spec*, a short text such as ``ring``, ``star(root=1)`` or
``tree(fanout=4)``. Every rank that builds the same spec gets the same schedule.
``native/include/kf/schedule.h`` states exactly what a schedule means.

Example:
    >>> build("ring", 4).chunk_count
    4
"""

from kfcore._native import Schedule, Transfer, build_schedule, collectives_of, generator_names

__all__ = ["Schedule", "Transfer", "build", "collectives", "names"]


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
    return build_schedule(spec, collective, world_size, root)


def names() -> tuple[str, ...]:
    """Returns the names of all generators, sorted."""
    return tuple(generator_names())


def collectives(name: str) -> tuple[str, ...]:
    """Names the collectives that a generator offers.

    Args:
        name: A generator's name, without arguments.

    Returns:
        Collectives in the order of ``kf::Collective``.

    Raises:
        UsageError: There is no such generator.
    """
    return tuple(collectives_of(name))
