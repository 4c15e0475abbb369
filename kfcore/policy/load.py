"""Policies by name, so that launchers, scenarios and commands can carry them as text."""

import ast
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

from kfcore.errors import UsageError
from kfcore.policy.base import Policy
from kfcore.policy.catalog import BUILT_IN

__all__ = ["BUILT_IN", "find_policy", "load_policy"]

_LOADING = threading.Lock()  # several ranks of one process may load one file at once
_SPEC = re.compile(r"(?P<where>[^()]+?)(?:\((?P<arguments>.*)\))?", re.DOTALL)


def load_policy(spec: str) -> Policy:
    """Make a policy from its text.

    Args:
        spec: ``file.py:Class``, ``package.module:Class``, or the name of a built-in; a file
            with one policy needs no ``:Class``. Arguments may follow, as literals:
            ``NoiseScaleBatch(cap=256)``.

    Returns:
        A fresh instance.

    Raises:
        UsageError: no such file, module or class; the file fails; the arguments do not fit.

    Example:
        >>> load_policy("NoiseScaleBatch(cap=256)").cap
        256
    """
    match = _SPEC.fullmatch(spec.strip())
    if match is None:
        raise UsageError(f"a policy must read FILE:CLASS or NAME(...), got {spec!r}")
    policy = find_policy(match["where"].strip())
    positional, named = _arguments(match["arguments"] or "", spec)
    try:
        inspect.signature(policy).bind(*positional, **named)
    except TypeError as error:
        raise UsageError(f"{spec}: {error}; {policy.__name__}{_signature(policy)}") from error
    return policy(*positional, **named)


def find_policy(where: str) -> type[Policy]:
    """The class that a spec without arguments names.

    Args:
        where: As in `load_policy`.

    Returns:
        The class.

    Raises:
        UsageError: there is none, or it is not a policy.
    """
    if where in BUILT_IN:
        return BUILT_IN[where]
    place, _, name = where.rpartition(":")
    if not place:
        place, name = where, ""
    if place.endswith(".py"):
        module = _load_file(Path(place))
    elif name:
        module = _load_module(place)
    else:
        raise UsageError(
            f"no policy is built in as {where!r}; there are: {', '.join(BUILT_IN)} "
            "(or give FILE.py:CLASS)"
        )
    own = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, Policy)
        and value.__module__ == module.__name__
    }
    if not name and len(own) == 1:
        return next(iter(own.values()))
    found = getattr(module, name, None) if name else None
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise UsageError(f"{place} has no policy {name!r}; it has: {', '.join(own) or 'none'}")
    return found


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"policy file {path} does not exist")
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    name = f"kf_policy_{path.stem}_{digest}"
    with _LOADING:
        return sys.modules.get(name) or _execute(path, name)


def _execute(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"policy file {path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UsageError(f"policy file {path} failed: {error!r}") from error
    return module


def _load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"policy module {name} cannot be imported: {error}") from error


def _arguments(text: str, spec: str) -> tuple[list[Any], dict[str, Any]]:
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        if not isinstance(call, ast.Call):
            raise ValueError("not one call")
        positional = [ast.literal_eval(item) for item in call.args]
        named = {item.arg or "**": ast.literal_eval(item.value) for item in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{spec}: arguments must be literals, got ({text})") from error
    return positional, named


def _signature(policy: type[Policy]) -> str:
    return str(inspect.signature(policy))
