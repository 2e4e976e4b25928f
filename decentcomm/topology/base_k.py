"""base-k: sparse, and the exact average in finitely many steps for any number of ranks.

Takezawa, Sato, Bao, Niwa, Yamada: Beyond Exponential Graph: Communication-Efficient Topologies for Decentralized
Learning via Finite-time Convergence, NeurIPS 2023. Their k is the degree; here k is the base, so degree = k - 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from decentcomm.errors import TopologyError
from decentcomm.topology.base import Topology
from decentcomm.topology.edge import Edge, between, mean_of
from decentcomm.topology.layout import Nodes, whole_number

Steps = list[list[Edge]]


class BaseK(Topology, name="base-k"):
    """At most k-1 neighbours a step; exact average after one period, for any N.

    Args:
        size: Number of ranks.
        nodes: On which nodes they live.
        k: The base, at least 2.
    """

    def __init__(self, size: int, nodes: Nodes = 1, k: int = 2) -> None:
        self.k = k
        super().__init__(size, nodes)

    def check(self) -> None:
        """Build the steps, since their number is the period."""
        if whole_number("k", self.k) < 2:
            raise TopologyError(f"base-k: k={self.k} must be at least 2; nearest: 2")
        self._steps = base_graph(range(self.size), self.k) or [[]]
        self.period = len(self._steps)

    def step_edges(self, t: int) -> list[Edge]:
        """As built."""
        return self._steps[t]


def base_graph(ranks: Sequence[int], k: int) -> Steps:
    """The shorter of the simple graph, and the simple graph over the size's rough part followed by its smooth part."""
    smooth, rough = _smooth_part(len(ranks), k)
    simple = simple_base_graph(ranks, k)
    parts = [ranks[i * rough : (i + 1) * rough] for i in range(smooth)]
    columns = [[part[i] for part in parts] for i in range(rough)]
    product = _together([simple_base_graph(p, k) for p in parts]) + _together([smooth_graph(c, k) for c in columns])
    return product if len(product) < len(simple) else simple


def simple_base_graph(ranks: Sequence[int], k: int) -> Steps:
    """Average inside parts of sizes a*k^p, exchange so that every part has the total's mean, average again."""
    if _smooth_part(len(ranks), k)[1] == 1:
        return smooth_graph(ranks, k)
    parts = _parts(ranks, k)
    steps = _together([smooth_graph([r for block in blocks for r in block], k) for blocks in parts])
    tails: list[Steps] = []
    for j, blocks in enumerate(parts[:-1]):
        # Every rank of the later parts meets one rank of each block of part j; then each block has the total's mean.
        later = [r for part in parts[j + 1 :] for block in part for r in block]
        own = len(blocks) * len(blocks[0])
        weight = own / (len(blocks) * (own + len(later)))
        exchange = [between((v, block[i]), weight) for i, v in enumerate(later) for block in blocks]
        inside = _together([smooth_graph(block, k) for block in blocks])
        tails.append([[]] * j + [exchange, *inside])
    return steps + _together(tails)


def smooth_graph(ranks: Sequence[int], k: int) -> Steps:
    """Average along each digit of a mixed-radix numbering: for sizes whose prime factors are at most k."""
    steps: Steps = []
    stride = 1
    for radix in _radices(len(ranks), k):
        groups: dict[int, list[int]] = {}
        for i, rank in enumerate(ranks):
            groups.setdefault(i - i // stride % radix * stride, []).append(rank)
        steps.append([edge for group in groups.values() for edge in mean_of(group)])
        stride *= radix
    return steps


def _parts(ranks: Sequence[int], k: int) -> list[list[list[int]]]:
    """Split by the digits of the size in base k: a part for each digit a > 0, of a blocks with k^p ranks each."""
    parts = []
    rest = list(ranks)
    power = 1
    while power * k <= len(ranks):
        power *= k
    while power:
        digit = len(rest) // power
        if digit:
            parts.append([rest[i * power : (i + 1) * power] for i in range(digit)])
            rest = rest[digit * power :]
        power //= k
    return parts


def _together(graphs: list[Steps]) -> Steps:
    """Graphs over disjoint ranks, run at the same time."""
    return [[edge for edges in step for edge in edges] for step in zip_longest(*graphs, fillvalue=[])]


def _smooth_part(n: int, k: int) -> tuple[int, int]:
    """N = smooth * rough: the prime factors up to k, and the others."""
    smooth = 1
    for p in range(2, k + 1):
        while n % p == 0:
            n //= p
            smooth *= p
    return smooth, n


def _radices(n: int, k: int) -> list[int]:
    """The shortest list of factors of n, each at most k."""
    best: dict[int, list[int]] = {1: []}
    for m in (d for d in range(2, n + 1) if n % d == 0):
        options = [[f, *best[m // f]] for f in range(min(k, m), 1, -1) if m % f == 0 and m // f in best]
        if options:
            best[m] = min(options, key=len)
    return best[n]
