"""Edge colouring: splits a step's edges into matchings, so that communicators can be created and used without deadlock.

Ranks that always occur together (a node's ranks in a hierarchical step) are one vertex. Where every edge then joins
at most two vertices, which is so for every topology here, Misra and Gries' algorithm needs at most max degree + 1
colours (A constructive proof of Vizing's theorem, 1992). Other hypergraphs, which only a new topology could bring,
are coloured greedily.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from decentcomm.topology.edge import Edge


def color_edges(edges: Sequence[Edge]) -> list[list[Edge]]:
    """Split `edges` into lists in which no rank occurs twice (both directions of a pair count as one edge)."""
    vertices = _contract(edges)
    joined: dict[tuple[int, ...], list[Edge]] = defaultdict(list)
    for edge in edges:
        joined[tuple(sorted({vertices[r] for r in edge.ranks}))].append(edge)
    keys = sorted(joined)
    pairs = [(k[0], k[1]) for k in keys if len(k) == 2]
    color: dict[tuple[int, ...], int] = {}
    color.update(_misra_gries(pairs).items())
    used: dict[int, set[int]] = defaultdict(set)
    for key, c in color.items():
        for v in key:
            used[v].add(c)
    for key in keys:
        if len(key) != 2:  # a group that is one vertex always finds one of the pairs' colours free
            busy = set().union(*(used[v] for v in key))
            color[key] = next(c for c in range(len(keys)) if c not in busy)
            for v in key:
                used[v].add(color[key])
    classes: dict[int, list[Edge]] = defaultdict(list)
    for key in keys:
        classes[color[key]].extend(joined[key])
    return [classes[c] for c in sorted(classes)]


def _contract(edges: Sequence[Edge]) -> dict[int, int]:
    """Map each rank to its vertex: ranks on the same sides of exactly the same edges share one."""
    sides: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for i, edge in enumerate(edges):
        for r in edge.sources:
            sides[r].append((i, "source"))
        for r in edge.targets:
            sides[r].append((i, "target"))
    first: dict[tuple[tuple[int, str], ...], int] = {}
    return {r: first.setdefault(tuple(sides[r]), r) for r in sorted(sides)}


def _misra_gries(pairs: Sequence[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """Colour the edges of a simple graph with at most max degree + 1 colours."""
    at: dict[int, dict[int, int]] = defaultdict(dict)  # at[u][colour] = the neighbour that this colour leads to
    color: dict[tuple[int, int], int] = {}

    def key(u: int, v: int) -> tuple[int, int]:
        return (u, v) if u < v else (v, u)

    def free(u: int) -> int:
        return next(c for c in range(len(at[u]) + 1) if c not in at[u])

    def paint(u: int, v: int, c: int) -> None:
        color[key(u, v)] = c
        at[u][c], at[v][c] = v, u

    def wipe(u: int, v: int) -> int:
        c = color.pop(key(u, v))
        del at[u][c], at[v][c]
        return c

    def fan_from(u: int, v: int) -> list[int]:
        fan = [v]
        grown = True
        while grown:
            grown = False
            for c, w in sorted(at[u].items()):
                if w not in fan and c not in at[fan[-1]]:
                    fan.append(w)
                    grown = True
                    break
        return fan

    def invert_path(u: int, c: int, d: int) -> None:
        """Swap colours c and d along the path from u that begins with d."""
        path, want = [u], d
        while want in at[path[-1]]:
            path.append(at[path[-1]][want])
            want = c if want == d else d
        swapped = [(a, b, c + d - wipe(a, b)) for a, b in pairwise(path)]
        for a, b, e in swapped:
            paint(a, b, e)

    for u, v in pairs:
        fan = fan_from(u, v)
        c, d = free(u), free(fan[-1])
        if d in at[u]:
            invert_path(u, c, d)
        # The prefix of the fan that is still one, and whose end can take d.
        end = 0
        while d in at[fan[end]]:
            end += 1
        for i in range(end):  # rotate: each edge of the prefix takes the next one's colour
            paint(u, fan[i], wipe(u, fan[i + 1]))
        paint(u, fan[end], d)
    return color
