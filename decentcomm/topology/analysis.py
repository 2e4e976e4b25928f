"""What follows from a topology's matrices and edges: the numbers of algorithms.md section 3, as pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from decentcomm.topology.edge import Edge

Matrix = NDArray[np.float64]

EXACT = 1e-9
"""Two averages closer than this, from inputs of order 1, are the same: 64 ranks' rounding errors stay below 1e-14."""


ROUNDING = 1e-12
"""How far a sum of weights may be from 1."""


def why_not_doubly_stochastic(w: Matrix, tolerance: float = ROUNDING) -> str | None:
    """What is wrong with a mixing matrix, in words, or None."""
    if not np.isfinite(w).all():
        i, j = np.argwhere(~np.isfinite(w))[0]
        return f"[{i}, {j}] = {w[i, j]} is not a finite number"
    if w.min() < -tolerance:
        i, j = np.argwhere(w < -tolerance)[0]
        return f"[{i}, {j}] = {w[i, j]:g} is negative; nearest: 0"
    rows, columns = w.sum(axis=1), w.sum(axis=0)
    i = int(np.abs(rows - 1).argmax())
    if abs(rows[i] - 1) > tolerance:
        kept = w[i, i] + 1 - rows[i]
        return f"row {i} adds up to {rows[i]:.12g}, not 1" + (f"; nearest: [{i}, {i}] = {kept:g}" if kept >= 0 else "")
    j = int(np.abs(columns - 1).argmax())
    if abs(columns[j] - 1) > tolerance:
        return (
            f"column {j} adds up to {columns[j]:.12g}, not 1; weights that are equal both ways have it right, "
            "and weights=networkx.Graph(...) chooses such weights"
        )
    return None


def mixing_matrix(size: int, edges: Sequence[Edge]) -> Matrix:
    """The dense matrix of a step: what the edges carry, and on the diagonal what each rank keeps."""
    w = np.zeros((size, size))
    for edge in edges:
        w[np.ix_(edge.targets, edge.sources)] += edge.weight
    np.fill_diagonal(w, 0.0)
    kept = 1.0 - w.sum(axis=1)
    kept[np.abs(kept) < ROUNDING] = 0.0
    np.fill_diagonal(w, kept)
    return w


def period_product(matrices: Sequence[Matrix]) -> Matrix:
    """W(period-1) ... W(1) W(0)."""
    return reduce(lambda product, w: w @ product, matrices)


def spectral_gap(matrices: Sequence[Matrix]) -> float:
    """1 - s2^(1/period), s2 the largest singular value of the period's product less the mean."""
    product = period_product(matrices)
    s2 = np.linalg.norm(product - 1.0 / len(product), ord=2)
    return float(1.0 - s2 ** (1.0 / len(matrices))) if s2 > EXACT else 1.0


def consensus_steps(matrices: Sequence[Matrix]) -> int | None:
    """The first number of steps, at most one period, whose product is the exact average."""
    size = len(matrices[0])
    product = np.eye(size)
    for t, w in enumerate([np.eye(size), *matrices]):
        product = w @ product
        if np.abs(product - 1.0 / size).max() < EXACT:
            return t
    return None


def models_received(size: int, period: Sequence[Sequence[Edge]]) -> float:
    """How many models' worth of data the busiest rank receives in a step, averaged over the period."""
    received = np.zeros(size)
    for edges in period:
        for edge in edges:
            n = len(edge.sources)
            received[list(edge.targets)] += 1.0 if edge.directed else 2.0 * (n - 1) / n
    return float(received.max()) / len(period)
