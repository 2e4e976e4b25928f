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
        self._hooked: set[int] = set()
        self._where: dict[int, tuple[Partition, int]] = {}
        self._missing: dict[tuple[int, int], set[int]] = {}
        self._done: set[tuple[int, int]] = set()
        self.arm()

    def arm(self) -> None:
        """A new step begins: nothing is done. Parameters that came or were unfrozen since are hooked, too."""
        self._done.clear()
        alive = weakref.WeakMethod(self._came)

        def came(p: torch.Tensor) -> None:
            if (method := alive()) is not None:
                method(p)

        for part in self._optimizer._partitions:
            for bucket in part.buckets:
                wanted = [p for p in part.params(bucket) if p.requires_grad]
                self._missing[id(part), bucket] = {id(p) for p in wanted}
                for p in wanted:
                    if id(p) not in self._hooked:
                        self._hooked.add(id(p))
                        self._where[id(p)] = part, bucket
                        p.register_post_accumulate_grad_hook(came)  # type: ignore[no-untyped-call]

    def left(self, todo: list[tuple[Partition, int]]) -> list[tuple[Partition, int]]:
        """Of these, the buckets that backward did not complete."""
        if hasattr(self._optimizer, "found_inf"):
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

    def _came(self, p: torch.Tensor) -> None:
        if self._paused:
            return
        part, bucket = self._where[id(p)]
        key = id(part), bucket
        if key in self._done:
            raise UnsupportedError(
                f"{part.name(p)} got a second gradient in one step, but in_backward=True has already used the first: "
                "put all but the last backward of a step into `with optimizer.accumulating():`"
            )
        self._missing[key].discard(id(p))
        if self._missing[key]:
            return
        optimizer = self._optimizer
        optimizer._require_usable()
        with torch.no_grad(), optimizer._marked():
            optimizer._get_ready()
            part.require_own(optimizer.steps)
            optimizer._step(part, bucket, optimizer._gradients.take(optimizer, [(part, bucket)]))
        self._done.add(key)
        _free(part, bucket)


def _free(part: Partition, bucket: int) -> None:
    for p in part.params(bucket):
        p.grad = None
