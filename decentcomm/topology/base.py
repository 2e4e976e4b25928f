"""`Topology`: the interface of every communication graph, and the registry that `make` looks names up in.

A subclass states its period and, for each step of it, its edges; everything else follows from those here. Pure
Python and
numpy: no process group, no torch, no native module. Instances are immutable and may be shared between threads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from decentcomm.errors import TopologyError
from decentcomm.topology import analysis
from decentcomm.topology.coloring import color_edges
from decentcomm.topology.edge import Edge
from decentcomm.topology.layout import Nodes, make_layout, whole_number

REGISTRY: dict[str, type[Topology]] = {}


class Topology(ABC):
    """A sequence of doubly stochastic mixing matrices W(t), repeated with a period.

    A new topology is one subclass, `class Mine(Topology, name="mine")`, that implements `step_edges` and, where they
    differ from the defaults, sets `self.period` and overrides `check`.

    Args:
        size: Number of ranks.
        nodes: On which nodes they live, see `make_layout`.
    """

    name: ClassVar[str]
    period: int = 1

    def __init_subclass__(cls, *, name: str | None = None) -> None:
        """Register the class under `name`."""
        super().__init_subclass__()
        if name is not None:
            if name in REGISTRY:
                raise TopologyError(f"there is a topology {name!r} already: {REGISTRY[name].__qualname__}")
            cls.name = name
            REGISTRY[name] = cls

    def __init__(self, size: int, nodes: Nodes = 1) -> None:
        self.size = whole_number("size", size)
        if self.size < 1:
            raise TopologyError(f"{self.name}: size={size} must be at least 1; nearest: 1")
        self.layout = make_layout(self.size, nodes)
        self.check()

    def check(self) -> None:  # noqa: B027 - not abstract: most topologies serve every size
        """Raise TopologyError for a size or layout that this topology cannot serve."""

    @abstractmethod
    def step_edges(self, t: int) -> Iterable[Edge]:
        """The edges of step t of the period, 0 <= t < period."""

    @cached_property
    def _edges(self) -> list[tuple[Edge, ...]]:
        return [tuple(self.step_edges(t)) for t in range(self.period)]

    @cached_property
    def _matrices(self) -> list[NDArray[np.float64]]:
        matrices = [analysis.mixing_matrix(self.size, edges) for edges in self._edges]
        for t, w in enumerate(matrices):
            wrong = analysis.why_not_doubly_stochastic(w)
            if wrong:
                raise TopologyError(f"{self.name}: the matrix of step {t} is not doubly stochastic: {wrong}")
        return matrices

    def edges(self, step: int = 0) -> tuple[Edge, ...]:
        """The edges that carry data at `step`."""
        return self._edges[self._step(step)]

    def matrix(self, step: int = 0) -> NDArray[np.float64]:
        """W(step), dense, size x size: row i holds the weights with which rank i mixes."""
        return self._matrices[self._step(step)].copy()

    def neighbors(self, rank: int, step: int = 0) -> dict[int, float]:
        """The ranks that `rank` mixes at `step` and their weights, its own included."""
        if not 0 <= whole_number("rank", rank) < self.size:
            raise TopologyError(f"rank={rank} is out of range: ranks of {self!r} go from 0 to {self.size - 1}")
        row = self._matrices[self._step(step)][rank]
        return {int(j): float(row[j]) for j in np.flatnonzero((row > 0) | (np.arange(self.size) == rank))}

    def edge_coloring(self, step: int = 0) -> list[list[Edge]]:
        """The edges of `step` split into matchings: no rank occurs twice in a colour.

        Edges that join the same ranks (both directions of a pair) share a colour. At most max degree + 1 colours,
        where a rank's degree is the number of other places its edges lead to. The result depends on the topology
        alone, so every rank computes the same one.
        """
        return color_edges(self.edges(step))

    def spectral_gap(self) -> float:
        """1 - s2^(1/period), s2 the largest singular value of (product over one period) - 1/N.

        1 is best, 0 never mixes.
        """
        return analysis.spectral_gap(self._matrices)

    def consensus_steps(self) -> int | None:
        """Steps from step 0 after which every rank holds the exact average, or None if one period does not give it."""
        return analysis.consensus_steps(self._matrices)

    def degree(self) -> int:
        """The most ranks that any rank receives from in one step (in a directed graph it sends to others besides)."""
        return max(int(((w > 0).sum(axis=1) - (np.diag(w) > 0)).max()) for w in self._matrices)

    def bytes_per_step(self, params: int, itemsize: int = 4) -> float:
        """Bytes that the busiest rank receives in a step, averaged over a period.

        A neighbour costs the model once, and so does a node's mean that comes to another node; a group of S ranks
        costs 2(S-1)/S of it, as a ring all-reduce does.

        Args:
            params: Number of parameters of the model.
            itemsize: Bytes of one parameter on the wire.
        """
        return params * itemsize * analysis.models_received(self.size, self._edges)

    def draw(self, path: str | PathLike[str]) -> Path:
        """Write a picture of all steps of the period, nodes as boxes; the format follows from the file's name.

        Returns:
            The file that was written: `path`, with ".png" if it had no ending.
        """
        from decentcomm.topology.draw import draw

        return draw(self, path)

    def _step(self, step: int) -> int:
        if whole_number("step", step) < 0:
            raise TopologyError(f"step={step} is negative; steps count from 0")
        return step % self.period

    def __repr__(self) -> str:
        nodes = f", nodes={[len(ranks) for ranks in self.layout]}" if len(self.layout) > 1 else ""
        return f"<{self.name} size={self.size}{nodes} period={self.period}>"


def require_size(name: str, size: int, needs: str, works: Callable[[int], bool]) -> None:
    """Raise an error that names the nearest working sizes unless `works(size)`.

    Args:
        name: The topology.
        size: What was asked for.
        needs: The rule in words, for the message.
        works: The rule.
    """
    if works(size):
        return
    below = next((n for n in range(size - 1, 0, -1) if works(n)), None)
    above = next(n for n in range(size + 1, 2 * size + 3) if works(n))
    nearest = f"{below} or {above}" if below is not None else f"{above}"
    raise TopologyError(f"{name} needs {needs}, not {size}; nearest: {nearest}")


def is_power_of_two(n: int) -> bool:
    """True for 1, 2, 4, 8, ..."""
    return n > 0 and n & (n - 1) == 0
