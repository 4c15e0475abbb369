"""What the members of a new view give each other before they go on."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfcore import _native
from kfcore.elastic.image import Image
from kfcore.elastic.state import ElasticState
from kfcore.membership.opening import Opened
from kfcore.session import Session

__all__ = ["give_state", "pack_job", "pass_result", "take_state"]

_CHUNK_BYTES = 4 << 20
_SMALL_BYTES = 64 << 10
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
        job: How far the job is, and the header of the state: what `pack_job` gave.
        state: The user's state; its memory must not change meanwhile.
        state_bytes: [world_size] sizes of the ranks' images.

    Raises:
        TransportError: the session failed.
    """
    senders = _senders(standing, state_bytes)
    handles = []
    kept = []  # memory of what is under way
    if rank == standing.sources[0]:
        flat = np.concatenate([*job.pieces()])
        kept.append(flat)
        handles += [session.send(flat, to, _JOB, async_op=True) for to in standing.newcomers]
    if rank in senders:
        leaves = state.leaves
        for cuts in _loads([len(leaf) for leaf in leaves])[senders.index(rank) :: len(senders)]:
            parts = [leaves[leaf][begin:end] for leaf, begin, end in cuts]
            kept.append(parts[0] if len(parts) == 1 else np.concatenate(parts))
            handles += [
                session.send(kept[-1], to, _STATE, async_op=True) for to in standing.newcomers
            ]
    for handle in handles:
        handle.wait()


def take_state(opened: Opened, state: ElasticState, session: Session) -> tuple[Any, Image]:
    """Receive what `give_state` sends.

    Args:
        opened: The new view; its words are configuration, bytes of the job, bytes of the state.
        state: Of this worker; its arrays are overwritten.
        session: Of the view.

    Returns:
        The job's tree and the image of the state.

    Raises:
        TransportError: the session failed.
    """
    standing = opened.standing
    senders = _senders(standing, opened.words[:, 2])
    job = np.empty(int(opened.words[standing.sources[0], 1]), np.uint8)
    session.recv(job, standing.sources[0], _JOB)
    packed = Image.from_bytes(job).tree()
    image = state.room(packed["state"])
    leaves = image.leaves
    handles, split = [], []
    for number, cuts in enumerate(_loads([len(leaf) for leaf in leaves])):
        parts = [leaves[leaf][begin:end] for leaf, begin, end in cuts]
        room = parts[0] if len(parts) == 1 else np.empty(sum(map(len, parts)), np.uint8)
        if len(parts) > 1:
            split.append((room, parts))
        sender = senders[number % len(senders)]
        handles.append(session.recv(room, sender, _STATE, async_op=True))
    for handle in handles:
        handle.wait()
    for room, parts in split:
        begin = 0
        for part in parts:
            part[...] = room[begin : begin + len(part)]
            begin += len(part)
    return packed["job"], image


def pack_job(job: Any, state: Image) -> Image:
    """What a newcomer has to know before it can receive the state.

    Args:
        job: How far the job is, a tree.
        state: The state that it will get.

    Returns:
        An image for `give_state`.
    """
    return Image.of({"job": job, "state": state.header})


def _loads(sizes: Sequence[int]) -> list[list[tuple[int, int, int]]]:
    """Messages: parts of one large leaf each, or several small leaves."""
    loads: list[list[tuple[int, int, int]]] = []
    few: list[tuple[int, int, int]] = []  # small leaves that wait for company
    for leaf, size in enumerate(sizes):
        if size > _SMALL_BYTES:
            begins = range(0, size, _CHUNK_BYTES)
            loads += [[(leaf, begin, min(begin + _CHUNK_BYTES, size))] for begin in begins]
        elif size:
            few.append((leaf, 0, size))
            if sum(end for _, _, end in few) > _SMALL_BYTES:
                loads.append(few)
                few = []
    return [*loads, few] if few else loads
