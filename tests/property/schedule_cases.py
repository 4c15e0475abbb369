"""Every generator with its arguments, and every collective it offers."""

import random

from kfcore import schedule as ks


def random_parents(world_size: int, seed: int) -> str:
    rng = random.Random(seed)
    names = list(range(world_size))
    rng.shuffle(names)
    parents = [0] * world_size
    for place, rank in enumerate(names):
        parents[rank] = names[rng.randrange(place)] if place else rank
    return ",".join(map(str, parents))


def ring_order(world_size: int) -> str:
    order = list(range(world_size))
    random.Random(world_size).shuffle(order)
    return f"ring(order=({','.join(map(str, order))}))"


# `custom` writes out what another generator made: tests/property/test_schedule_custom.py.
# Spec of each generator, or the function that makes it for a world size; where a generator
# takes arguments, several.
SPECS = {
    **{name: name for name in ks.names() if name != "custom"},
    "from_parents": lambda n: f"from_parents({random_parents(n, n)})",
    "forest": lambda n: f"forest(2*({random_parents(n, n)}),({random_parents(n, n + 1)}))",
    "ring order": ring_order,
    "star root": lambda n: f"star(root={n - 1})",
    "tree 3": "tree(fanout=3)",
    "chain": "tree(fanout=1)",
    "binary_tree_star hosts": "binary_tree_star(ranks_per_host=4)",
    "multi_binary_tree_star hosts": "multi_binary_tree_star(ranks_per_host=4)",
    "hierarchical rings": "hierarchical(ranks_per_host=4)",
    "hierarchical mixed": (
        "hierarchical(intra=halving_doubling,inter=double_binary_tree,ranks_per_host=3)"
    ),
    "hierarchical star": ("hierarchical(intra=star,inter=tree(fanout=4),ranks_per_host=8)"),
}


def spec_of(label: str, n: int) -> str:
    spec = SPECS[label]
    return spec(n) if callable(spec) else spec


CASES = [
    (label, collective)
    for label in SPECS
    for collective in ks.collectives(label.split()[0] if label != "chain" else "tree")
]
