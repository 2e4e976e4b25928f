"""The dense oracle: every algorithm as algorithms.md writes it, all ranks in one process, fp64, no cleverness."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from decentcomm.topology import Topology

Gradient = Callable[[int, int, torch.Tensor], torch.Tensor | None]
"""(rank, step, parameters) -> gradient, or None."""


@dataclass
class Adam:
    """Sections 1 and 2; accumulate=1 is section 1."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False
    accumulate: int = 1
    state: dict[int, list[torch.Tensor]] = field(default_factory=dict)

    def update(self, rank: int, t: int, x: torch.Tensor, mixed: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        """Step t = 1, 2, ... of one rank."""
        b1, b2, s = *self.betas, self.accumulate
        M, V, b = self.state.setdefault(rank, [torch.zeros_like(x) for _ in range(3)])
        if not self.decoupled:
            g = g + self.weight_decay * x
        k = math.ceil(t / s)
        m, v = b1 * M + (1 - b1) * g, b2 * V + (1 - b2) * g * g
        shrink = 1 - self.lr * self.weight_decay if self.decoupled else 1.0
        new = shrink * mixed - self.lr * (m / (1 - b1**k)) / ((v / (1 - b2**k)).sqrt() + self.eps)
        b = b + g / s
        if t % s == 0:
            M, V, b = b1 * M + (1 - b1) * b, b2 * V + (1 - b2) * b * b, torch.zeros_like(b)
        self.state[rank] = [M, V, b]
        return new


@dataclass
class Sgd:
    """torch.optim.SGD's rule on top of mixing."""

    lr: float
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    state: dict[int, torch.Tensor] = field(default_factory=dict)

    def update(self, rank: int, t: int, x: torch.Tensor, mixed: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        """Step t = 1, 2, ... of one rank."""
        g = g + self.weight_decay * x
        if self.momentum:
            old = self.state.get(rank)
            buffer = g if old is None else self.momentum * old + (1 - self.dampening) * g
            self.state[rank] = buffer
            g = g + self.momentum * buffer if self.nesterov else buffer
        return mixed - self.lr * g


def train(
    topology: Topology,
    rule: Adam | Sgd,
    start: torch.Tensor,
    gradient: Gradient,
    steps: int,
    *,
    first: int = 0,
    wire: torch.dtype | None = None,
) -> torch.Tensor:
    """x(t+1) = W(t) x(t) - update, for all ranks at once; returns one row a rank.

    Without a gradient a row is only mixed. The topology starts at step `first`. With a wire dtype x + (W - 1) q(x) is
    mixed, q rounding to it.
    """
    x = start.double().repeat(topology.size, 1) if start.dim() == 1 else start.double()
    updates = [0] * topology.size
    for t in range(first, first + steps):
        w = torch.from_numpy(topology.matrix(t))
        mixed = w @ x if wire is None else x + (w - torch.eye(topology.size)) @ x.to(wire).double()
        rows = []
        for r in range(topology.size):
            g = gradient(r, t, x[r])
            updates[r] += g is not None
            rows.append(mixed[r] if g is None else rule.update(r, updates[r], x[r], mixed[r], g.double()))
        x = torch.stack(rows)
    return x
