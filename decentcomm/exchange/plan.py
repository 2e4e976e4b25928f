"""From a topology's matrix to what one rank reads at one step. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from decentcomm.topology import Topology

SMALLEST_MEAN = 4
"""From this size on a group's mean is made once and shared. A member of a group of S that reads directly reads 4S bytes
an element; through the mean it reads 4, and writes and reads its S-th of the making: 4 + 4(S + 2)/S. Equal at S = 3."""


@dataclass(frozen=True)
class RankPlan:
    """What a rank reads and who reads it.

    Attributes:
        own: Weight of its own parameters, unless they are in a mean.
        direct: Ranks read directly, and their weights.
        means: Groups of ranks whose mean is read, and the mean's weight.
        readers: Ranks that read this one, directly or in a mean.
    """

    own: float
    direct: tuple[tuple[int, float], ...]
    means: tuple[tuple[tuple[int, ...], float], ...]
    readers: tuple[int, ...]


def uses_means(topology: Topology, smallest_mean: int = SMALLEST_MEAN) -> bool:
    """True if a mean is read at any step."""
    for t in range(topology.period):
        columns = Counter(column.tobytes() for column in topology.matrix(t).round(12).T)
        if max(columns.values()) >= smallest_mean:
            return True
    return False


def rank_plan(topology: Topology, rank: int, step: int, smallest_mean: int = SMALLEST_MEAN) -> RankPlan:
    """Plan `rank`'s reading at `step`.

    Ranks whose columns are equal are weighed alike by everyone, so their mean can be made once for all readers:
    this finds the groups of complete and aer, and the nodes of hierarchical, in the matrix itself.
    """
    w = topology.matrix(step)
    columns = w.round(12)
    classes: dict[bytes, list[int]] = {}
    for j in np.flatnonzero(w[rank]):
        classes.setdefault(columns[:, j].tobytes(), []).append(int(j))
    groups = [members for members in classes.values() if len(members) >= smallest_mean]
    grouped = {j for members in groups for j in members}
    direct = [(int(j), float(w[rank, j])) for j in np.flatnonzero(w[rank]) if j != rank and j not in grouped]
    return RankPlan(
        own=0.0 if rank in grouped else float(w[rank, rank]),
        direct=tuple(direct),
        means=tuple((tuple(members), float(w[rank, members].sum())) for members in groups),
        readers=tuple(int(i) for i in np.flatnonzero(w[:, rank]) if i != rank),
    )
