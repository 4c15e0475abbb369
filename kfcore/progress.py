"""How far a job is, as data: for commits, checkpoints and joiners."""

from typing import Any

from kfcore.controller import Controller
from kfcore.errors import UsageError

__all__ = ["capture", "restore"]

_COUNTS = ("step", "epoch", "samples")
_NAMES = {*_COUNTS, "epoch_begun", "local_batch", "learning_rate", "hyper", "policies"}


def capture(controller: Controller) -> dict[str, Any]:
    """A controller's progress, good for any number of workers.

    Left out, because they belong to a view or to the steps just before: world size, schedule,
    proposals under way, and the monitors' averages.

    Args:
        controller: Between two steps.

    Returns:
        Counts, settings in force and the policies' states.
    """
    return {
        **{name: getattr(controller, name) for name in _COUNTS},
        "epoch_begun": controller.epoch_begun,
        "local_batch": controller.local_batch,
        "learning_rate": controller.learning_rate,
        "hyper": dict(controller.hyper),
        "policies": controller.policy_states(),
    }


def restore(controller: Controller, tree: Any) -> None:
    """Go on from a captured progress.

    Args:
        controller: With the same policies and hyper-parameters; any world size.
        tree: What `capture` gave.

    Raises:
        UsageError: it is something else, or belongs to another job.
    """
    if not isinstance(tree, dict) or set(tree) != _NAMES:
        found = sorted(tree) if isinstance(tree, dict) else tree
        raise UsageError(f"a job's progress has {sorted(_NAMES)}, got {found!r:.200}")
    counts = {name: tree[name] for name in _COUNTS}
    if any(type(count) is not int or count < 0 for count in counts.values()):
        raise UsageError(f"a job's counts must be integers >= 0, got {counts}")
    if set(tree["hyper"]) != set(controller.hyper):
        raise UsageError(
            f"this job has hyper-parameters {sorted(controller.hyper)}, "
            f"got {sorted(tree['hyper'])}"
        )
    controller.resume(
        **counts,
        epoch_begun=bool(tree["epoch_begun"]),
        settings={
            "local_batch": tree["local_batch"],
            "learning_rate": tree["learning_rate"],
            **tree["hyper"],
        },
    )
    controller.load_policy_states(tree["policies"])
