"""Host discovery: a program of the user's that says which hosts there are now."""

import subprocess
from pathlib import Path

from kfcore.errors import UsageError
from kfcore.launch.hosts import Host, parse_hosts

__all__ = ["discovered_hosts"]

_SCRIPT_S = 30.0


def discovered_hosts(script: Path) -> list[Host]:
    """Ask a host discovery script.

    Args:
        script: Program that prints ``host:slots`` or ``host`` a line.

    Returns:
        The hosts.

    Raises:
        UsageError: it failed, or what it printed is no list of hosts.
    """
    try:
        done = subprocess.run(  # noqa: S603 - the user's own script
            [str(script.absolute())],
            capture_output=True,
            text=True,
            timeout=_SCRIPT_S,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"host discovery by {script} failed: {error}") from error
    return parse_hosts(",".join(done.stdout.split()))
