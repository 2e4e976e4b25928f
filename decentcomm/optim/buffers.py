"""Buffers of the model (BatchNorm's running statistics) inside `averaged()`. Parameters are not their business."""

from __future__ import annotations

from collections.abc import Callable

import torch

from decentcomm._world import control, init
from decentcomm.errors import ConfigError
from decentcomm.exchange import mean_over_ranks
from decentcomm.exchange.shm import broadcast

POLICIES = ("average", "local")


def require_policy(policy: str) -> None:
    """Raise if there is no such policy."""
    if policy not in POLICIES:
        raise ConfigError(f"buffers={policy!r} must be one of {POLICIES}")


def average(module: torch.nn.Module | None, policy: str) -> Callable[[], None]:
    """Make the buffers the mean over all ranks, those that are not floating-point rank 0's. Collective.

    Returns what puts them back as they were.
    """
    every = [] if module is None or policy == "local" else list(module.buffers())
    before = [b.detach().clone() for b in every]
    real = [b for b in every if b.is_floating_point()]
    with torch.no_grad():
        for wide in (torch.float32, torch.float64):
            chosen = [b for b in real if (b.dtype == torch.float64) == (wide == torch.float64)]
            if chosen:
                flat = torch.cat([b.detach().reshape(-1).to(wide) for b in chosen])
                pieces = mean_over_ranks(flat).split([b.numel() for b in chosen])  # type: ignore[no-untyped-call]
                for buffer, piece in zip(chosen, pieces, strict=True):
                    buffer.copy_(piece.view_as(buffer))
        broadcast([b for b in every if not b.is_floating_point()], init(), control())

    def restore() -> None:
        with torch.no_grad():
            for buffer, old in zip(every, before, strict=True):
                buffer.copy_(old)

    return restore
