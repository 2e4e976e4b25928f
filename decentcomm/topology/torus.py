"""torus: a two-dimensional grid that wraps."""

from __future__ import annotations

from math import isqrt

from decentcomm.errors import TopologyError
from decentcomm.topology.base import Topology
from decentcomm.topology.edge import Edge
from decentcomm.topology.layout import Nodes, whole_number
from decentcomm.topology.metropolis import metropolis_edges


class Torus(Topology, name="torus"):
    """Up, down, left and right on a grid that wraps, 1/5 each; Metropolis weights where a side is shorter than 3.

    Args:
        size: Number of ranks.
        nodes: On which nodes they live.
        rows: Rows of the grid; must divide size. Default: as square as possible (a prime size is one row: a ring).
    """

    def __init__(self, size: int, nodes: Nodes = 1, rows: int | None = None) -> None:
        self.rows = rows
        super().__init__(size, nodes)

    def check(self) -> None:
        """The rows must divide the size."""
        divisors = [d for d in range(1, self.size + 1) if self.size % d == 0]
        if self.rows is None:
            self.rows = max(d for d in divisors if d <= isqrt(self.size))
        elif whole_number("rows", self.rows) not in divisors:
            nearest = min(divisors, key=lambda d: abs(d - (self.rows or 0)))
            raise TopologyError(f"torus: rows={self.rows} does not divide size={self.size}; nearest: {nearest}")

    def step_edges(self, t: int) -> list[Edge]:
        """Each rank with its right and its lower neighbour."""
        rows = self.rows or 1
        cols = self.size // rows
        grid = [(r, c) for r in range(rows) for c in range(cols)]
        right = [(r * cols + c, r * cols + (c + 1) % cols) for r, c in grid]
        below = [(r * cols + c, (r + 1) % rows * cols + c) for r, c in grid]
        return metropolis_edges(right + below)
