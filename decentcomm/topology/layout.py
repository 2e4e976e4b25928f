"""Which ranks live on which node: a tuple of tuples of ranks, made from whatever the user gave."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import index
from typing import SupportsIndex, TypeAlias

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
    if not isinstance(nodes, Sequence) or isinstance(nodes, str):
        n = whole_number("nodes", nodes)
        if not 1 <= n <= size:
            raise TopologyError(f"nodes={n}: {size} ranks fit on 1 to {size} nodes; nearest: {min(max(n, 1), size)}")
        each, more = divmod(size, n)
        return _contiguous(size, [each + (i < more) for i in range(n)])
    if not any(isinstance(node, Sequence) for node in nodes):
        return _contiguous(size, [whole_number("nodes", n) for n in nodes])
    layout = tuple(_ranks(node) for node in nodes)
    if sorted(r for ranks in layout for r in ranks) != list(range(size)) or not all(layout):
        raise TopologyError(
            f"nodes={list(nodes)!r} must hold each rank from 0 to {size - 1} exactly once, no node empty"
        )
    return layout


def whole_number(name: str, value: object) -> int:
    """`value` as an int, if it is one (numpy's too); `name` is for the message."""
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        return index(value)
    raise TopologyError(f"{name}={value!r} must be a whole number")


def _ranks(node: object) -> tuple[int, ...]:
    if not isinstance(node, Sequence):
        raise TopologyError(
            f"nodes: {node!r} is among lists of ranks; give the sizes of all nodes, or the ranks of all"
        )
    return tuple(sorted(whole_number("nodes", r) for r in node))


def _contiguous(size: int, sizes: list[int]) -> Layout:
    if min(sizes, default=0) < 1 or sum(sizes) != size:
        raise TopologyError(
            f"nodes={sizes}: sizes must be at least 1 and add up to size={size}, they add up to {sum(sizes)}"
        )
    ends = list(accumulate(sizes))
    return tuple(tuple(range(end - n, end)) for end, n in zip(ends, sizes, strict=True))
