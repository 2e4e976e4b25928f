"""custom: a matrix, a list of matrices or a networkx graph that the user brings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from decentcomm.errors import TopologyError
from decentcomm.topology.analysis import ROUNDING, why_not_doubly_stochastic
from decentcomm.topology.base import Topology
from decentcomm.topology.edge import Edge, between, towards
from decentcomm.topology.layout import Nodes
from decentcomm.topology.metropolis import metropolis_edges

if TYPE_CHECKING:
    import networkx

TOLERANCE = 1e-9
"""How far a row or column may be from 1: users type 0.333333333, and the engine computes in fp32 anyway."""


class Custom(Topology, name="custom"):
    """Any doubly stochastic matrix or list of them, or an undirected networkx graph with Metropolis-Hastings weights.

    Args:
        size: Number of ranks; default: as many as `weights` has.
        nodes: On which nodes they live.
        weights: N x N matrix, a list of them (one for each step of the period), or a graph over the ranks 0..N-1.
    """

    def __init__(
        self,
        size: int | None = None,
        nodes: Nodes = 1,
        weights: ArrayLike | Sequence[ArrayLike] | networkx.Graph[Any] = (),
    ) -> None:
        n, self._steps = _from_graph(weights) if hasattr(weights, "adjacency") else _from_matrices(weights)
        self.period = len(self._steps)
        if size is not None and size != n:
            raise TopologyError(f"custom: weights are for {n} ranks, but size={size}; nearest: {n}")
        super().__init__(n, nodes)

    def check(self) -> None:
        """It must mix, else replicas never agree."""
        if self.size > 1 and self.spectral_gap() < TOLERANCE:
            raise TopologyError(
                "custom: one period does not bring the ranks closer together (spectral gap 0): the graph falls "
                "apart, or ranks keep nothing of their own; join the parts, add self-weights, or list more steps"
            )

    def step_edges(self, t: int) -> list[Edge]:
        """As given."""
        return self._steps[t]


def _from_graph(graph: networkx.Graph[Any]) -> tuple[int, list[list[Edge]]]:
    if graph.is_directed():
        raise TopologyError(
            "custom: Metropolis-Hastings weights need an undirected graph; pass a matrix for a directed one"
        )
    if sorted(graph.nodes, key=str) != sorted(range(len(graph)), key=str) or not len(graph):
        raise TopologyError(
            f"custom: the graph's nodes must be the ranks 0 to {len(graph) - 1}, "
            f"not {sorted(graph.nodes, key=str)[:8]}; "
            "networkx.convert_node_labels_to_integers(graph) renames them"
        )
    return len(graph), [metropolis_edges(graph.edges())]


def _from_matrices(weights: Any) -> tuple[int, list[list[Edge]]]:
    try:
        w = np.asarray(weights)
        if w.dtype.kind not in "fiu":
            raise TypeError(f"dtype {w.dtype}")
        w, given = w.astype(np.float64), w.shape
    except (TypeError, ValueError) as e:
        raise TopologyError(f"custom: weights must be square matrices of numbers, all of one size ({e})") from e
    if w.ndim == 2:
        w = w[None]
    if w.ndim != 3 or w.shape[1] != w.shape[2] or 0 in w.shape:
        raise TopologyError(f"custom: weights must be one N x N matrix or a list of them, not of shape {given}")
    return w.shape[1], [_edges_of(matrix, f"weights[{t}]") for t, matrix in enumerate(w)]


def _edges_of(w: NDArray[np.float64], where: str) -> list[Edge]:
    wrong = why_not_doubly_stochastic(w, TOLERANCE)
    if wrong:
        raise TopologyError(f"custom: {where}: {wrong}")
    w = _exact(w)
    n = len(w)
    if n > 1 and np.ptp(w) < TOLERANCE:
        return [between(range(n), 1.0 / n)]
    edges = []
    for i, j in zip(*np.nonzero(w), strict=True):
        if i != j and abs(w[i, j] - w[j, i]) > ROUNDING:
            edges.append(towards(int(i), int(j), float(w[i, j])))
        elif i < j:
            edges.append(between((int(i), int(j)), float(w[i, j] + w[j, i]) / 2))
    return edges


def _exact(w: NDArray[np.float64]) -> NDArray[np.float64]:
    """The doubly stochastic matrix next to one that is so up to TOLERANCE."""
    w = np.maximum(w, 0.0)
    for _ in range(100):
        w = w / w.sum(axis=1, keepdims=True)
        w = w / w.sum(axis=0, keepdims=True)
    return w
