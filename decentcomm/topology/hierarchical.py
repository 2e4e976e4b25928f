"""hierarchical: the nodes' averages mix over any topology of nodes."""

from __future__ import annotations

from decentcomm.errors import TopologyError
from decentcomm.topology.base import Topology
from decentcomm.topology.edge import Edge, between
from decentcomm.topology.layout import Nodes


class Hierarchical(Topology, name="hierarchical"):
    """Complete inside each node, any topology over the nodes; each step mixes on both levels.

    With F = l*W + diag(L - l), where W is the outer matrix, L the nodes' sizes and l the smallest, a rank of node a
    receives F[a,b] / (L[a]*L[b]) of every rank of node b. F's rows and columns add up to L, so this is doubly
    stochastic for unequal nodes and directed outer graphs, too; for equal nodes it is W[a,b] / l, the outer
    topology of the nodes' averages.

    Args:
        size: Number of ranks.
        nodes: On which nodes they live.
        inner: Only "complete".
        outer: A topology of nodes: a name, or an instance whose size is the number of nodes.
    """

    def __init__(
        self,
        size: int,
        nodes: Nodes = 1,
        inner: str = "complete",
        outer: str | Topology = "one-peer-exponential",
    ) -> None:
        self.inner, self._outer = inner, outer
        super().__init__(size, nodes)

    def check(self) -> None:
        """The outer topology must fit the number of nodes."""
        from decentcomm.topology.registry import make

        if self.inner != "complete":
            raise TopologyError(f"hierarchical: inner={self.inner!r} is not offered; nearest: 'complete'")
        n, outer = len(self.layout), self._outer
        self.outer = outer if isinstance(outer, Topology) else make(outer, size=n, nodes=n)
        if self.outer.size != n:
            raise TopologyError(
                f"hierarchical: outer has size {self.outer.size}, but there are {n} nodes; nearest: {n}"
            )
        self.period = self.outer.period

    def step_edges(self, t: int) -> list[Edge]:
        """A group in each node and a block for each pair of nodes that the outer topology joins."""
        w = self.outer.matrix(t)
        smallest = min(len(ranks) for ranks in self.layout)
        edges = []
        for a, targets in enumerate(self.layout):
            for b, sources in enumerate(self.layout):
                flow = smallest * w[a, b] + (len(targets) - smallest) * (a == b)
                weight = float(flow) / (len(targets) * len(sources))
                if a == b and len(targets) > 1:
                    edges.append(between(targets, weight))
                elif a != b and weight > 0:
                    edges.append(Edge(sources, targets, weight))
        return edges
