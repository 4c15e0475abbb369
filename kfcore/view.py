"""The membership a session is bound to."""

from dataclasses import dataclass

from kfcore.errors import UsageError

__all__ = ["View"]


@dataclass(frozen=True)
class View:
    """An immutable, numbered, ordered list of members; the order defines the ranks.

    Attributes:
        version: Strictly increasing from view to view, >= 0.
        members: Stable identities of the workers; the index is the rank.

    Raises:
        UsageError: No members, a member twice, or a negative version.
    """

    version: int
    members: tuple[str, ...]

    def __post_init__(self) -> None:
        """Check the rules that every user of a view relies on."""
        if self.version < 0:
            raise UsageError(f"version must be >= 0, got {self.version}")
        if not self.members:
            raise UsageError("a view has at least one member, got none")
        if len(set(self.members)) != len(self.members):
            raise UsageError(f"members must be distinct, got {list(self.members)}")

    @property
    def world_size(self) -> int:
        """Number of members, >= 1."""
        return len(self.members)

    def rank_of(self, member: str) -> int | None:
        """Rank of a member, in ``[0, world_size)``.

        Args:
            member: A member id.

        Returns:
            Its rank, or None if it is not a member of this view.
        """
        return self.members.index(member) if member in self.members else None
