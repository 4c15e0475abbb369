"""A scenario's cluster as the fabric that collectives are replayed on (``kf/replay.h``)."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfcore import _native, schedule
from kfsim.cluster import Cluster

__all__ = ["Collective", "Links"]

Times = NDArray[np.float64]

# Prepared collectives are kept up to this much memory in all.
_KEPT_BYTES = 200_000_000
_BYTES_PER_GBIT = 1e9 / 8
# Sides of a card that traffic from outside the cluster uses: (source host, destination host).
_OUTSIDE = -1


@dataclass(frozen=True)
class Collective:
    """What one replayed collective brought.

    Attributes:
        finish_s: [world_size] when each rank is done, same origin as the ready times.
        bytes_sent: [world_size] int64.
    """

    finish_s: Times
    bytes_sent: NDArray[np.int64]


class Links:
    """Replays schedules on a cluster, and keeps what was prepared for them.

    Args:
        cluster: The scenario's.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._world_size = cluster.hosts * cluster.ranks_per_host
        self._background: tuple[tuple[int, int, int], ...] = ()
        self._fabrics: dict[Any, _native.Fabric] = {}
        self._kept: OrderedDict[Any, tuple[_native.Replay, NDArray[np.int64]]] = OrderedDict()
        self._kept_bytes = 0
        self._shares: tuple[tuple[int, float], ...] = ()
        self.tiers: dict[str, str] = {}
        self._told: list[dict[str, Any]] = []  # of what is no longer kept

    @property
    def world_size(self) -> int:
        """Ranks that take part."""
        return self._world_size

    @property
    def hosts(self) -> int:
        """Hosts that take part."""
        return -(-self._world_size // self._cluster.ranks_per_host)

    @property
    def cluster(self) -> Cluster:
        """The scenario's."""
        return self._cluster

    def host_bytes_per_s(self, cap_gbps: float | None = None) -> float:
        """What one host's card delivers each way, bytes/s.

        Args:
            cap_gbps: What the system's data path can do at most; None: the card's rate.

        Returns:
            The smaller of both, > 0.
        """
        gbps = self._cluster.nic_gbps * self._cluster.efficiency(self.hosts)
        slowest = min((share for _, share in self._shares), default=1.0)
        rate = (gbps if cap_gbps is None else min(gbps, cap_gbps)) * _BYTES_PER_GBIT
        return rate * min(1.0, slowest)

    @property
    def latency_s(self) -> float:
        """One way, between hosts."""
        return self._cluster.latency_us * 1e-6

    @property
    def state(self) -> tuple[Any, ...]:
        """All that a later call of `run` depends on beside its arguments; hashable."""
        return (self._world_size, self._background, self._shares)

    def explain(self) -> list[dict[str, Any]]:
        """How sharing was computed, and why, one entry a prepared collective.

        Returns:
            For each: ``collective`` (spec), ``ranks``, ``buffer_bytes``, ``disturbed`` (others'
            traffic or changed cards), ``tier``, ``reason``, ``error_bound`` (a fraction against
            exact sharing; None: not known), ``messages``, and how often it was answered by the
            ``closed_form``, ``replayed`` by the tier, or ``recalled``.
        """
        return [*self._told, *(_told(key, replay) for key, (replay, _) in self._kept.items())]

    def resize(self, world_size: int) -> None:
        """Uses the first hosts that hold so many ranks.

        Args:
            world_size: Ranks, >= 1.
        """
        self._world_size = world_size

    def disturb(self, flows: tuple[tuple[int, str, int], ...]) -> None:
        """Sets the traffic of others, until the next call.

        Args:
            flows: (host, ``in`` or ``out`` or ``both``, connections) each.
        """
        background = []
        for host, direction, count in flows:
            if direction in ("in", "both"):
                background.append((_OUTSIDE, host, count))
            if direction in ("out", "both"):
                background.append((host, _OUTSIDE, count))
        self._background = tuple(background)

    def throttle(self, shares: tuple[tuple[int, float], ...]) -> None:
        """Sets what is left of some hosts' rates, until the next call.

        Args:
            shares: (host, share of both directions' rate, > 0) each; of several for one host
                the product counts.
        """
        self._shares = shares

    def run(
        self,
        spec: str,
        buffer_bytes: int,
        ready_s: Times,
        *,
        segment_bytes: int = 0,
        unit_bytes: int = 4,
        rate_cap_gbps: float | None = None,
        tier: str = "auto",
    ) -> Collective:
        """One all-reduce.

        Args:
            spec: Of the schedule.
            buffer_bytes: Of each rank's buffer, >= 0.
            ready_s: [world_size] when each rank enters, seconds.
            segment_bytes: Pipelining unit; 0: whole chunks.
            unit_bytes: Chunks are cut at multiples of this.
            rate_cap_gbps: What the system's data path can do at most; None: the card's rate.
            tier: One of `kfsim.systems.stream.TIERS`.

        Returns:
            Finish times and bytes.

        Raises:
            UsageError: the schedule does not exist for this world, or the tier cannot model it.
        """
        where = (self._world_size, self._background, rate_cap_gbps, self._shares)
        key = (spec, buffer_bytes, where, segment_bytes, unit_bytes, tier)
        if key not in self._kept:
            self._prepare(key)
        self._kept.move_to_end(key)
        replay, sent = self._kept[key]
        finish_s = replay.run(np.ascontiguousarray(ready_s, np.float64))
        if self._cluster.burst_kib > 0 and buffer_bytes > 0:
            saved_s = self._cluster.burst_kib * 1024 / self.host_bytes_per_s(rate_cap_gbps)
            bare = self.run(spec, 0, ready_s, unit_bytes=unit_bytes, tier=tier)
            finish_s = np.maximum(bare.finish_s, finish_s - saved_s)
        return Collective(finish_s, sent)

    def _prepare(self, key: Any) -> None:
        spec, buffer_bytes, where, segment_bytes, unit_bytes, tier = key
        world_size = where[0]
        replay = _native.Replay(
            schedule.build(spec, world_size),
            self._fabric(*where),
            buffer_bytes,
            segment_bytes=segment_bytes,
            unit_bytes=unit_bytes,
            tier=tier,
        )
        self.tiers[f"{spec} over {world_size}"] = f"{replay.tier}: {replay.tier_reason}"
        self._kept[key] = (replay, np.array(replay.bytes_sent, dtype=np.int64))
        self._kept_bytes += replay.memory_bytes
        while self._kept_bytes > _KEPT_BYTES and len(self._kept) > 1:
            old_key, (oldest, _) = self._kept.popitem(last=False)
            self._told.append(_told(old_key, oldest))
            self._kept_bytes -= oldest.memory_bytes

    def _fabric(
        self,
        world_size: int,
        background: tuple[tuple[int, int, int], ...],
        cap: float | None,
        shares: tuple[tuple[int, float], ...],
    ) -> _native.Fabric:
        key = (world_size, background, cap, shares)
        if key not in self._fabrics:
            self._fabrics[key] = self._make_fabric(world_size, background, cap, shares)
        return self._fabrics[key]

    def _make_fabric(
        self,
        world_size: int,
        background: tuple[tuple[int, int, int], ...],
        cap: float | None,
        shares: tuple[tuple[int, float], ...],
    ) -> _native.Fabric:
        c = self._cluster
        hosts = -(-world_size // c.ranks_per_host)
        share = c.efficiency(hosts)
        gbps = c.nic_gbps * share
        rate = (gbps if cap is None else min(gbps, cap)) * _BYTES_PER_GBIT
        racks = c.hosts_per_rack > 0
        ingress = gbps if c.ingress_gbps is None else c.ingress_gbps * share
        into = (ingress if cap is None else min(ingress, cap)) * _BYTES_PER_GBIT
        left = np.ones(hosts)
        for host, part in shares:
            if host < hosts:
                left[host] *= part
        infinity = float("inf")
        return _native.make_fabric(
            host_of_rank=[rank // c.ranks_per_host for rank in range(world_size)],
            egress_bytes_per_s=(rate * left).tolist(),
            ingress_bytes_per_s=(into * left).tolist(),
            latency_s=c.latency_us * 1e-6,
            message_s=c.message_us * 1e-6,
            reduce_bytes_per_s=_gbytes(c.reduce_gbytes_per_s),
            local_bytes_per_s=_gbytes(c.local_gbytes_per_s),
            local_latency_s=c.local_latency_us * 1e-6,
            rack_of_host=[host // c.hosts_per_rack for host in range(hosts)] if racks else [],
            rack_bytes_per_s=(
                gbps * _BYTES_PER_GBIT * c.hosts_per_rack / c.over_subscription
                if racks
                else infinity
            ),
            connection_bytes_per_s=(
                infinity if c.connection_gbps is None else c.connection_gbps * _BYTES_PER_GBIT
            ),
            incast_loss=c.incast_loss,
            background=[
                _native.BackgroundFlows(*flows)
                for flows in background
                if max(flows[:2]) < hosts
            ],
        )


def _told(key: Any, replay: _native.Replay) -> dict[str, Any]:
    spec, buffer_bytes, (ranks, background, _, shares), *_ = key
    closed_form, replayed, recalled = replay.runs
    reason = replay.tier_reason
    if replay.closed_form_s is not None:
        reason += "; ranks that start together keep in step: closed form"
    return {
        "collective": spec,
        "ranks": ranks,
        "buffer_bytes": buffer_bytes,
        "disturbed": bool(background or shares),
        "tier": replay.tier,
        "reason": reason,
        "error_bound": replay.tier_error if replay.tier_error >= 0 else None,
        "messages": replay.messages,
        "closed_form": closed_form,
        "replayed": replayed,
        "recalled": recalled,
    }


def _gbytes(value: float | None) -> float:
    return float("inf") if value is None else value * 1e9
