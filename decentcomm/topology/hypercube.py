"""Topologies that flip bits of the rank: hypercube (one at a time) and butterfly (several at a time)."""

from __future__ import annotations

from math import gcd, sqrt

from decentcomm.errors import TopologyError
from decentcomm.topology.base import Topology, is_power_of_two, require_size
from decentcomm.topology.edge import Edge, mean_of
from decentcomm.topology.layout import Nodes, whole_number


def groups_of_bits(size: int, bits: list[int]) -> list[Edge]:
    """Average over every set of ranks that differ in `bits` only."""
    mask = sum(1 << b for b in bits)
    members: dict[int, list[int]] = {}
    for rank in range(size):
        members.setdefault(rank & ~mask, []).append(rank)
    return [edge for ranks in members.values() for edge in mean_of(ranks)]


class Hypercube(Topology, name="hypercube"):
    """One peer a step, i XOR 2^(t mod log2 N), weight 1/2: exact average after log2 N steps. N = 2^k."""

    def check(self) -> None:
        """Flipping a bit must lead to a rank."""
        require_size(self.name, self.size, "a power of two", is_power_of_two)
        self.period = max(1, self.size.bit_length() - 1)

    def step_edges(self, t: int) -> list[Edge]:
        """N/2 pairs across dimension t."""
        return groups_of_bits(self.size, [t] if self.size > 1 else [])


class Butterfly(Topology, name="butterfly"):
    """Average in groups of S ranks that differ in log2 S bits, other bits at each step (WAGMA's groups).

    Exact average after ceil(log_S N) steps. Where log2 S does not divide log2 N the bits wrap and the period is longer.

    Args:
        size: Number of ranks, a power of two.
        nodes: On which nodes they live.
        S: Group size, a power of two, at most size. Default: the power of two nearest to the square root of size.
    """

    def __init__(self, size: int, nodes: Nodes = 1, S: int | None = None) -> None:
        self.S = S
        super().__init__(size, nodes)

    def check(self) -> None:
        """Size and S must be powers of two."""
        require_size(self.name, self.size, "a power of two", is_power_of_two)
        powers = [1 << b for b in range(1, self.size.bit_length())] or [1]
        if self.S is None:
            self.S = min(powers, key=lambda p: abs(p - sqrt(self.size)))
        self.S = whole_number("S", self.S)
        if self.S not in powers:
            nearest = min(powers, key=lambda p: abs(p - (self.S or 0)))
            raise TopologyError(
                f"butterfly: S={self.S} must be a power of two from {powers[0]} to {self.size}; nearest: {nearest}"
            )
        self.total_bits, self.group_bits = self.size.bit_length() - 1, self.S.bit_length() - 1
        self.period = self.total_bits // gcd(self.total_bits, self.group_bits) if self.size > 1 else 1

    def step_edges(self, t: int) -> list[Edge]:
        """N/S groups."""
        start = t * self.group_bits
        return groups_of_bits(self.size, [(start + r) % self.total_bits for r in range(self.group_bits)])
