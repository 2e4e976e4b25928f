"""shm: ranks of one host. The flat buffers lie in shared memory, double-buffered; a neighbour reads them in place.

Start-up is collective: every rank creates its segment, learns the others' names through the control plane,
attaches, and when all are attached the names are removed. From then on only the native mailbox runs.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from decentcomm._C import Element, Environment, Geometry, Incoming, Mailbox, Segment, StepPlan
from decentcomm._world import LONGEST_TIMEOUT, World
from decentcomm.control import Control
from decentcomm.errors import ConfigError, UnsupportedError
from decentcomm.exchange.plan import RankPlan, rank_plan, uses_means
from decentcomm.topology import Topology

ELEMENTS = {torch.float32: Element.float32, torch.float64: Element.float64, torch.bfloat16: Element.bfloat16}


class ShmExchange:
    """An exchange over shared memory.

    Args:
        world: This rank's place; all ranks must be on one host.
        control: Used at start-up.
        topology: Who mixes with whom.
        buckets: Bytes of each bucket, multiples of 64.
        dtype: float32, float64 or bfloat16.
        timeout: Seconds after which a wait is an error; default: DECENTCOMM_TIMEOUT, else 300.
    """

    def __init__(
        self,
        world: World,
        control: Control,
        topology: Topology,
        buckets: Sequence[int],
        dtype: torch.dtype,
        timeout: float | None = None,
    ) -> None:
        self._world, self._topology = world, topology
        offsets = np.cumsum([0, *buckets]).tolist()
        self._mean_scale = 0 if not uses_means(topology) else 2 if dtype == torch.bfloat16 else 1
        self._geometry = Geometry(list(zip(offsets, buckets, strict=False)), self._mean_scale)
        self._segments = attach_all(self._geometry.segment_bytes, world, control)
        settings = Environment.get()
        seconds = settings.timeout_seconds if timeout is None else timeout
        if not 0 < seconds <= LONGEST_TIMEOUT:
            raise ConfigError(f"timeout={seconds} must be a number of seconds above 0 and at most {LONGEST_TIMEOUT:g}")
        crowded = world.size > len(os.sched_getaffinity(0))
        self._mailbox = Mailbox(
            world.rank,
            self._segments,
            self._geometry,
            ELEMENTS[dtype],
            spin=0.0 if crowded else settings.spin_microseconds * 1e-6,
            timeout=seconds,
        )
        # A storage for each slot: what is saved of a model is one slot, not the whole segment.
        count = self._geometry.flat_bytes // dtype.itemsize
        self._slots = [
            torch.frombuffer(
                self._segments[world.rank], dtype=dtype, count=count, offset=self._geometry.slot_offset(version)
            )
            for version in (0, 1)
        ]
        self._plans: dict[int, tuple[RankPlan, StepPlan]] = {}

    def flat(self, version: int) -> torch.Tensor:
        """This rank's slot for a version; versions v and v+2 share one."""
        return self._slots[version % 2]

    def restart(self, version: int) -> None:
        """See `Exchange`."""
        self._mailbox.restart(version)

    def publish(self, bucket: int, version: int) -> None:
        """See `Exchange`."""
        self._mailbox.publish(bucket, version)

    def collect(self, bucket: int, step: int, staleness: int = 0) -> Incoming:
        """See `Exchange`; raises DeadlineError."""
        return self._mailbox.collect(bucket, step, self._plan(step)[1], self._plan(max(step - 1, 0))[1], staleness)

    def release(self, bucket: int, step: int) -> None:
        """See `Exchange`."""
        self._mailbox.release(bucket, step)

    def average(self, bucket: int, step: int) -> None:
        """Make the mean over all ranks the next version of the bucket on each, and publish it.

        Each part of the mean is computed by one rank and written to all. All ranks call it for this step.
        """
        self._mailbox.average(bucket, step, range(self._world.size))
        self._mailbox.publish(bucket, step + 1)
        self._mailbox.release(bucket, step)

    def bytes_received(self, step: int) -> int:
        """One model for each rank or mean that is read; means of bfloat16 are float32."""
        plan = self._plan(step)[0]
        return (len(plan.direct) + self._mean_scale * len(plan.means)) * self._geometry.flat_bytes

    @property
    def waited(self) -> Mapping[int, float]:
        """Seconds waited for each other rank so far."""
        return {r: s for r, s in enumerate(self._mailbox.waited) if r != self._world.rank}

    def _plan(self, step: int) -> tuple[RankPlan, StepPlan]:
        t = step % self._topology.period
        if t not in self._plans:
            plan = rank_plan(self._topology, self._world.rank, t)
            native = StepPlan(plan.own, list(plan.direct), list(plan.means), list(plan.readers))
            self._plans[t] = plan, native
        return self._plans[t]


def attach_all(size: int, world: World, control: Control) -> list[Segment]:
    """A segment of `size` bytes on every rank, attached by all. Collective."""
    own = Segment.create(size)
    said = {"name": own.name, "bytes": size, "host": socket.gethostname()}
    everyone = [json.loads(data) for data in control.all_gather(json.dumps(said).encode())]
    hosts = {other["host"] for other in everyone}
    if len(hosts) > 1:
        raise UnsupportedError(f"shared memory joins the ranks of one host, but they are on {sorted(hosts)}")
    segments = [
        own if r == world.rank else Segment.attach(other["name"], other["bytes"]) for r, other in enumerate(everyone)
    ]
    control.all_gather(b"")
    own.unlink()
    return segments


def share(size: int, world: World, control: Control) -> Segment:
    """One segment of `size` bytes that all ranks attach. Collective."""
    own = Segment.create(size) if world.rank == 0 else None
    name = control.all_gather(own.name.encode() if own else b"")[0].decode()
    segment = own or Segment.attach(name, size)
    control.all_gather(b"")
    segment.unlink()
    return segment


def broadcast(tensors: Sequence[torch.Tensor], world: World, control: Control) -> None:
    """Make tensors equal to rank 0's, whatever their dtypes. Collective; shapes and dtypes must agree."""
    total = sum(t.numel() * t.element_size() for t in tensors)
    if world.size == 1 or total == 0:
        return
    memory = torch.frombuffer(share(total, world, control), dtype=torch.uint8)
    sizes = [t.numel() * t.element_size() for t in tensors]
    pieces = memory.split(sizes)  # type: ignore[no-untyped-call]
    for tensor, piece in zip(tensors, pieces, strict=True):
        if world.rank == 0:
            piece.copy_(tensor.detach().contiguous().reshape(-1).view(torch.uint8))
    control.all_gather(b"")
    for tensor, piece in zip(tensors, pieces, strict=True):
        if world.rank != 0:
            with torch.no_grad():
                tensor.copy_(piece.clone().view(tensor.dtype).view(tensor.shape))
    control.all_gather(b"")
