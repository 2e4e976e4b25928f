"""A script that wraps its model in DistributedDataParallel keeps working: DDP no longer communicates.

DDP over the parameters of a decentralized optimizer would make every step wait for every rank, which is what the user
wants to get away from; frameworks (Hugging Face, Lightning) wrap by themselves. So DDP is put for good into the state
that its no_sync() has, in which gradients stay each rank's own. It may wrap the model before or after the optimizer is
made.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class QuietDDP:
    """Silences DDP over these parameters: what exists now, and what is made until `stop_looking`."""

    def __init__(self, params: Iterable[torch.Tensor]) -> None:
        self._params = {id(p) for p in params}
        if dist.is_available() and dist.is_initialized():  # else there is no DDP yet
            for thing in gc.get_objects():
                if issubclass(type(thing), DistributedDataParallel):
                    self.silence(thing)
        _looking.add(self)
        DistributedDataParallel.__init__ = _init  # type: ignore[method-assign, assignment]

    def stop_looking(self) -> None:
        """Training has begun: DDP that is made from now on is left alone."""
        _looking.discard(self)
        if not _looking and DistributedDataParallel.__init__ is _init:
            DistributedDataParallel.__init__ = _original  # type: ignore[method-assign]

    def silence(self, ddp: DistributedDataParallel) -> None:
        """No communication in forward and backward, if it is about our parameters."""
        if any(id(p) in self._params for p in ddp.parameters()):
            ddp.require_backward_grad_sync = False
            ddp.require_forward_param_sync = False


_looking: weakref.WeakSet[QuietDDP] = weakref.WeakSet()
_original = DistributedDataParallel.__init__


def _init(ddp: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
    _original(ddp, *args, **kwargs)
    for quiet in _looking:
        quiet.silence(ddp)
