"""Hosts and network of a scenario, as plain values."""

import math
from dataclasses import dataclass

from kfsim.fields import field

__all__ = ["Cluster"]


@dataclass(frozen=True)
class Cluster:
    """Hosts and the network between them."""

    hosts: int = field(doc="virtual machines the job starts on", at_least=1, at_most=8192)
    nic_gbps: float = field(
        doc="rate of a host's network card, each way", unit="Gbit/s", above=0
    )
    ranks_per_host: int = field(1, doc="workers on one host", at_least=1, at_most=8192)
    tcp_efficiency: float = field(
        1.0, doc="share of nic_gbps that payload gets", above=0, at_most=1
    )
    ingress_gbps: float | None = field(
        None, doc="rate into a host where it differs", unit="Gbit/s", above=0
    )
    efficiency_loss_per_doubling: float = field(
        0.0,
        doc="share of tcp_efficiency lost each time the number of hosts doubles beyond two",
        at_least=0,
        below=1,
    )
    connection_gbps: float | None = field(
        None, doc="one connection's rate; absent: the card's", unit="Gbit/s", above=0
    )
    incast_loss: float = field(
        0.0,
        doc="rate into a host is divided by 1 + this for each further connection that comes in",
        at_least=0,
    )
    burst_kib: float = field(
        0.0,
        doc="token bucket: a card's first bytes in a collective pass at once",
        unit="KiB",
        at_least=0,
    )
    latency_us: float = field(50.0, doc="one way, between hosts", unit="us", at_least=0)
    message_us: float = field(
        0.0, doc="sender's processor time for one message", unit="us", at_least=0
    )
    reduce_gbytes_per_s: float | None = field(
        None, doc="rate of adding received bytes; absent: free", unit="GB/s", above=0
    )
    local_gbytes_per_s: float | None = field(
        None, doc="rate between ranks of one host; absent: free", unit="GB/s", above=0
    )
    local_latency_us: float = field(0.0, doc="inside a host", unit="us", at_least=0)
    hosts_per_rack: int = field(0, doc="hosts behind one uplink; 0: no racks", at_least=0)
    over_subscription: float = field(
        1.0, doc="sum of a rack's cards over its uplink", at_least=1
    )
    price_per_host_hour: float = field(0.0, doc="any currency", unit="1/h", at_least=0)

    def efficiency(self, hosts: int) -> float:
        """Share of a card's rate that payload gets.

        Args:
            hosts: That take part, >= 1.

        Returns:
            In (0, 1].
        """
        doublings = max(0.0, math.log2(hosts / 2)) if hosts > 2 else 0.0
        return float(
            self.tcp_efficiency * (1.0 - self.efficiency_loss_per_doubling) ** doublings
        )
