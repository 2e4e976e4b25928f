"""`join()`: ranks that run out of batches at different times.

A board in shared memory says how many steps each rank has taken and whether it is done. Whoever is done takes a step
without gradients whenever another rank has taken one more than it, so nobody waits for a rank that has no data.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from decentcomm._C import Environment
from decentcomm._world import World
from decentcomm.control import Control
from decentcomm.errors import DeadlineError
from decentcomm.exchange.shm import share

if TYPE_CHECKING:
    from decentcomm.optim.base import Decentralized

NAP = 2e-4
"""Seconds between two looks at the board: little beside a step, nothing for a core."""


@contextmanager
def joined(optimizer: Decentralized, world: World, control: Control, timeout: float | None) -> Iterator[None]:
    """See `Decentralized.join`."""
    board = torch.frombuffer(share(16 * world.size, world, control), dtype=torch.int64).view(2, world.size)
    taken, done = board.numpy()
    taken[world.rank] = optimizer.steps
    control.all_gather(b"")

    def tell() -> None:
        taken[world.rank] = optimizer.steps

    optimizer._after_step.append(tell)
    try:
        yield
        done[world.rank] = 1
        limit = Environment.get().timeout_seconds if timeout is None else timeout
        deadline = time.monotonic() + limit
        while True:
            all_done = bool(done.all())  # before looking at `taken`, which is final then
            if taken.max() > optimizer.steps:
                optimizer.mix()
                deadline = time.monotonic() + limit
            elif all_done:
                return
            elif time.monotonic() > deadline:
                late = {r: int(taken[r]) for r in range(world.size) if not done[r]}
                raise DeadlineError(
                    f"rank {world.rank} is out of batches and waited {limit:g} s at step {optimizer.steps} for ranks "
                    f"that are not, at steps {late}; did they die or hang? DECENTCOMM_TIMEOUT sets the deadline"
                )
            else:
                time.sleep(NAP)
    finally:
        optimizer._after_step.remove(tell)
