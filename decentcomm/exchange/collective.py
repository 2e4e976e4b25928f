"""The mean over all ranks of any tensor: for evaluation, checkpoints and buffers, not for training steps.

Carried by the same mailbox: version 2t of a small window is a piece of each rank's tensor, version 2t+1 their mean. The
windows are made when the first mean of a dtype is asked for, once for the process.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from decentcomm import topology as topologies
from decentcomm._world import control, init
from decentcomm.exchange.shm import ShmExchange

WINDOW_BYTES = 2**20
"""Large enough that waking up costs little beside copying, small enough to stay in the caches."""


@dataclass
class _Window:
    exchange: ShmExchange
    version: int = 0


_windows: dict[torch.dtype, _Window] = {}


def mean_over_ranks(tensor: torch.Tensor) -> torch.Tensor:
    """The mean of a float32 or float64 tensor of the same shape on all ranks, in memory of its own. Collective."""
    mean = tensor.detach().clone(memory_format=torch.contiguous_format)
    if init().size > 1:
        window = _window(tensor.dtype)
        for piece in mean.view(-1).split(WINDOW_BYTES // tensor.element_size()):  # type: ignore[no-untyped-call]
            flat, version = window.exchange.flat, window.version
            flat(version)[: piece.numel()] = piece
            window.exchange.publish(0, version)
            window.exchange.average(0, version)
            piece.copy_(flat(version + 1)[: piece.numel()])
            window.exchange.release(0, version + 1)
            window.version += 2
    return mean


def _window(dtype: torch.dtype) -> _Window:
    if dtype not in _windows:
        complete = topologies.make("complete", size=init().size)
        _windows[dtype] = _Window(ShmExchange(init(), control(), complete, [WINDOW_BYTES], dtype))
    return _windows[dtype]
