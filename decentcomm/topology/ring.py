"""The ring and its relatives: ring, alternating-ring, ring-lattice."""

from __future__ import annotations

from decentcomm.errors import TopologyError
from decentcomm.topology.base import Topology, require_size
from decentcomm.topology.edge import Edge, between, mean_of
from decentcomm.topology.layout import Nodes, whole_number


class Ring(Topology, name="ring"):
    """Both neighbours on a ring, 1/3 each; two ranks average."""

    def step_edges(self, t: int) -> list[Edge]:
        """N pairs, or the average of two."""
        if self.size <= 2:
            return mean_of(range(self.size))
        return [between((i, (i + 1) % self.size), 1 / 3) for i in range(self.size)]


class AlternatingRing(Topology, name="alternating-ring"):
    """One neighbour at a time: the right one on even steps, the left one on odd steps for even ranks; weight 1/2.

    N even.
    """

    period = 2

    def check(self) -> None:
        """Odd rings have no perfect matching."""
        require_size(self.name, self.size, "an even number of ranks (or 1)", lambda n: n == 1 or n % 2 == 0)

    def step_edges(self, t: int) -> list[Edge]:
        """N/2 pairs, shifted by one on odd steps."""
        if self.size == 1:
            return []
        return [between((i, (i + 1) % self.size), 1 / 2) for i in range(t, self.size, 2)]


class RingLattice(Topology, name="ring-lattice"):
    """Neighbours i +-1 .. +-k/2 on a ring, uniform 1/(k+1).

    Args:
        size: Number of ranks.
        nodes: On which nodes they live.
        k: Number of neighbours: even, at most size - 1. Default: 4, or the most that the size allows. Two ranks
            average.
    """

    def __init__(self, size: int, nodes: Nodes = 1, k: int | None = None) -> None:
        self.k = k
        super().__init__(size, nodes)

    def check(self) -> None:
        """K must be even and leave room."""
        most = max((self.size - 1) // 2 * 2, 2)
        if self.k is None:
            self.k = min(4, most)
        elif whole_number("k", self.k) % 2 or not 2 <= self.k <= most:
            even = self.k - self.k % 2
            nearest = {min(max(n, 2), most) for n in (even, even + 2)}
            raise TopologyError(
                f"ring-lattice: k={self.k} must be even and from 2 to {most} for {self.size} ranks; "
                f"nearest: {' or '.join(map(str, sorted(nearest)))}"
            )

    def step_edges(self, t: int) -> list[Edge]:
        """N*k/2 pairs."""
        if self.size <= 2 or self.k is None:
            return mean_of(range(self.size))
        offsets = range(1, self.k // 2 + 1)
        return [between((i, (i + j) % self.size), 1 / (self.k + 1)) for i in range(self.size) for j in offsets]
