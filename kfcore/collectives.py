"""The collectives of sessions and groups: every one with a blocking and an asynchronous form.

Arrays are NumPy arrays, torch tensors or anything with CPU DLPack, of any strides. What comes
back is of the kind that went in: tensors for tensors, else NumPy arrays.
"""

from collections.abc import Sequence
from typing import Any

from kfcore import _native
from kfcore.errors import UsageError
from kfcore.handle import Handle
from kfcore.operations import Operations
from kfcore.staging import copy_of, local

__all__ = ["Collectives"]

Array = Any
FUSION_BYTES = 64 << 20  # Horovod's default threshold


class Collectives(Operations):
    """Operations in which all ranks take part, each with an equally large array."""

    def all_reduce(
        self,
        array: Array,
        op: str = "sum",
        *,
        copy: bool = False,
        name: str | None = None,
        timeout_s: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Reduce an array over all ranks, in place; every rank gets the same bits.

        16-bit floats are summed and multiplied in 32 bits. Integers wrap; their average
        truncates towards zero. For booleans sum and max mean "or", prod and min "and".

        Args:
            array: Same type and size on every rank; any strides.
            op: ``sum``, ``prod``, ``min``, ``max`` or ``avg`` (the sum over the number of ranks
                that take part).
            copy: Leave ``array`` as it is, which may then be read-only, and return a new one.
            name: Operations of one name are matched with each other, whatever the order of
                other operations. Unnamed ones are matched in the order of the calls.
            timeout_s: Longest time to wait, in seconds; default: the session's.
            async_op: Return a :class:`~kfcore.handle.Handle` at once.

        Returns:
            ``array`` itself, or the new one.

        Raises:
            UsageError: The array or the operator is not usable.
            MismatchError: Ranks called different operations; raised on every rank.
            PeerLostError: A peer died or closed its session.
            DeadlineError: The time is over; the text names the ranks waited for.
        """
        if (
            name is None
            and timeout_s is None
            and not (copy or async_op)
            and self._caller is not None
            and not self._must_look()
            and type(op) is str
            and self._caller.all_reduce(array, op, self._shared.timeout_s)
        ):
            return array
        target = copy_of(local(array)) if copy else array
        return self._perform(
            "all_reduce",
            [target],
            lambda: target,
            ops=op,
            name=name,
            timeout_s=timeout_s,
            async_op=async_op,
        )

    def grouped_all_reduce(
        self,
        arrays: Sequence[Array],
        op: str | Sequence[str] = "sum",
        *,
        fusion_bytes: int = FUSION_BYTES,
        name: str | None = None,
        timeout_s: float | None = None,
        async_op: bool = False,
        norms: _native.NormSums | None = None,
    ) -> Any:
        """Reduce several arrays together, in place, without copying them together.

        Arrays are fused in the order of the list into as few operations as
        ``fusion_bytes`` allows, so results are the same bits from run to run.

        Args:
            arrays: Of any types; the list has the same types and sizes on every rank.
            op: One operator for all arrays, or one for each.
            fusion_bytes: Most bytes of one operation, > 0; a larger array has one of its own.
            name: Operations of one name are matched with each other, whatever the order of
                other operations. Unnamed ones are matched in the order of the calls.
            timeout_s: Longest time to wait, in seconds; default: the session's.
            async_op: Return a :class:`~kfcore.handle.Handle` at once.
            norms: Sums squares of the averaged arrays meanwhile; see `kfcore.norms`.

        Returns:
            ``arrays`` itself.

        Raises:
            UsageError: An array, operator or bound is not usable.
            MismatchError: Ranks called different operations; raised on every rank.
            PeerLostError: A peer died or closed its session.
            DeadlineError: The time is over; the text names the ranks waited for.
        """
        if fusion_bytes <= 0:
            raise UsageError(f"fusion_bytes must be > 0, got {fusion_bytes}")
        if not isinstance(op, str) and len(op) != len(arrays):
            raise UsageError(
                f"one op for each array: got {len(op)} ops for {len(arrays)} arrays"
            )
        if (
            name is None
            and timeout_s is None
            and norms is None
            and not async_op
            and self._caller is not None
            and not self._must_look()
            and type(op) is str
            and type(arrays) is list
            and self._caller.all_reduce_list(arrays, op, fusion_bytes, self._shared.timeout_s)
        ):
            return arrays
        buckets = _buckets(arrays, fusion_bytes)
        if len(buckets) == 1:
            return self._perform(
                "all_reduce",
                arrays,
                lambda: arrays,
                ops=op,
                name=name,
                timeout_s=timeout_s,
                async_op=async_op,
                norms=norms,
            )
        handles: list[Handle] = []
        for begin, end in buckets:
            handles.append(
                self._perform(
                    "all_reduce",
                    arrays[begin:end],
                    lambda: None,
                    ops=op if isinstance(op, str) else op[begin:end],
                    name=None if name is None else f"{name}/{begin}",
                    timeout_s=timeout_s,
                    async_op=True,
                    norms=norms,
                )
            )
        whole = Handle.of(handles, lambda: arrays)
        return whole if async_op else whole.wait()

    def broadcast(
        self,
        array: Array,
        root: int = 0,
        *,
        name: str | None = None,
        timeout_s: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Copy the root's array to all ranks, in place.

        Args:
            array: Same type and size on every rank; any strides.
            root: Rank that has the data; its array may be read-only.
            name: Operations of one name are matched with each other, whatever the order of
                other operations. Unnamed ones are matched in the order of the calls.
            timeout_s: Longest time to wait, in seconds; default: the session's.
            async_op: Return a :class:`~kfcore.handle.Handle` at once.

        Returns:
            ``array`` itself.

        Raises:
            UsageError: The array or root is not usable.
            MismatchError: Ranks called different operations; raised on every rank.
            PeerLostError: A peer died or closed its session.
            DeadlineError: The time is over; the text names the ranks waited for.
        """
        return self._perform(
            "broadcast",
            [array],
            lambda: array,
            root=root,
            writes=self._rank != root,
            name=name,
            timeout_s=timeout_s,
            async_op=async_op,
        )

    def reduce(
        self,
        array: Array,
        op: str = "sum",
        root: int = 0,
        *,
        name: str | None = None,
        timeout_s: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Reduce an array over all ranks into the root's array; the others keep theirs.

        Args:
            array: Same type and size on every rank; any strides.
            op: See :meth:`all_reduce`.
            root: Rank that gets the result.
            name: Operations of one name are matched with each other, whatever the order of
                other operations. Unnamed ones are matched in the order of the calls.
            timeout_s: Longest time to wait, in seconds; default: the session's.
            async_op: Return a :class:`~kfcore.handle.Handle` at once.

        Returns:
            ``array`` itself.

        Raises:
            UsageError: The array, operator or root is not usable.
            MismatchError: Ranks called different operations; raised on every rank.
            PeerLostError: A peer died or closed its session.
            DeadlineError: The time is over; the text names the ranks waited for.
        """
        # ranks inside a tree add up in their buffer, so all but the root lend a copy
        buffer = array if self._rank == root else copy_of(local(array))
        return self._perform(
            "reduce",
            [buffer],
            lambda: array,
            ops=op,
            root=root,
            name=name,
            timeout_s=timeout_s,
            async_op=async_op,
        )

    def barrier(
        self,
        *,
        name: str | None = None,
        timeout_s: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Wait until every rank has called it.

        Args:
            name: Operations of one name are matched with each other, whatever the order of
                other operations. Unnamed ones are matched in the order of the calls.
            timeout_s: Longest time to wait, in seconds; default: the session's.
            async_op: Return a :class:`~kfcore.handle.Handle` at once.

        Returns:
            None, or the handle.

        Raises:
            UsageError: ``name`` or ``timeout_s`` is not usable.
            MismatchError: Ranks called different operations; raised on every rank.
            PeerLostError: A peer died or closed its session.
            DeadlineError: The time is over; the text names the ranks waited for.
        """
        return self._perform(
            "barrier", [], lambda: None, name=name, timeout_s=timeout_s, async_op=async_op
        )


def _buckets(arrays: Sequence[Array], most_bytes: int) -> list[tuple[int, int]]:
    """Runs of arrays, in order, of at most ``most_bytes`` each; at least one run."""
    runs: list[tuple[int, int]] = []
    begin, filled = 0, 0
    for at, array in enumerate(arrays):
        size = int(getattr(array, "nbytes", 0))
        if at > begin and size > 0 and filled + size > most_bytes:
            runs.append((begin, at))
            begin, filled = at, 0
        filled += size
    return [*runs, (begin, len(arrays))]
