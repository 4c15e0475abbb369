"""Fewer bytes while the network is what training waits for."""

from kfcore.compression import Compression, parse
from kfcore.errors import UsageError
from kfcore.monitors import Undefined
from kfcore.policy.actions import SetCompression
from kfcore.policy.base import Actions
from kfcore.policy.observation import Observation
from kfcore.policy.pacing import PacedPolicy

__all__ = ["CompressOnSlowNetwork"]


class CompressOnSlowNetwork(PacedPolicy):
    """Compresses gradients while communication would take a large share of the step without it.

    The share is ``c / (c + compute_s)``, where c is the time exposed to communication, or,
    while gradients are compressed, that time multiplied by how many times fewer bytes are sent.
    On at ``on`` or above for ``patience`` steps, off at ``off`` or below; between them nothing
    changes.

    Args:
        compression: What to use: ``f16``, ``bf16``, ``int8`` or ``top_k(fraction)``.
        on: Share from which on to compress, in (0, 1).
        off: Share below which not to, in [0, on).
        patience: Steps in a row, >= 1.
        cooldown_steps: Steps between two changes, >= 0.

    Raises:
        UsageError: an argument out of range.

    Source: ours. Agarwal et al., "On the utility of gradient compression", MLSys 2022, on when
    it pays.
    """

    def __init__(
        self,
        compression: str = "int8",
        on: float = 0.4,
        off: float = 0.15,
        patience: int = 5,
        cooldown_steps: int = 50,
    ) -> None:
        super().__init__(patience, cooldown_steps)
        if parse(compression).kind == "none":
            raise UsageError("compression must be one that sends fewer bytes, got none")
        if not 0 <= off < on < 1:
            raise UsageError(f"0 <= off < on < 1, got off {off} and on {on}")
        self.compression, self.on, self.off = parse(compression).spec, on, off

    def after_step(self, seen: Observation) -> Actions:
        """Compare the share with its limits."""
        exposed_s, compute_s = seen.metrics["exposed_s"], seen.metrics["compute_s"]
        if isinstance(exposed_s, Undefined) or isinstance(compute_s, Undefined):
            return None
        comm_s = max(exposed_s, 0.0)
        active = seen.compression != "none"
        if active and seen.world_size > 1:
            plain = Compression().wire_bytes(1 << 20, seen.world_size)
            comm_s *= plain / parse(seen.compression).wire_bytes(1 << 20, seen.world_size)
        share = comm_s / (comm_s + compute_s) if comm_s + compute_s > 0 else 0.0
        want = ""
        if not active and share >= self.on:
            want = self.compression
        elif active and share <= self.off:
            want = "none"
        if not self._may_act(seen.step, want):
            return None
        return SetCompression(
            want, reason=f"communication would take {share:.0%} of a step uncompressed"
        )
