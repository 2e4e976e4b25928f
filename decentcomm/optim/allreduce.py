"""AllReduce: the baseline. Averages gradients over all ranks at every step, then lets any torch optimizer update.

The same mailbox carries the gradients: version 2t is what the t-th step's backward left, version 2t+1 their mean.
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
from decentcomm.optim import saving
from decentcomm.optim.agreement import group_settings
from decentcomm.optim.amp import Unscales
from decentcomm.optim.base import BUCKET_BYTES
from decentcomm.optim.flat import FlatLayout
from decentcomm.optim.start import names_of, start_equal


class AllReduce(Unscales, torch.optim.Optimizer):
    """Wraps a torch optimizer; same interface as the decentralized ones. No gradient counts as gradient 0.

    Under a GradScaler gradients are unscaled, then averaged; if they are not finite then, no rank updates.

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
        self.optimizer, self.steps = optimizer, 0
        self.param_groups, self.state = optimizer.param_groups, optimizer.state
        self._module, self._buffers, self._timeout = module, buffers, timeout
        self._world, self._control, self._version = init(), control(), 0
        self._layouts: list[FlatLayout] = []
        self._exchanges: list[ShmExchange] = []
        self._take_in(0)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As for any torch optimizer. After construction it is collective: all ranks add the same."""
        if not hasattr(self, "_layouts"):
            super().add_param_group(param_group)
            return
        self.optimizer.add_param_group(param_group)
        self._take_in(len(self.param_groups) - 1)

    def _take_in(self, first: int) -> None:
        groups = self.param_groups[first:]
        every = [p for group in groups for p in group["params"]]
        names = names_of(groups, self._module, first)
        name = f"AllReduce of {type(self.optimizer).__name__}"
        module = self._module if first == 0 else None
        complete = topologies.make("complete", size=self._world.size)
        for indices in start_equal(name, every, names, module, group_settings(groups)):
            layout = FlatLayout([every[i] for i in indices], BUCKET_BYTES)
            sizes = [n * layout.dtype.itemsize for n in layout.buckets]
            exchange = ShmExchange(self._world, self._control, complete, sizes, layout.dtype, self._timeout)
            if self._version > 0:  # as if it had been there in the step before
                exchange.restart(self._version - 1)
                for bucket in range(len(sizes)):
                    exchange.release(bucket, self._version - 1)
            self._layouts.append(layout)
            self._exchanges.append(exchange)
        self._control.all_gather(b"")

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Average the gradients, then update."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        found_inf, unscale = self._scaling()
        finite = True
        for layout, exchange in zip(self._layouts, self._exchanges, strict=True):
            finite &= self._average(layout, exchange, unscale, look=found_inf is not None)
        self._version += 2
        self.steps += 1
        if finite:
            self.optimizer.step()
        return loss

    def _average(self, layout: FlatLayout, exchange: ShmExchange, unscale: float, look: bool) -> bool:
        """Make the gradients of one dtype their mean over all ranks; if asked to look, False if it is not finite."""
        flat, buckets, finite = exchange.flat, range(len(layout.buckets)), True
        for p, view in zip(layout.params, layout.views(flat(self._version)), strict=True):
            view.zero_() if p.grad is None else view.copy_(p.grad).mul_(unscale)
        for bucket in buckets:
            exchange.publish(bucket, self._version)
        for bucket in buckets:
            exchange.average(bucket, self._version)
        for p, view in zip(layout.params, layout.views(flat(self._version + 1)), strict=True):
            finite &= not look or bool(view.isfinite().all())
            if p.requires_grad:  # a frozen parameter must not be decayed
                p.grad = view.clone() if p.grad is None else p.grad.copy_(view)
        for bucket in buckets:
            exchange.release(bucket, self._version + 1)
        return finite

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimizer's, and the number of steps."""
        return saving.with_steps(self.optimizer.state_dict(), self.steps)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Into the wrapped optimizer."""
        plain, steps = saving.without_steps(state_dict)
        self.optimizer.load_state_dict(plain)
        self.param_groups, self.state = self.optimizer.param_groups, self.optimizer.state
        self.steps = self.steps if steps is None else steps

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
