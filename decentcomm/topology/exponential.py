"""Directed graphs whose neighbours are powers of two away: exponential and one-peer-exponential."""

from __future__ import annotations

from decentcomm.topology.base import Topology
from decentcomm.topology.edge import Edge, towards


class Exponential(Topology, name="exponential"):
    """Receive from i - 2^k for every 2^k < N, uniform 1/(d+1). Directed, any N."""

    def step_edges(self, t: int) -> list[Edge]:
        """N*d directed edges."""
        offsets = [1 << k for k in range((self.size - 1).bit_length())]
        weight = 1 / (len(offsets) + 1)
        return [towards(i, (i - d) % self.size, weight) for i in range(self.size) for d in offsets]


class OnePeerExponential(Topology, name="one-peer-exponential"):
    """Receive from i - 2^(t mod ceil(log2 N)), weight 1/2.

    Directed, any N; exact average after log2 N steps if N = 2^k.
    """

    def check(self) -> None:
        """Any size; the period follows from it."""
        self.period = max(1, (self.size - 1).bit_length())

    def step_edges(self, t: int) -> list[Edge]:
        """One directed edge into each rank."""
        if self.size == 1:
            return []
        return [towards(i, (i - (1 << t)) % self.size, 1 / 2) for i in range(self.size)]
