"""`join`: ranks that run out of batches at different times.

A board in shared memory says how many steps each rank has taken and whether it is done. Whoever is done takes a step
without gradients whenever another rank has taken one more than it, so nobody waits for a rank that has no data.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch

from decentcomm._C import Environment
from decentcomm._world import control, init
from decentcomm.errors import DeadlineError
from decentcomm.exchange.shm import share

if TYPE_CHECKING:
    from decentcomm.optim.base import Decentralized

NAP = 2e-4
"""Seconds between two looks at the board: little beside a step, nothing for a core."""


@contextmanager
def join(*optimizers: Decentralized) -> Iterator[None]:
    """Ranks may take different numbers of steps inside; whoever is done mixes on until all are. Collective.

    Evaluation and checkpoints, which all ranks make together, belong outside.
    """
    world, rows = init(), len(optimizers)
    memory = share(8 * (rows + 1) * world.size, world, control())
    *taken, done = torch.frombuffer(memory, dtype=torch.int64).view(rows + 1, world.size).numpy()
    for optimizer, row in zip(optimizers, taken, strict=True):
        optimizer._enter_join(partial(row.__setitem__, world.rank))
    control().all_gather(b"")
    try:
        yield
        done[world.rank] = 1
        limit = Environment.get().timeout_seconds if optimizers[0]._timeout is None else optimizers[0]._timeout
        deadline = time.monotonic() + limit
        while True:
            all_done = bool(done.all())  # before looking at `taken`, which is final then
            behind = [o for o, row in zip(optimizers, taken, strict=True) if row.max() > o.steps]
            if behind:
                behind[0].mix()
                deadline = time.monotonic() + limit
            elif all_done:
                return
            elif time.monotonic() > deadline:
                late = {r: int(taken[0][r]) for r in range(world.size) if not done[r]}
                raise DeadlineError(
                    f"rank {world.rank} is out of batches and waited {limit:g} s at step {optimizers[0].steps} for "
                    f"ranks that are not, at steps {late}; did they die or hang? DECENTCOMM_TIMEOUT sets the deadline"
                )
            else:
                time.sleep(NAP)
    finally:
        for optimizer in optimizers:
            optimizer._leave_join()
