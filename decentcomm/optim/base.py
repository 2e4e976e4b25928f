"""`Decentralized`: what every decentralized optimizer does, whatever its update rule.

A step is, for each bucket: collect what the neighbours published, mix and update in one kernel, publish. The kernel
writes the new parameters into the other of two slots, so after a step the parameters are views of that one. One
thread steps.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from decentcomm import topology as topologies
from decentcomm._C import Incoming
from decentcomm._world import control, init
from decentcomm.errors import UnsupportedError
from decentcomm.exchange import ShmExchange, mean_over_ranks
from decentcomm.exchange.base import seconds_waited
from decentcomm.monitor import WaitWatch
from decentcomm.optim import buffers as module_buffers
from decentcomm.optim import saving
from decentcomm.optim.agreement import group_settings, require_same_step
from decentcomm.optim.amp import Unscales
from decentcomm.optim.backward import InBackward
from decentcomm.optim.checks import check_options
from decentcomm.optim.ddp import QuietDDP
from decentcomm.optim.flat import FlatLayout
from decentcomm.optim.gradients import Gradients
from decentcomm.optim.guards import Guarded
from decentcomm.optim.joining import join
from decentcomm.optim.partition import Partition
from decentcomm.optim.start import names_of, start_equal
from decentcomm.topology import Topology

DEFAULT_TOPOLOGY = "one-peer-exponential"
"""One neighbour a step, the least that can travel, for any number of ranks; 2^k ranks agree exactly after k steps."""

BUCKET_BYTES = 25 * 2**20


class Decentralized(Guarded, Unscales, torch.optim.Optimizer):
    """Base of the decentralized optimizers. A subclass names its state buffers and calls its kernel.

    Construction is collective: parameters (and with `module` its buffers) become equal to rank 0's, and ranks that hold
    different models or settings are told so. So is the first step, and the first after `load_state_dict` and
    `add_param_group`: all ranks meet, and go on from what their parameters are then.

    Args:
        params: As for any torch optimizer.
        defaults: As for any torch optimizer.
        topology: A name or a `Topology`.
        module: The model, if its buffers shall be made equal too and errors shall name parameters as it does.
        bucket_bytes: Size at which a bucket is closed.
        timeout: Seconds after which a wait for a neighbour is an error; default: DECENTCOMM_TIMEOUT, else 300.
        wire_dtype: torch.bfloat16 halves what float32 parameters send; they and their state stay float32.
        max_grad_norm: Gradients are scaled down to this norm over all parameters, as clip_grad_norm_ does.
        nonfinite: What happens if a gradient is NaN or infinite; in either case no neighbour sees it. "raise": an
            error. "skip": this rank only mixes in this step; costs one more read of the gradients.
        in_backward: Update and publish each bucket in backward, as soon as its gradients are there, and free them.
        buffers: What buffers of `module` are inside `averaged()`: "average" over all ranks, or this rank's ("local").
        wait_warning: Warn, once, when more than this share of the time goes into waiting for neighbours; None: never.
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
        wire_dtype: torch.dtype | None = None,
        max_grad_norm: float | None = None,
        nonfinite: str = "raise",
        in_backward: bool = False,
        buffers: str = "average",
        wait_warning: float | None = 0.25,
    ) -> None:
        check_options(wire_dtype, max_grad_norm, nonfinite, in_backward, buffers)
        Guarded.__init__(self)
        torch.optim.Optimizer.__init__(self, params, defaults)
        self._world, self._control = init(), control()
        self.topology = topologies.make(topology) if isinstance(topology, str) else topology
        if self.topology.size != self._world.size:
            raise UnsupportedError(
                f"{self.topology!r} is for {self.topology.size} ranks, but there are {self._world.size}"
            )
        self.steps = 0
        self._bytes = 0
        self._met = False
        self._module, self._buffers, self._wire = module, buffers, wire_dtype
        self._bucket_bytes, self._timeout = bucket_bytes, timeout
        self._gradients = Gradients(max_grad_norm, nonfinite)
        self._watch = WaitWatch(wait_warning)
        self._names: dict[int, str] = {}
        self._partitions: list[Partition] = []
        options: dict[str, Any] = {
            "bucket_bytes": bucket_bytes,
            "wire_dtype": wire_dtype,
            "max_grad_norm": max_grad_norm,
        }
        options |= {"nonfinite": nonfinite, "in_backward": in_backward, "buffers": buffers}
        self._updates_in_backward = in_backward
        self._take_in(0, {**options, **self._settings()})
        self._in_backward = InBackward(self) if in_backward else None
        self._ddp = QuietDDP(p for part in self._partitions for p in part.layout.params)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As for any torch optimizer. After construction it is collective: all ranks add the same."""
        if not hasattr(self, "_partitions"):
            super().add_param_group(param_group)
            return
        self._require_whole()
        super().add_param_group(param_group)
        try:
            self._take_in(len(self.param_groups) - 1, {})
        except BaseException:
            self.param_groups.pop()
            raise

    def _take_in(self, first: int, settings: dict[str, Any]) -> None:
        """Make the parameters of the groups from `first` on equal on all ranks and views of flat buffers."""
        groups = self.param_groups[first:]
        every = [p for group in groups for p in group["params"]]
        group_of = [first + g for g, group in enumerate(groups) for _ in group["params"]]
        names = names_of(groups, self._module, first)
        # Whatever else the module has became equal at the start; later it is no longer.
        module = self._module if first == 0 else None
        dtypes = start_equal(type(self).__name__, every, names, module, {**settings, **group_settings(groups)})
        self._names |= {id(p): name for p, name in zip(every, names, strict=True)}
        for indices in dtypes:
            params = [every[i] for i in indices]
            wire = self._wire if params[0].dtype == torch.float32 else None
            layout = FlatLayout(params, self._bucket_bytes, wire)
            buckets = [elements * layout.wire.itemsize for elements in layout.buckets]
            exchange = ShmExchange(self._world, self._control, self.topology, buckets, layout.wire, self._timeout)
            part = Partition(
                layout,
                [group_of[i] for i in indices],
                exchange,
                self._state_names(),
                self._names,
                self._updates_in_backward,
            )
            self._partitions.append(part)
        saving.expose(self)
        self._met = False

    @abstractmethod
    def _update(self, part: Partition, bucket: int, incoming: Incoming, grad_scale: float) -> bool:
        """Mix `incoming` and update one bucket, by one kernel; gradients count times `grad_scale`.

        False if a new parameter is not finite.
        """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Mix with the neighbours and update, in one pass. Waits only if a neighbour is more than a step behind.

        Under `torch.amp.GradScaler`, which calls it also if gradients overflowed, this rank then only mixes.
        """
        self._require_usable()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._get_ready()
        if self._in_backward is None or not self._in_backward.started:
            self._require_own()
        todo = self._buckets()
        if self._in_backward is not None:
            todo = self._in_backward.left(todo)
        grad_scale = self._gradients.take(self, todo)
        with self._marked():
            for part, bucket in todo:
                self._step(part, bucket, grad_scale)
            self._finish()
        return loss

    def mix(self) -> None:
        """A step without gradients: mix with the neighbours, update nothing. Other ranks may call `step` meanwhile."""
        self._require_whole()
        self._get_ready()
        with torch.no_grad(), self._marked():
            for part, bucket in self._buckets():
                part.drop_gradients(bucket)
                self._step(part, bucket, 1.0)
            self._finish()

    def _buckets(self) -> list[tuple[Partition, int]]:
        return [(part, bucket) for part in self._partitions for bucket in part.buckets]

    def _require_own(self) -> None:
        for part in self._partitions:
            part.require_own(self.steps)

    def _step(self, part: Partition, bucket: int, grad_scale: float) -> None:
        """One bucket, whose gradients have been taken."""
        incoming = part.exchange.collect(bucket, self.steps)
        if not self._update(part, bucket, incoming, grad_scale):
            raise self._gradients.complaint(self.steps, [(part, bucket)])
        part.exchange.publish(bucket, self.steps + 1)
        part.exchange.release(bucket, self.steps)
        part.updated(bucket)

    def _finish(self) -> None:
        """All buckets are updated."""
        for part in self._partitions:
            part.point_to(self.steps + 1)
            self._bytes += part.exchange.bytes_received(self.steps)
        self.steps += 1
        if self._in_backward is not None:
            self._in_backward.arm()
        self._ddp.stop_looking()
        self._watch.look(self.steps, self._seconds_waited)
        if self._tell is not None:
            self._tell(self.steps)

    def _get_ready(self) -> None:
        """Before the first step: all ranks meet, and start from what their parameters are now."""
        if self._met:
            return
        require_same_step(self.steps, self._control)
        for part in self._partitions:
            part.start(self.steps)
        self._control.all_gather(b"")
        self._met = True

    def meet(self) -> None:
        """Call it on all ranks after changing parameters in place: all go on from what they are at the next step.

        Not needed before the first step and after `load_state_dict` and `add_param_group`.
        """
        self._require_whole()
        self._met = False

    def join(self) -> AbstractContextManager[None]:
        """Ranks may take different numbers of steps inside; whoever is done mixes on until all are. Collective.

        For several optimizers at once: `decentcomm.optim.join`.
        """
        return join(self)

    def _enter_join(self, tell: Callable[[int], None]) -> None:
        self._require_whole()
        self._get_ready()
        tell(self.steps)
        self._tell = tell

    def _leave_join(self) -> None:
        self._tell = None

    def accumulating(self) -> AbstractContextManager[None]:
        """With in_backward: inside, backward only accumulates gradients, for all but the last micro-batch of a step."""
        if self._in_backward is None:
            raise UnsupportedError("accumulating() is for in_backward=True: else call backward as often as you like")
        return self._in_backward.paused()

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside the with-block the parameters are the mean over all ranks; afterwards each replica is as it was.

        So are, with `module` and buffers="average", the model's buffers. Collective.
        """
        self._require_together()
        means = self._means()
        restore = module_buffers.average(self._module, self._buffers)
        try:
            with self._show("averaged()", means):
                yield
        finally:
            restore()

    @contextmanager
    def private(self) -> Iterator[None]:
        """Inside the with-block the parameters are a copy that no neighbour reads, to evaluate with other weights.

        Afterwards the replica is as it was.
        """
        self._require_whole()
        with self._show("private()", [part.wide(self.steps).clone() for part in self._partitions]):
            yield

    @contextmanager
    def _show(self, where: str, flats: list[torch.Tensor]) -> Iterator[None]:
        """Make the parameters views of these for a while."""
        for part, flat in zip(self._partitions, flats, strict=True):
            for p, view in zip(part.layout.params, part.layout.views(flat.to(part.layout.dtype)), strict=True):
                p.data = view
        self._showing = where
        try:
            yield
        finally:
            self._showing = ""
            for part in self._partitions:
                part.point_to(self.steps)

    def consensus_distance(self) -> float:
        """Sum over ranks of |x_i - mean|^2, relative to |mean|^2: 0 if all replicas are equal. Collective."""
        self._require_together()
        apart = size = 0.0
        for part, mean in zip(self._partitions, self._means(), strict=True):
            apart += float((part.wide(self.steps) - mean).double().square().sum())
            size += float(mean.double().square().sum())
        total = sum(float(d) for d in self._control.all_gather(repr(apart).encode()))
        return total / size if size > 0 else total

    def stats(self) -> dict[str, Any]:
        """Steps taken, bytes received, seconds waited for each rank, steps skipped, and the last gradient norm."""
        waited = self._seconds_waited()
        return {"steps": self.steps, "bytes": self._bytes, "seconds_waited": waited, **self._gradients.stats()}

    def _seconds_waited(self) -> dict[int, float]:
        return seconds_waited(part.exchange for part in self._partitions)

    def state_dict(self) -> dict[str, Any]:
        """As any torch optimizer's, and where in the topology this rank is. Local to the rank, as is what it holds.

        A run goes on bit for bit if every rank saves this and its model's state at the same step.
        """
        self._require_own_parameters()
        self._require_no_half_step()
        return saving.with_steps(super().state_dict(), self.steps)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` or torch's optimizer of the same rule returned; all ranks meet at the next step.

        Parameters are the model's to load, before or after. Also after a step has failed, if all ranks do it.
        """
        self._require_own_parameters()
        groups, self.steps = saving.load(self, self._partitions, state_dict)
        super().load_state_dict(groups)
        saving.expose(self)
        self._met, self._failed = False, ""
        if self._in_backward is not None:
            self._in_backward.arm()

    def _means(self) -> list[torch.Tensor]:
        """The mean over all ranks of every partition, in full precision. Collective."""
        self._get_ready()
        require_same_step(self.steps, self._control)
        return [mean_over_ranks(part.wide(self.steps)) for part in self._partitions]

    @abstractmethod
    def _state_names(self) -> tuple[str, ...]:
        """The flat buffers of state that the update needs beside the parameters."""

    def _settings(self) -> dict[str, Any]:
        """What, besides the param groups, must be equal on all ranks."""
        period = [self.topology.matrix(t).round(12).tobytes() for t in range(self.topology.period)]
        digest = hashlib.sha256(b"".join(period)).hexdigest()[:16]
        return {"topology": f"{self.topology!r} with weights {digest}"}
