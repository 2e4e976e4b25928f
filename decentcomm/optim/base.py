"""`Decentralized`: what every decentralized optimizer does, whatever its update rule.

A step is, for each bucket: collect what the neighbours published, mix and update in one kernel, publish. The kernel
writes the new parameters into the other of two slots, so after a step the parameters are views of that one. One
thread steps.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from decentcomm import topology as topologies
from decentcomm._C import Incoming, TensorTable
from decentcomm._world import control, init
from decentcomm.errors import UnsupportedError
from decentcomm.exchange import Exchange, ShmExchange
from decentcomm.exchange.shm import ELEMENTS, broadcast
from decentcomm.optim.agreement import describe, require_agreement
from decentcomm.optim.flat import FlatLayout, by_dtype
from decentcomm.topology import Topology

DEFAULT_TOPOLOGY = "one-peer-exponential"
"""One neighbour a step, the least that can travel, for any number of ranks; 2^k ranks agree exactly after k steps."""

BUCKET_BYTES = 25 * 2**20


class Partition:
    """The parameters of one dtype: their flat buffer, its exchange, and the optimizer's state beside it."""

    def __init__(self, layout: FlatLayout, groups: list[int], exchange: Exchange, state_names: tuple[str, ...]) -> None:
        self.layout, self.exchange, self.element = layout, exchange, ELEMENTS[layout.dtype]
        self.views = [layout.views(exchange.flat(version)) for version in (0, 1)]
        self.steps = torch.zeros(len(layout.params))
        self.state = {name: torch.zeros(layout.size, dtype=layout.dtype) for name in state_names}
        self.state_views = {name: layout.views(flat) for name, flat in self.state.items()}
        self.buckets = range(len(layout.buckets))
        self._places = [layout.bucket_places(b) for b in self.buckets]
        self._tables = [
            TensorTable(
                [p.offset - layout.bucket_begin(b) for p in places],
                [p.count for p in places],
                [groups[p.index] for p in places],
            )
            for b, places in enumerate(self._places)
        ]

    def point_to(self, version: int) -> None:
        """Make the parameters views of the slot that holds `version`."""
        for p, view in zip(self.layout.params, self.views[version % 2], strict=True):
            p.data = view

    def state_pointer(self, name: str, bucket: int) -> int:
        """Address of a bucket in a state buffer; 0 if this optimizer has no such buffer."""
        flat = self.state.get(name)
        return 0 if flat is None else flat.data_ptr() + self.layout.bucket_begin(bucket) * flat.element_size()

    def take_gradients(self) -> list[torch.Tensor]:
        """Count a step for every parameter that has a gradient; returns the gradients, which must outlive the step."""
        grads = [_readable(p.grad, p) for p in self.layout.params]
        self.steps += torch.tensor([g is not None for g in grads], dtype=self.steps.dtype)
        self._steps = self.steps.tolist()
        self._pointers = [0 if g is None else g.data_ptr() for g in grads]
        return [g for g in grads if g is not None]

    def table(self, bucket: int) -> TensorTable:
        """The tensors of a bucket with the gradients that were taken."""
        places = self._places[bucket]
        self._tables[bucket].set([self._pointers[p.index] for p in places], [self._steps[p.index] for p in places])
        return self._tables[bucket]


