"""Policies named on the command line, checked before anything starts."""

from pathlib import Path

from kfcore.policy.load import load_policy

__all__ = ["check_policy"]


def check_policy(entry: str) -> str:
    """Check that a policy can be made, here and once instead of in every worker.

    Args:
        entry: As `kfcore.policy.load.load_policy` takes it: ``FILE:CLASS``, ``MODULE:CLASS`` or
            the name of a built-in, with arguments if wanted.

    Returns:
        The entry, a file's path made absolute so that it is good in any working folder.

    Raises:
        UsageError: no such file, module or class, or arguments that do not fit.
    """
    load_policy(entry)
    path, dot_py, rest = entry.strip().partition(".py")
    if not dot_py or rest[:1] not in ("", ":", "("):
        return entry.strip()
    return f"{Path(path + dot_py).resolve()}{rest}"
