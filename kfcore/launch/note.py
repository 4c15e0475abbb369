"""What `kf join` needs to know of a job: its secret on this host, the rest from its store."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from kfcore.config import Config
from kfcore.errors import UsageError
from kfcore.store import StoreClient

__all__ = [
    "JOB_KEY",
    "NEXT_KEY",
    "leave_note",
    "read_job",
    "remove_note",
    "secret_of",
    "take_index",
]

JOB_KEY = "launch/job"
NEXT_KEY = "launch/next"
"""Holds the index of the next worker: launchers of one job share the count."""


def leave_note(store: StoreClient, job: Config, command: list[str]) -> None:
    """Tell those who come later how to take part.

    The store gets what is no secret; a file that only this user reads gets the secret.

    Args:
        store: Of the job.
        job: What all workers are told alike.
        command: Program and arguments of every worker.
    """
    text = json.dumps(
        {
            "job_id": job.job_id,
            "command": command,
            "cwd": str(Path.cwd()),
            "timeout_s": job.timeout_s,
            "policies": list(job.policies),
            "faults": job.faults,
            "record": job.record,
        }
    )
    store.set(JOB_KEY, text)
    path = _path(str(job.store_address))
    path.parent.mkdir(mode=0o700, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(job.job_secret)
    draft.replace(path)


def remove_note(job: Config) -> None:
    """Take the file away.

    Args:
        job: As for `leave_note`.
    """
    _path(str(job.store_address)).unlink(missing_ok=True)


def secret_of(address: str, file: Path | None) -> str:
    """Find the secret of a job.

    Args:
        address: Of its store.
        file: Where the user says it is; None: the note on this host.

    Returns:
        The secret.

    Raises:
        UsageError: There is none, or it cannot be read.
    """
    path = _path(address) if file is None else file
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UsageError(
            f"the secret of the job at {address} cannot be read from {path}: {error.strerror}; "
            "on another host give --secret-file, or set KF_JOB_SECRET"
        ) from error


def read_job(store: StoreClient) -> dict[str, Any]:
    """What `leave_note` put into the store.

    Args:
        store: Of the job.

    Returns:
        The fields.

    Raises:
        UsageError: It is no job that can be joined.
    """
    entry = store.peek(JOB_KEY)
    if not entry.version:
        raise UsageError(
            f"the job at {store.address} cannot be joined: start it with kf run --elastic"
        )
    job: dict[str, Any] = json.loads(entry.value)
    return job


def take_index(store: StoreClient) -> int:
    """Take the number of the next worker of a job.

    Args:
        store: Of the job.

    Returns:
        A number that no other worker of the job has.

    Raises:
        TransportError: the store is lost.
    """
    while True:
        entry = store.peek(NEXT_KEY)
        index = int(entry.value or 0)
        if store.compare_and_set(NEXT_KEY, entry.version, str(index + 1)).done:
            return index


def _path(address: str) -> Path:
    safe = "".join(c if c.isalnum() else "_" for c in address)
    return Path(tempfile.gettempdir()) / f"kf-{os.getuid()}" / f"job-{safe}"
