"""`in_backward=True`: each bucket is updated and published in backward, as soon as all its gradients are there.

The kernel writes the other slot and the parameters move there only in step(), so the rest of backward still sees the
values of forward. What got no gradient (unused parameters) is done in step().
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from decentcomm.errors import UnsupportedError
from decentcomm.optim.partition import Partition

if TYPE_CHECKING:
    from decentcomm.optim.base import Decentralized


class InBackward:
    """Hooks on all parameters, and the account of what is still missing in each bucket."""

    def __init__(self, optimizer: Decentralized) -> None:
        # Parameters hold hooks and we hold parameters: without weak references nothing would be freed in time.
        self._optimizer: Decentralized = weakref.proxy(optimizer)
        self._paused = False
        self._where: dict[int, tuple[Partition, int]] = {}
        self._came: set[int] = set()
        self._done: set[tuple[int, int]] = set()
        self.arm()

    @property
    def started(self) -> bool:
        """True if backward has updated something and step() has not come yet."""
        return bool(self._done)

    def arm(self) -> None:
        """A new step begins: nothing is done. Parameters that came or were unfrozen since are hooked, too."""
        self._done.clear()
        self._came.clear()
        alive = weakref.WeakMethod(self._gradient_of)

        def hook(p: torch.Tensor) -> None:
            if (method := alive()) is not None:
                method(p)

        for part in self._optimizer._partitions:
            for bucket in part.buckets:
                for p in part.params(bucket):
                    if p.requires_grad and id(p) not in self._where:
                        self._where[id(p)] = part, bucket
                        p.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def left(self, todo: list[tuple[Partition, int]]) -> list[tuple[Partition, int]]:
        """Of these, the buckets that backward did not complete."""
        if self._optimizer._scaling()[0] is not None:
            raise UnsupportedError(
                "GradScaler judges gradients after backward, when in_backward=True has already applied them: "
                "use in_backward=False, or bfloat16, which needs no scaling"
            )
        for part, bucket in todo:
            if (id(part), bucket) in self._done:
                _free(part, bucket)  # DistributedDataParallel puts gradients back at the end of backward
        return [(part, bucket) for part, bucket in todo if (id(part), bucket) not in self._done]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, gradients only accumulate."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def _gradient_of(self, p: torch.Tensor) -> None:
        if self._paused:
            return
        part, bucket = self._where[id(p)]
        key = id(part), bucket
        if key in self._done:
            raise UnsupportedError(
                f"{part.name(p)} got a second gradient in one step, but in_backward=True has already used the first: "
                "put all but the last backward of a step into `with optimizer.accumulating():`"
            )
        self._came.add(id(p))
        if any(q.requires_grad and id(q) not in self._came for q in part.params(bucket)):
            return
        optimizer = self._optimizer
        optimizer._require_usable()
        with torch.no_grad(), optimizer._marked():
            if not self._done:
                optimizer._get_ready()
                optimizer._require_own()
            optimizer._step(part, bucket, optimizer._gradients.take(optimizer, [(part, bucket)]))
        self._done.add(key)
        _free(part, bucket)


def _free(part: Partition, bucket: int) -> None:
    for p in part.params(bucket):
        p.grad = None
