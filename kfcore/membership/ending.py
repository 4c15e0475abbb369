"""How a worker ends together with the others."""

from collections.abc import Callable

from kfcore.errors import LeftError, NoQuorumError, TransportError
from kfcore.membership.member import FAILURES, Member

__all__ = ["wait_for_all"]


def wait_for_all(member: Member, next_view: Callable[[], object]) -> None:
    """Stay until all workers have the last step: some may still ask for it.

    Args:
        member: This worker.
        next_view: Goes to the next view after a failure, handing over what others need.
    """
    while True:
        try:
            member.running(lambda session: session.barrier(name="kf/finish"))
            return
        except FAILURES as error:
            try:
                member.failed(error)
                next_view()
            except (NoQuorumError, LeftError, TransportError):
                return  # the others are gone, and this worker has everything
