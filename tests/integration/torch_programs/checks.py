"""Runs checks by name on every rank and writes what became of them, for a test to read."""

import faulthandler
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

CHECKS: dict[str, Callable[[], None]] = {}


def check(fn: Callable[[], None]) -> Callable[[], None]:
    CHECKS[fn.__name__] = fn
    return fn


def run_all(rank: int) -> None:
    """All checks in order of definition; ends the process (torch's Gloo may abort at exit)."""
    faulthandler.dump_traceback_later(300, exit=True)  # say where, rather than hang
    results = {}
    for name, fn in CHECKS.items():
        try:
            fn()
            results[name] = "ok"
        except Exception:
            results[name] = traceback.format_exc()
            if type(sys.exception()).__module__ == "kfcore.errors":
                break  # the session is dead: all that follows would say so
    write(rank, results)


def write(rank: int, results: object) -> None:
    target = Path(sys.argv[1]) / f"rank{rank}.json"
    partial = target.with_suffix(".part")
    partial.write_text(json.dumps(results))
    partial.rename(target)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
