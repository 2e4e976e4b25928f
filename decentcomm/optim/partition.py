"""`Partition`: the parameters of one dtype, the flat buffer that they are views of, and the state beside it.

Parameters lie in the slots of the exchange, two of them, and move to the other one at each step. What travels as
bfloat16 has a master besides: a private flat buffer in float32, while the slots get it rounded. Parameters in float32
are then views of the master, parameters in bfloat16 views of the slots.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch
from torch.autograd.graph import increment_version

from decentcomm._C import TensorTable
from decentcomm.errors import UnsupportedError
from decentcomm.exchange import Exchange
from decentcomm.exchange.shm import ELEMENTS
from decentcomm.optim.flat import FlatLayout


class Partition:
    """The parameters of one dtype that came together.

    Args:
        layout: Their places.
        groups: Index of each one's param group.
        exchange: Carries the flat buffer.
        state_names: Flat buffers that the update rule wants.
        names: What to call each parameter, by id.
        in_backward: Parameters may be read while they are updated: a master that they are views of becomes two, too.
    """

    def __init__(
        self,
        layout: FlatLayout,
        groups: list[int],
        exchange: Exchange,
        state_names: tuple[str, ...],
        names: Mapping[int, str],
        in_backward: bool = False,
    ) -> None:
        self.layout, self.exchange, self._names = layout, exchange, names
        self.buckets = range(len(layout.buckets))
        narrow = layout.wire == torch.bfloat16
        self.in_slots = not narrow or layout.dtype == torch.bfloat16
        masters = 0 if not narrow else 1 if self.in_slots or not in_backward else 2
        self._masters = [torch.zeros(layout.size) for _ in range(masters)]
        wide = torch.float32 if narrow else layout.dtype
        self.state = {name: torch.zeros(layout.size, dtype=wide) for name in state_names}
        if self._masters and self.in_slots:
            self.state["master"] = self._masters[0]
        self.state_views = {name: layout.views(flat) for name, flat in self.state.items()}
        self.steps = torch.zeros(len(layout.params))  # updates of each parameter
        self._counts = self.steps.numpy()  # the same memory
        self._views = [layout.views(self._home(version)) for version in (0, 1)]
        self._places = [layout.bucket_places(b) for b in self.buckets]
        self._indices = [[place.index for place in places] for places in self._places]
        self._grads: list[list[torch.Tensor | None]] = [[] for _ in self.buckets]
        self._tables = [
            TensorTable(
                [p.offset - layout.bucket_begin(b) for p in places],
                [p.count for p in places],
                [groups[p.index] for p in places],
                ELEMENTS[layout.dtype],
            )
            for b, places in enumerate(self._places)
        ]
        ends = [[p.offset, p.offset + p.count - 1] for p in layout.places if p.count]
        self._sampled = torch.tensor(ends, dtype=torch.int64).view(-1)
        self._versions: list[int] = []
        self._warned = False
        for p, view in zip(layout.params, self._views[0], strict=True):
            view.copy_(p.detach())
        if "master" in self.state:
            self.state["master"].copy_(exchange.flat(0))
        self.point_to(0)

    def wide(self, version: int) -> torch.Tensor:
        """The flat buffer in full precision."""
        return self._masters[version % len(self._masters)] if self._masters else self.exchange.flat(version)

    def _home(self, version: int) -> torch.Tensor:
        """The flat buffer that parameters are views of."""
        return self.exchange.flat(version) if self.in_slots else self.wide(version)

    def start(self, version: int) -> None:
        """Whatever the parameters are now becomes `version`, complete. All ranks, between two barriers."""
        for p, view, name in zip(self.layout.params, self._views[version % 2], self.names(), strict=True):
            if p.dtype != view.dtype or p.shape != view.shape or p.stride() != view.stride():
                raise UnsupportedError(
                    f"{name} was converted after the optimizer was made, from {view.dtype} {tuple(view.shape)} with "
                    f"strides {view.stride()} to {p.dtype} {tuple(p.shape)} with strides {p.stride()}: "
                    "convert the model first, then make the optimizer"
                )
            if p.data_ptr() != view.data_ptr():
                view.copy_(p.detach())
        if self.in_slots:
            self._refresh_master(version)
        else:
            self.exchange.flat(version).copy_(self.wide(version))
        self.point_to(version, changed=False)  # this may be in the middle of the first backward
        self.exchange.restart(version)

    def point_to(self, version: int, changed: bool = True) -> None:
        """Make the parameters views of what holds `version`.

        If they changed, backward through an older graph is refused, as after any optimizer's step.
        """
        for p, view in zip(self.layout.params, self._views[version % 2], strict=True):
            if p.data_ptr() != view.data_ptr():
                p.data = view
            if changed:
                increment_version(p)
        self._versions = [p._version for p in self.layout.params]
        self._sample = self._home(version).index_select(0, self._sampled)

    def _refresh_master(self, version: int) -> None:
        """What was loaded or changed in place wins over the old master."""
        if self._masters:
            slot, master = self.exchange.flat(version), self._masters[0]
            stale = master.to(slot.dtype) != slot
            master[stale] = slot[stale].float()

    def require_own(self, version: int) -> None:
        """Raise if a parameter was pointed elsewhere; warn, once, if it was written to since it was published.

        Writing through p.data leaves no trace but the values: the first and last of each parameter are looked at.
        """
        changed = []
        for p, view, seen in zip(self.layout.params, self._views[version % 2], self._versions, strict=True):
            if p.data_ptr() != view.data_ptr():
                raise UnsupportedError(
                    f"{self.name(p)} is no longer where this optimizer put it: was it moved, converted "
                    "(model.double()) or given to another optimizer? Do that first, then make the optimizer"
                )
            if p._version != seen:
                changed.append(self.name(p))
        differs = self._home(version).index_select(0, self._sampled) != self._sample
        if bool(differs.any()):
            filled = [name for name, place in zip(self.names(), self.layout.places, strict=True) if place.count]
            changed += [filled[i // 2] for i in differs.nonzero().view(-1).tolist()]
        if not changed:
            return
        if self.in_slots:
            self._refresh_master(version)
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{changed[0]} was changed in place between steps, while neighbours may be reading it: they mix the "
                "old or the new value. If all ranks change parameters on purpose, call meet() then; to evaluate with "
                "other values, use `with optimizer.private():`",
                stacklevel=4,
            )

    def name(self, p: torch.Tensor) -> str:
        """What to call a parameter."""
        return self._names[id(p)]

    def names(self) -> list[str]:
        """What to call each parameter."""
        return [self.name(p) for p in self.layout.params]

    def state_pointer(self, name: str, bucket: int) -> int:
        """Address of a bucket in a state buffer; 0 if there is no such buffer."""
        return self._pointer(self.state.get(name), bucket)

    def master_pointers(self, bucket: int, step: int) -> tuple[int, int]:
        """Address of a bucket in the master before and after a step; 0 if there is none."""
        before, after = (self.wide(v) if self._masters else None for v in (step, step + 1))
        return self._pointer(before, bucket), self._pointer(after, bucket)

    def take_gradients(self, bucket: int) -> None:
        """Note where the bucket's gradients are now, and keep them alive until it is updated."""
        self._grads[bucket] = [self._readable(p) for p in self.params(bucket)]
        self._fill_table(bucket)

    def drop_gradients(self, bucket: int) -> None:
        """Update nothing in this bucket: it is only mixed."""
        self._grads[bucket] = [None] * len(self._places[bucket])
        self._fill_table(bucket)

    def updated(self, bucket: int) -> None:
        """Count a step for every parameter that had a gradient, and let the gradients go."""
        self._counts[self._indices[bucket]] += [grad is not None for grad in self._grads[bucket]]
        self._grads[bucket] = []

    def table(self, bucket: int) -> TensorTable:
        """The tensors of a bucket with the gradients that were taken."""
        return self._tables[bucket]

    def params(self, bucket: int) -> list[torch.Tensor]:
        """The parameters of a bucket."""
        return [self.layout.params[i] for i in self._indices[bucket]]

    def _fill_table(self, bucket: int) -> None:
        grads = self._grads[bucket]
        steps = self._counts[self._indices[bucket]] + [grad is not None for grad in grads]
        pointers = [0 if grad is None else grad.data_ptr() for grad in grads]
        self._tables[bucket].set(pointers, steps.tolist(), [not p.requires_grad for p in self.params(bucket)])

    def _pointer(self, flat: torch.Tensor | None, bucket: int) -> int:
        return 0 if flat is None else flat.data_ptr() + self.layout.bucket_begin(bucket) * flat.element_size()

    def _readable(self, p: torch.Tensor) -> torch.Tensor | None:
        """The gradient as the kernel reads it: dtype and strides of the parameter; copied only if it is not so."""
        grad = p.grad
        if grad is None or not p.requires_grad:
            return None
        if grad.layout != torch.strided:
            raise UnsupportedError(f"{self.name(p)} has a {grad.layout} gradient; only dense ones are supported")
        if grad.dtype == p.dtype and grad.stride() == p.stride():
            return grad
        return torch.empty_strided(p.shape, p.stride(), dtype=p.dtype).copy_(grad)
