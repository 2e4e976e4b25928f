"""AllReduce: the baseline. Averages gradients over all ranks at every step, then lets any torch optimizer update.

The same mailbox carries the gradients: version 2t is what step t's backward left, version 2t+1 their mean.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from decentcomm import topology as topologies
from decentcomm._world import control, init
from decentcomm.errors import DisagreementError
from decentcomm.exchange.base import seconds_waited
from decentcomm.exchange.shm import ShmExchange
from decentcomm.optim import buffers as module_buffers
from decentcomm.optim.agreement import group_settings
from decentcomm.optim.base import BUCKET_BYTES
from decentcomm.optim.flat import FlatLayout
from decentcomm.optim.start import names_of, start_equal


class AllReduce(torch.optim.Optimizer):
    """Wraps a torch optimizer; same interface as the decentralized ones. No gradient counts as gradient 0.

    Args:
        optimizer: Any torch optimizer. Its param_groups are shared, so that schedulers may use either.
        module: The model, if its buffers shall be made equal to rank 0's, too.
        buffers: What buffers of `module` are inside `averaged()`: "average" over all ranks, or this rank's ("local").
        timeout: Seconds after which a wait is an error; default: DECENTCOMM_TIMEOUT, else 300.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        module: torch.nn.Module | None = None,
        timeout: float | None = None,
        buffers: str = "average",
    ) -> None:
        module_buffers.require_policy(buffers)
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.optimizer, self.state, self.steps = optimizer, optimizer.state, 0
        self._module, self._buffers = module, buffers
        world, self._control = init(), control()
        complete = topologies.make("complete", size=world.size)
        every = [p for group in self.param_groups for p in group["params"]]
        names = names_of(self.param_groups, module)
        name = f"AllReduce of {type(optimizer).__name__}"
        dtypes = start_equal(name, every, names, module, group_settings(self.param_groups))
        self._layouts = [FlatLayout([every[i] for i in indices], BUCKET_BYTES) for indices in dtypes]
        self._exchanges = [
            ShmExchange(
                world,
                self._control,
                complete,
                [n * layout.dtype.itemsize for n in layout.buckets],
                layout.dtype,
                timeout,
            )
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
        self.param_groups, self.state = self.optimizer.param_groups, self.optimizer.state

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """All replicas are equal already, but for buffers; raises if they are not. Collective."""
        self.consensus_distance()
        restore = module_buffers.average(self._module, self._buffers)
        try:
            yield
        finally:
            restore()

    def consensus_distance(self) -> float:
        """0 if all replicas are equal bit for bit; else an error that says which differ. Collective."""
        digest = hashlib.sha256()
        for layout in self._layouts:
            for p in layout.params:
                digest.update(p.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        everyone = self._control.all_gather(digest.digest())
        different = [r for r, other in enumerate(everyone) if other != everyone[0]]
        if different:
            raise DisagreementError(f"replicas under AllReduce must be equal, but ranks {different} differ from rank 0")
        return 0.0

    def stats(self) -> dict[str, Any]:
        """As `Decentralized.stats`."""
        waited = seconds_waited(self._exchanges)
        received = sum(exchange.bytes_received(0) for exchange in self._exchanges)
        return {"steps": self.steps, "bytes": self.steps * received, "seconds_waited": waited}
