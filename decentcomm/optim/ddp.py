"""A script that wraps its model in DistributedDataParallel keeps working: DDP's own gradient averaging is switched off.

DDP over the parameters of a decentralized optimizer would make every step wait for every rank, which is what the user
wants to get away from; frameworks (Hugging Face, Lightning) wrap by themselves. So DDP gets a communication hook that
leaves gradients as they are, and no longer broadcasts buffers. It may wrap the model before or after the optimizer is
made.
"""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class QuietDDP:
    """Silences DDP over these parameters: what exists now, and what is made until `stop_looking`."""

    def __init__(self, params: Iterable[torch.Tensor]) -> None:
        self._params = {id(p) for p in params}
        self._original: Callable[..., None] | None = None
        if not dist.is_available():
            return
        if dist.is_initialized():  # else there is no DDP yet
            for thing in gc.get_objects():
                if issubclass(type(thing), DistributedDataParallel):
                    self._silence(thing)
        self._original = original = DistributedDataParallel.__init__
        quiet = weakref.ref(self)

        @wraps(original)
        def init(ddp: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
            original(ddp, *args, **kwargs)
            if (looking := quiet()) is not None:
                looking._silence(ddp)

        self._replacement = init
        DistributedDataParallel.__init__ = init  # type: ignore[method-assign, assignment]

    def stop_looking(self) -> None:
        """Training has begun: DDP is no longer changed when it is made."""
        if self._original is not None and DistributedDataParallel.__init__ is self._replacement:
            DistributedDataParallel.__init__ = self._original  # type: ignore[method-assign]
            self._original = None

    def _silence(self, ddp: DistributedDataParallel) -> None:
        if not any(id(p) in self._params for p in ddp.parameters()):
            return
        try:
            from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook

            ddp.register_comm_hook(None, noop_hook)
        except RuntimeError as e:
            warnings.warn(
                f"the model is wrapped in DistributedDataParallel, whose communication hook is taken ({e}): gradients "
                "are averaged over all ranks besides being mixed; do not wrap the model, or register no hook",
                stacklevel=3,
            )
        ddp.require_forward_param_sync = False  # no broadcast of rank 0's buffers in forward
