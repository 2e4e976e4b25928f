"""complete: everyone averages with everyone at every step."""

from __future__ import annotations

from decentcomm.topology.base import Topology
from decentcomm.topology.edge import Edge, mean_of


class Complete(Topology, name="complete"):
    """One edge with all ranks: the exact average at every step."""

    def step_edges(self, t: int) -> list[Edge]:
        """One group."""
        return mean_of(range(self.size))
