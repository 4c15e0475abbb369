"""Who has a TCP port: for the message that it is taken."""

import os
from pathlib import Path

__all__ = ["owner_of_port"]

_LISTEN = "0A"  # state in /proc/net/tcp


def owner_of_port(port: int) -> str:
    """Name the process that listens on a port of this host.

    Args:
        port: In [1, 65535].

    Returns:
        ``; process 123 (python3) has it``, or an empty text where that cannot be seen.
    """
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    for folder in Path("/proc").iterdir() if sockets else ():
        if folder.name.isdecimal() and _holds(folder / "fd", sockets):
            try:
                name = (folder / "comm").read_text(encoding="utf-8").strip()
            except OSError:  # it has just gone
                continue
            return f"; process {folder.name} ({name}) has it"
    return ""


def _listening(port: int) -> set[str]:
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(fields[9])
    return inodes


def _holds(folder: Path, sockets: set[str]) -> bool:
    try:
        return any(os.readlink(entry) in sockets for entry in folder.iterdir())
    except OSError:  # another user's process, or one that has gone
        return False
