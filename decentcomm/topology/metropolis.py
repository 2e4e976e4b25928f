"""Metropolis-Hastings weights: make any undirected graph doubly stochastic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from decentcomm.topology.edge import Edge, between


def metropolis_edges(pairs: Iterable[tuple[int, int]]) -> list[Edge]:
    """One edge per pair, with weight 1/(1 + the larger degree of its ends).

    Double pairs and loops count once or not at all.
    """
    simple = sorted({(min(p), max(p)) for p in pairs if p[0] != p[1]})
    degree = Counter(r for pair in simple for r in pair)
    return [between((i, j), 1 / (1 + max(degree[i], degree[j]))) for i, j in simple]
