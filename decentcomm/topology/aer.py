"""aer, the alternating exponential ring: node-aware, and only half of the nodes use the slow network at a time."""

from __future__ import annotations

from decentcomm.topology.base import Topology, is_power_of_two, require_size
from decentcomm.topology.edge import Edge, mean_of


class AlternatingExponentialRing(Topology, name="aer"):
    """Averages inside nodes and over pairs of nodes, in turn; in round r node a pairs with node a XOR 2^r.

    A round is two steps. Of the pairs, counted over the whole period, the even ones first average inside each node
    and then over both nodes; the odd ones do it the other way round. With equal nodes one period gives the exact
    average. The number of nodes is a power of two; they may hold different numbers of ranks. One node: its average.
    """

    def check(self) -> None:
        """The nodes must pair up in every round."""
        require_size(self.name, len(self.layout), "a power of two as the number of nodes", is_power_of_two)
        self.period = max(1, 2 * (len(self.layout).bit_length() - 1))

    def step_edges(self, t: int) -> list[Edge]:
        """For each pair of nodes one edge over both, or one inside each."""
        n = len(self.layout)
        if n == 1:
            return mean_of(self.layout[0])
        r, second = divmod(t, 2)
        pairs = [(a, a ^ (1 << r)) for a in range(n) if not a & (1 << r)]
        edges: list[Edge] = []
        for number, (a, b) in enumerate(pairs, start=r * len(pairs)):
            across = number % 2 != second
            groups = [self.layout[a] + self.layout[b]] if across else [self.layout[a], self.layout[b]]
            edges += [edge for ranks in groups for edge in mean_of(ranks)]
        return edges
