"""The command ``kf``: one entry point, each sub-command loaded only when it is used.

Exit codes: 0 success; 1 the work failed; 2 the command was used wrongly. ``kf run`` passes on
the first failing worker's code.
"""

from kfcore.cli.root import main

__all__ = ["main"]
