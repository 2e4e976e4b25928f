"""Which ranks live on which node: a tuple of tuples of ranks, made from whatever the user gave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from decentcomm.errors import TopologyError

Layout: TypeAlias = tuple[tuple[int, ...], ...]
Nodes: TypeAlias = int | Sequence[int] | Sequence[Sequence[int]]


def make_layout(size: int, nodes: Nodes) -> Layout:
    """Place `size` ranks on nodes.

    Args:
        size: Number of ranks.
        nodes: A number of nodes (ranks are dealt in order, as evenly as possible), the number of ranks of each node
            (`[3, 1]`), or the ranks of each node (`[[0, 2], [1, 3]]`).
    """
    if isinstance(nodes, bool) or (not isinstance(nodes, int) and not isinstance(nodes, Sequence)):
        raise TopologyError(f"nodes must be a number, a list of sizes or a list of rank lists, not {nodes!r}")
    if isinstance(nodes, int):
        if not 1 <= nodes <= size:
            raise TopologyError(
                f"nodes={nodes}: {size} ranks fit on 1 to {size} nodes; nearest: {min(max(nodes, 1), size)}"
            )
        each, more = divmod(size, nodes)
        nodes = [each + (i < more) for i in range(nodes)]
    if all(isinstance(n, int) for n in nodes):
        return _contiguous(size, [int(n) for n in nodes])  # type: ignore[arg-type]
    layout = tuple(tuple(sorted(int(r) for r in ranks)) for ranks in nodes)  # type: ignore[union-attr]
    if sorted(r for ranks in layout for r in ranks) != list(range(size)) or not all(layout):
        raise TopologyError(
            f"nodes={list(nodes)!r} must hold each rank from 0 to {size - 1} exactly once, no node empty"
        )
    return layout


def _contiguous(size: int, sizes: list[int]) -> Layout:
    if min(sizes, default=0) < 1 or sum(sizes) != size:
        raise TopologyError(
            f"nodes={sizes}: sizes must be at least 1 and add up to size={size}, they add up to {sum(sizes)}"
        )
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(tuple(range(a, a + n)) for a, n in zip(starts, sizes, strict=True))
