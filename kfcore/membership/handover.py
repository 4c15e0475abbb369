"""What the members of a new view give each other before they go on."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfcore import _native
from kfcore.elastic.image import Image
from kfcore.elastic.stream import Manifest, chunks, share_of
from kfcore.membership.opening import Opened
from kfcore.session import Session

__all__ = ["give_state", "pass_result", "take_state"]

_CHUNK_BYTES = 8 << 20
_JOB, _STATE = 1, 2  # tags


def pass_result(
    session: Session,
    standing: _native.Reconciled,
    rank: int,
    arrays: Sequence[NDArray[Any]],
) -> None:
    """Give the last step's result to those that do not have it.

    Args:
        session: Of the new view.
        standing: Who has it and who needs it.
        rank: This one.
        arrays: The result, or where it belongs; other ranks take no part.

    Raises:
        TransportError: the session failed.
    """
    ranks = [standing.sources[0], *standing.laggards]
    if len(ranks) == 1 or rank not in ranks:
        return
    group = session.group(ranks)
    for array in arrays:
        group.broadcast(array, root=0)


def _senders(standing: _native.Reconciled, sizes: NDArray[Any]) -> list[int]:
    """Those whose images of the state are alike, which they are unless a part is not shared."""
    first = standing.sources[0]
    return [rank for rank in standing.sources if sizes[rank] == sizes[first]]


def give_state(
    session: Session,
    standing: _native.Reconciled,
    rank: int,
    job: Image,
    state: Image,
    state_bytes: NDArray[Any],
) -> None:
    """Send job and state to the newcomers, a share from each that has them.

    Args:
        session: Of the new view.
        standing: Who has the state and who needs it.
        rank: This one, a source.
        job: How far the job is.
        state: The user's state; its memory must not change meanwhile.
        state_bytes: [world_size] sizes of the ranks' images.

    Raises:
        TransportError: the session failed.
    """
    senders = _senders(standing, state_bytes)
    handles = []
    kept = []  # memory of chunks under way
    if rank == standing.sources[0]:
        flat = np.concatenate([*job.pieces()])
        kept.append(flat)
        handles += [session.send(flat, to, _JOB, async_op=True) for to in standing.newcomers]
    if rank in senders:
        plan = Manifest(0, state.size, _CHUNK_BYTES, "")
        mine = share_of(senders.index(rank), len(senders), plan)
        for _, chunk in chunks(state, plan, mine):
            kept.append(chunk)
            handles += [
                session.send(chunk, to, _STATE, async_op=True) for to in standing.newcomers
            ]
    for handle in handles:
        handle.wait()


def take_state(opened: Opened, session: Session) -> tuple[Any, Image]:
    """Receive what `give_state` sends.

    Args:
        opened: The new view; its words are configuration, bytes of the job, bytes of the state.
        session: Of it.

    Returns:
        The job's tree and the image of the state.

    Raises:
        TransportError: the session failed.
    """
    standing, state_bytes = opened.standing, opened.words[:, 2]
    senders = _senders(standing, state_bytes)
    job = np.empty(int(opened.words[standing.sources[0], 1]), np.uint8)
    state = np.empty(int(state_bytes[senders[0]]), np.uint8)
    plan = Manifest(0, len(state), _CHUNK_BYTES, "")
    handles = [session.recv(job, standing.sources[0], _JOB, async_op=True)]
    for number in range(plan.count):
        begin = number * _CHUNK_BYTES
        room = state[begin : begin + _CHUNK_BYTES]
        sender = senders[number % len(senders)]
        handles.append(session.recv(room, sender, _STATE, async_op=True))
    for handle in handles:
        handle.wait()
    return Image.from_bytes(job).tree(), Image.from_bytes(state)
