"""AllReduce: the baseline. Averages gradients over all ranks at every step, then lets any torch optimizer update.

The same mailbox carries the gradients: version 2t is what step t's backward left, version 2t+1 their mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from decentcomm import topology as topologies
from decentcomm._world import control, init
from decentcomm.exchange.shm import ShmExchange, broadcast
from decentcomm.optim.agreement import describe, require_agreement
from decentcomm.optim.base import BUCKET_BYTES, names_of, other_tensors
from decentcomm.optim.flat import FlatLayout, by_dtype


class AllReduce(torch.optim.Optimizer):
    """Wraps a torch optimizer; same interface as the decentralized ones. No gradient counts as gradient 0.

    Args:
        optimizer: Any torch optimizer. Its param_groups are shared, so that schedulers may use either.
        module: The model, if its buffers shall be made equal to rank 0's, too.
        timeout: Seconds after which a wait is an error; default: DECENTCOMM_TIMEOUT, else 300.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, module: torch.nn.Module | None = None, timeout: float | None = None
    ) -> None:
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.optimizer, self.state, self.steps = optimizer, optimizer.state, 0
        world, self._control = init(), control()
        complete = topologies.make("complete", size=world.size)
        every = [p for group in self.param_groups for p in group["params"]]
        names = names_of(self.param_groups, module)
        others = other_tensors(every, module)
        tensors = [*every, *others.values()]
        require_agreement(describe(tensors, [*names, *others], {"optimizer": type(optimizer).__name__}), self._control)
        broadcast(tensors, world, self._control)
        self._layouts = [FlatLayout([every[i] for i in indices], BUCKET_BYTES) for indices in by_dtype(every, names)]
        self._exchanges = [
            ShmExchange(world, self._control, complete, layout.buckets, layout.dtype, timeout)
            for layout in self._layouts
        ]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Average the gradients, then update."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        version = 2 * self.steps
        for layout, exchange in zip(self._layouts, self._exchanges, strict=True):
            for p, view in zip(layout.params, layout.views(exchange.flat(version)), strict=True):
                view.zero_() if p.grad is None else view.copy_(p.grad)
            for bucket in range(len(layout.buckets)):
                exchange.publish(bucket, version)
            for bucket in range(len(layout.buckets)):
                exchange.average(bucket, version)
            for p, view in zip(layout.params, layout.views(exchange.flat(version + 1)), strict=True):
                p.grad = view.clone() if p.grad is None else p.grad.copy_(view)
            for bucket in range(len(layout.buckets)):
                exchange.release(bucket, version + 1)
        self.optimizer.step()
        self.steps += 1
        return loss

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimizer's."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Into the wrapped optimizer."""
        self.optimizer.load_state_dict(state_dict)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """All replicas are equal already."""
        yield

    def consensus_distance(self) -> float:
        """0: all replicas are equal."""
        return 0.0

    def stats(self) -> dict[str, Any]:
        """As `Decentralized.stats`."""
        waited: dict[int, float] = {}
        for exchange in self._exchanges:
            for rank, seconds in exchange.waited.items():
                waited[rank] = waited.get(rank, 0.0) + seconds
        received = sum(exchange.bytes_received(0) for exchange in self._exchanges)
        return {"steps": self.steps, "bytes": self.steps * received, "seconds_waited": waited}