class Decentralized(torch.optim.Optimizer):
    """Base of the decentralized optimizers. A subclass names its state buffers and calls its kernel.

    Construction is collective: parameters (and with `module` its buffers) become equal to rank 0's, and ranks that hold
    different models or settings are told so.

    Args:
        params: As for any torch optimizer.
        defaults: As for any torch optimizer.
        topology: A name or a `Topology`.
        module: The model, if its buffers shall be made equal too and errors shall name parameters as it does.
        bucket_bytes: Size at which a bucket is closed.
        timeout: Seconds after which a wait for a neighbour is an error; default: DECENTCOMM_TIMEOUT, else 300.
    """

    def __init__(
        self,
        params: ParamsT,
        defaults: dict[str, Any],
        *,
        topology: str | Topology = DEFAULT_TOPOLOGY,
        module: torch.nn.Module | None = None,
        bucket_bytes: int = BUCKET_BYTES,
        timeout: float | None = None,
    ) -> None:
        super().__init__(params, defaults)
        self._world, self._control = init(), control()
        self.topology = topologies.make(topology) if isinstance(topology, str) else topology
        if self.topology.size != self._world.size:
            raise UnsupportedError(
                f"{self.topology!r} is for {self.topology.size} ranks, but there are {self._world.size}"
            )
        self.steps = 0
        self._bytes = 0
        every = [p for group in self.param_groups for p in group["params"]]
        names = names_of(self.param_groups, module)
        others = other_tensors(every, module)
        self._require_agreement([*every, *others.values()], [*names, *others], bucket_bytes)
        broadcast([*every, *others.values()], self._world, self._control)
        group_of = [g for g, group in enumerate(self.param_groups) for _ in group["params"]]
        self._partitions = [
            self._partition([every[i] for i in indices], [group_of[i] for i in indices], bucket_bytes, timeout)
            for indices in by_dtype(every, names)
        ]
        self._control.all_gather(b"")

    @abstractmethod
    def _update(self, part: Partition, bucket: int, incoming: Incoming, table: TensorTable) -> None:
        """Mix `incoming` and update one bucket, by one kernel."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Mix with the neighbours and update, in one pass. Waits only if a neighbour is more than a step behind."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        t = self.steps
        for part in self._partitions:
            alive = part.take_gradients()
            for bucket in part.buckets:
                incoming = part.exchange.collect(bucket, t)
                self._update(part, bucket, incoming, part.table(bucket))
                part.exchange.publish(bucket, t + 1)
                part.exchange.release(bucket, t)
            del alive
            part.point_to(t + 1)
            self._bytes += part.exchange.bytes_received(t)
        self.steps = t + 1
        return loss

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside the with-block the parameters are the mean over all ranks; afterwards each replica is as it was.

        Collective.
        """
        means = [part.layout.views(part.exchange.mean(self.steps)) for part in self._partitions]
        for part, views in zip(self._partitions, means, strict=True):
            for p, view in zip(part.layout.params, views, strict=True):
                p.data = view
        try:
            yield
        finally:
            for part in self._partitions:
                part.point_to(self.steps)

    def consensus_distance(self) -> float:
        """Sum over ranks of |x_i - mean|^2, relative to |mean|^2: 0 if all replicas are equal. Collective."""
        apart = size = 0.0
        for part in self._partitions:
            mean = part.exchange.mean(self.steps)
            apart += float((part.exchange.flat(self.steps) - mean).double().square().sum())
            size += float(mean.double().square().sum())
        total = sum(float(d) for d in self._control.all_gather(repr(apart).encode()))
        return total / size if size > 0 else total

    def stats(self) -> dict[str, Any]:
        """Steps taken, bytes received from other ranks, and seconds waited for each of them."""
        waited: dict[int, float] = {}
        for part in self._partitions:
            for rank, seconds in part.exchange.waited.items():
                waited[rank] = waited.get(rank, 0.0) + seconds
        return {"steps": self.steps, "bytes": self._bytes, "seconds_waited": waited}

    def _partition(
        self, params: list[torch.Tensor], groups: list[int], bucket_bytes: int, timeout: float | None
    ) -> Partition:
        layout = FlatLayout(params, bucket_bytes)
        exchange = ShmExchange(self._world, self._control, self.topology, layout.buckets, layout.dtype, timeout)
        part = Partition(layout, groups, exchange, self._state_names())
        for p, view in zip(params, part.views[0], strict=True):
            view.copy_(p.detach())
        part.point_to(0)
        for bucket in part.buckets:
            exchange.publish(bucket, 0)
        for i, p in enumerate(params):
            self.state[p] = {"step": part.steps[i], **{name: views[i] for name, views in part.state_views.items()}}
        return part

    @abstractmethod
    def _state_names(self) -> tuple[str, ...]:
        """The flat buffers of state that the update needs beside the parameters."""

    def _require_agreement(self, params: list[torch.Tensor], names: list[str], bucket_bytes: int) -> None:
        settings = {f"group {g} {k}": v for g, group in enumerate(self.param_groups) for k, v in _plain(group).items()}
        settings |= {"optimizer": type(self).__name__, "bucket_bytes": bucket_bytes, "topology": repr(self.topology)}
        require_agreement(describe(params, names, settings), self._control)


def _readable(grad: torch.Tensor | None, p: torch.Tensor) -> torch.Tensor | None:
    """The gradient as the kernel can read it: same dtype and strides as the parameter.

    Copied only if it is not so already.
    """
    if grad is None:
        return None
    if grad.layout != torch.strided:
        raise UnsupportedError(
            f"a parameter of shape {tuple(p.shape)} has a {grad.layout} gradient; dense ones are supported"
        )
    if grad.dtype == p.dtype and grad.stride() == p.stride():
        return grad
    return torch.empty_strided(p.shape, p.stride(), dtype=p.dtype).copy_(grad)


def _plain(group: Mapping[str, Any]) -> dict[str, Any]:
    """A param group's settings, tensors as numbers."""
    hidden = ("params", "param_names")
    return {k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in group.items() if k not in hidden}


def other_tensors(params: list[torch.Tensor], module: torch.nn.Module | None) -> dict[str, torch.Tensor]:
    """Buffers and parameters of the module that the optimizer was not given: to be made equal at the start."""
    if module is None:
        return {}
    known = set(map(id, params))
    both = [*module.named_parameters(), *module.named_buffers()]
    return {f"{name} (not optimized)": t for name, t in both if id(t) not in known}


def names_of(groups: list[dict[str, Any]], module: torch.nn.Module | None) -> list[str]:
    """What to call each parameter in errors: the name given with it, the module's, or its number."""
    known = {} if module is None else {id(p): name for name, p in module.named_parameters()}
    names = []
    for g, group in enumerate(groups):
        given = group.get("param_names", [None] * len(group["params"]))
        for i, (p, name) in enumerate(zip(group["params"], given, strict=True)):
            names.append(name or known.get(id(p), f"parameter {i} of group {g}"))
    return names
