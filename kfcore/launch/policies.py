"""Policies named on the command line, checked before anything starts."""

import ast
from pathlib import Path

from kfcore.errors import UsageError

__all__ = ["check_policy"]


def check_policy(entry: str) -> str:
    """Check that a policy file exists, parses and defines the class; nothing is executed.

    Args:
        entry: ``FILE:CLASS``.

    Returns:
        The entry with an absolute path, good in any working folder.

    Raises:
        UsageError: malformed, no such file, a syntax error, or no such class in it.
    """
    path_text, colon, name = entry.rpartition(":")
    if not colon or not path_text or not name.isidentifier():
        raise UsageError(f"policy must be FILE:CLASS, got {entry!r}")
    path = Path(path_text)
    try:
        tree = ast.parse(path.read_bytes(), filename=path_text)
    except OSError as error:
        raise UsageError(f"policy file {path_text!r}: {error.strerror}") from error
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"policy file {path_text!r}: {error}") from error
    classes = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    imported = [
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    if name not in classes + imported:
        known = ", ".join(classes) or "none"
        raise UsageError(f"policy file {path_text!r} has no class {name!r}; it has: {known}")
    return f"{path.resolve()}:{name}"
