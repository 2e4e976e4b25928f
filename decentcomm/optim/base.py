"""`Decentralized`: what every decentralized optimizer does, whatever its update rule.

A step is, for each bucket: collect what the neighbours published, mix and update in one kernel, publish. The kernel
writes the new parameters into the other of two slots, so after a step the parameters are views of that one. One
thread steps.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd.graph import increment_version
from torch.optim.optimizer import ParamsT

from decentcomm import topology as topologies
from decentcomm._C import Incoming, TensorTable
from decentcomm._world import control, init
from decentcomm.errors import UnsupportedError
from decentcomm.exchange import Exchange, ShmExchange
from decentcomm.exchange.base import seconds_waited
from decentcomm.exchange.shm import ELEMENTS, broadcast
from decentcomm.optim.agreement import describe, group_settings, require_agreement
from decentcomm.optim.flat import FlatLayout, by_dtype, is_dense
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
        self._warned = False
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
            increment_version(p)  # so that backward through an older graph is refused, as after any optimizer's step
        self._versions = [p._version for p in self.layout.params]

    def require_own(self, version: int, names: Mapping[int, str]) -> None:
        """Raise if a parameter was pointed elsewhere; warn, once, if it was written to since it was published."""
        for p, view, seen in zip(self.layout.params, self.views[version % 2], self._versions, strict=True):
            if p.data_ptr() != view.data_ptr():
                raise UnsupportedError(
                    f"{names[id(p)]} is no longer where this optimizer put it: was it moved, converted "
                    "(model.double()) or given to another optimizer? Do that first, then make the optimizer"
                )
            if p._version != seen and not self._warned:
                self._warned = True
                warnings.warn(
                    f"{names[id(p)]} was changed in place between steps, while neighbours may be reading it: "
                    "they mix the old or the new value. "
                    "Change parameters before the optimizer is made, or through gradients",
                    stacklevel=4,
                )

    def state_pointer(self, name: str, bucket: int) -> int:
        """Address of a bucket in a state buffer; 0 if this optimizer has no such buffer."""
        flat = self.state.get(name)
        return 0 if flat is None else flat.data_ptr() + self.layout.bucket_begin(bucket) * flat.element_size()

    def take_gradients(self, names: Mapping[int, str]) -> list[torch.Tensor | None]:
        """Note where the gradients are; returns them, since they must outlive the step."""
        self._grads = [_readable(p.grad, p, names) for p in self.layout.params]
        return self._grads

    def count_gradients(self) -> None:
        """Count a step for every parameter that has a gradient."""
        grads, self._grads = self._grads, []
        self.steps += torch.tensor([g is not None for g in grads], dtype=self.steps.dtype)
        self._steps = self.steps.tolist()
        self._pointers = [0 if g is None else g.data_ptr() for g in grads]

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
        self._averaging, self._failed, self._process = False, "", os.getpid()
        every = [p for group in self.param_groups for p in group["params"]]
        names = names_of(self.param_groups, module)
        settings = {"bucket_bytes": bucket_bytes, **self._settings(), **group_settings(self.param_groups)}
        dtypes = start_equal(type(self).__name__, every, names, module, settings)
        group_of = [g for g, group in enumerate(self.param_groups) for _ in group["params"]]
        self._partitions = [
            self._partition([every[i] for i in indices], [group_of[i] for i in indices], bucket_bytes, timeout)
            for indices in dtypes
        ]
        self._names = {id(p): name for p, name in zip(every, names, strict=True)}
        self._control.all_gather(b"")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Only at construction: the flat buffers are shared with other ranks by then."""
        if hasattr(self, "_partitions"):
            raise UnsupportedError("add_param_group after construction is not supported yet: make a new optimizer")
        super().add_param_group(param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Refused: a run is not resumed by it yet."""
        raise UnsupportedError("load_state_dict of a decentralized optimizer is not supported yet")

    @abstractmethod
    def _update(self, part: Partition, bucket: int, incoming: Incoming, table: TensorTable) -> None:
        """Mix `incoming` and update one bucket, by one kernel."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Mix with the neighbours and update, in one pass. Waits only if a neighbour is more than a step behind."""
        self._require_usable()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self._partitions:
            part.require_own(self.steps, self._names)
        alive = [part.take_gradients(self._names) for part in self._partitions]
        try:
            for part in self._partitions:
                self._step(part)
        except BaseException as e:
            self._failed = f"{type(e).__name__} at step {self.steps}"
            raise
        del alive
        self.steps += 1
        return loss

    def _step(self, part: Partition) -> None:
        t = self.steps
        part.count_gradients()
        for bucket in part.buckets:
            incoming = part.exchange.collect(bucket, t)
            self._update(part, bucket, incoming, part.table(bucket))
            part.exchange.publish(bucket, t + 1)
            part.exchange.release(bucket, t)
        part.point_to(t + 1)
        self._bytes += part.exchange.bytes_received(t)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside the with-block the parameters are the mean over all ranks; afterwards each replica is as it was.

        Collective.
        """
        self._require_usable()
        means = [part.layout.views(part.exchange.mean(self.steps)) for part in self._partitions]
        for part, views in zip(self._partitions, means, strict=True):
            for p, view in zip(part.layout.params, views, strict=True):
                p.data = view
        self._averaging = True
        try:
            yield
        finally:
            self._averaging = False
            for part in self._partitions:
                part.point_to(self.steps)

    def consensus_distance(self) -> float:
        """Sum over ranks of |x_i - mean|^2, relative to |mean|^2: 0 if all replicas are equal. Collective."""
        self._require_usable()
        apart = size = 0.0
        for part in self._partitions:
            mean = part.exchange.mean(self.steps)
            apart += float((part.exchange.flat(self.steps) - mean).double().square().sum())
            size += float(mean.double().square().sum())
        total = sum(float(d) for d in self._control.all_gather(repr(apart).encode()))
        return total / size if size > 0 else total

    def stats(self) -> dict[str, Any]:
        """Steps taken, bytes received from other ranks, and seconds waited for each of them."""
        waited = seconds_waited(part.exchange for part in self._partitions)
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

    def _settings(self) -> dict[str, Any]:
        """What, besides the param groups, must be equal on all ranks."""
        period = [self.topology.matrix(t).round(12).tobytes() for t in range(self.topology.period)]
        digest = hashlib.sha256(b"".join(period)).hexdigest()[:16]
        return {"topology": f"{self.topology!r} with weights {digest}"}

    def _require_usable(self) -> None:
        """Raise if this optimizer cannot go on."""
        if self._failed:
            raise UnsupportedError(
                f"a step failed before ({self._failed}), so this replica is incomplete; restart the run"
            )
        if self._process != os.getpid():
            raise UnsupportedError("this optimizer belongs to the parent process: a forked child must not step it")
        if self._averaging:
            raise UnsupportedError(
                "inside averaged() the parameters are the mean of all replicas: leave the block first"
            )


def _readable(grad: torch.Tensor | None, p: torch.Tensor, names: Mapping[int, str]) -> torch.Tensor | None:
    """The gradient as the kernel reads it: dtype and strides of the parameter; copied only if it is not so already."""
    if grad is None:
        return None
    if grad.layout != torch.strided:
        raise UnsupportedError(f"{names[id(p)]} has a {grad.layout} gradient; only dense ones are supported")
    if grad.dtype == p.dtype and grad.stride() == p.stride():
        return grad
    return torch.empty_strided(p.shape, p.stride(), dtype=p.dtype).copy_(grad)


def start_equal(
    optimizer: str,
    params: list[torch.Tensor],
    names: list[str],
    module: torch.nn.Module | None,
    settings: dict[str, Any],
) -> list[list[int]]:
    """Compare with all ranks, then make parameters and buffers equal to rank 0's; indices by dtype. Collective."""
    others = other_tensors(params, module)
    dtypes: list[list[int]] = []
    problem = ""
    try:
        dtypes = by_dtype(params, names)
        for name, tensor in others.items():
            if tensor.layout != torch.strided or not is_dense(tensor):
                raise UnsupportedError(
                    f"{name} is not a dense tensor (strides {tensor.stride()}); make it .contiguous()"
                )
    except UnsupportedError as e:
        problem = str(e)  # told to all ranks, so that none waits for this one
    every = [*params, *others.values()]
    own = describe(every, [*names, *others], {"optimizer": optimizer, **settings}, problem)
    require_agreement(own, control())
    broadcast(every, init(), control())
    return dtypes


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
