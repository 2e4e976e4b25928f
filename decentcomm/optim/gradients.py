"""What happens to gradients before the update: are they finite, what is their norm, by what are they multiplied.

A norm costs one more read of the gradients, in the engine; nothing is written, since the fused kernel multiplies them
on the way. Without a norm to compute, the kernel notices by itself what is not finite, before it is published.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from decentcomm._C import sum_of_squares
from decentcomm.errors import NonFiniteError
from decentcomm.optim.partition import Partition

if TYPE_CHECKING:
    from decentcomm.optim.base import Decentralized

NONFINITE = ("raise", "skip")


class Gradients:
    """Takes the gradients of a step and decides about them.

    Args:
        max_norm: The norm to which they are scaled down, over all parameters.
        nonfinite: "raise" or "skip".
    """

    def __init__(self, max_norm: float | None, nonfinite: str) -> None:
        self._max_norm, self._nonfinite = max_norm, nonfinite
        self._norm: float | None = None
        self._skipped, self._last_skipped = 0, -1

    def take(self, optimizer: Decentralized, todo: Sequence[tuple[Partition, int]]) -> float:
        """Take the gradients of these buckets, or none if they are to be skipped; returns their factor."""
        found_inf, unscale = optimizer._scaling()
        for part, bucket in todo:
            part.take_gradients(bucket)
        if found_inf:
            self._skip(optimizer.steps, todo)
            return 1.0
        if self._max_norm is None and (found_inf is not None or self._nonfinite == "raise"):
            return unscale  # the scaler has looked, or the kernel will
        squares = [sum_of_squares(part.table(bucket), torch.get_num_threads()) for part, bucket in todo]
        self._norm = math.sqrt(math.fsum(squares)) * unscale if all(map(math.isfinite, squares)) else math.inf
        if not math.isfinite(self._norm):
            if self._nonfinite == "raise":
                raise self.complaint(optimizer.steps, todo)
            self._skip(optimizer.steps, todo)
            return 1.0
        clip = 1.0 if self._max_norm is None else min(1.0, self._max_norm / (self._norm + 1e-6))
        return unscale * clip

    def stats(self) -> dict[str, Any]:
        """Steps in which this rank only mixed because of its gradients, and the last norm, before clipping."""
        return {"skipped": self._skipped, "grad_norm": self._norm}

    def complaint(self, step: int, todo: Sequence[tuple[Partition, int]]) -> NonFiniteError:
        """What to raise if these gradients, or what became of them, are not finite."""
        bad = [
            part.name(p)
            for part, bucket in todo
            for p in part.params(bucket)
            if p.grad is not None and not bool(p.grad.isfinite().all())
        ]
        more = f" and of {len(bad) - 1} more" if len(bad) > 1 else ""
        what = f"the gradient of {bad[-1]}{more} is" if bad else "a gradient or what it made of a parameter is"
        return NonFiniteError(
            f"{what} not finite at step {step}; no neighbour saw it. Go on from the last checkpoint "
            "with a lower learning rate or max_grad_norm, or pass nonfinite='skip' to only mix in such a step"
        )

    def _skip(self, step: int, todo: Sequence[tuple[Partition, int]]) -> None:
        for part, bucket in todo:
            part.drop_gradients(bucket)
        self._skipped += self._last_skipped != step
        self._last_skipped = step
