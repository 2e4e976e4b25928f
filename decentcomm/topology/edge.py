"""The one primitive of every topology: an edge, along which weight flows from source ranks to target ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Edge:
    """Every target receives `weight` of every source's parameters, itself excepted.

    What a rank does not receive it keeps, so a list of edges is a whole mixing matrix. The usual kinds:

    - a pair: sources and targets are the same two ranks;
    - a group: sources and targets are the same S ranks; with weight 1/S it is their average;
    - a directed edge: one source, one target;
    - a block: all ranks of one node to all ranks of another.
    """

    sources: tuple[int, ...]
    targets: tuple[int, ...]
    weight: float

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks that the edge joins, in ascending order."""
        return tuple(sorted({*self.sources, *self.targets}))

    @property
    def directed(self) -> bool:
        """True if weight flows one way only."""
        return self.sources != self.targets


def between(ranks: Iterable[int], weight: float) -> Edge:
    """An undirected edge: a pair, or a group whose members all receive `weight` of each other."""
    members = tuple(sorted(ranks))
    return Edge(members, members, weight)


def mean_of(ranks: Sequence[int]) -> list[Edge]:
    """The average over `ranks`: one edge, or none for a single rank."""
    return [between(ranks, 1.0 / len(ranks))] if len(ranks) > 1 else []


def towards(target: int, source: int, weight: float) -> Edge:
    """A directed edge: `target` receives `weight` of `source`."""
    return Edge((source,), (target,), weight)
