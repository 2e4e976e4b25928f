"""The control plane: small messages between all ranks at start-up and checkpoints, never in the training loop.

One operation, an all-gather of bytes, over whatever connected the ranks already: torch's store or MPI. Bytes only:
nothing that comes from another process is unpickled. Collective: every rank makes the same calls in the same order,
from one thread.
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Callable
from datetime import timedelta
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

from decentcomm.errors import MissingDependencyError, WorldError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


class Control(Protocol):
    """What every control plane can do."""

    def all_gather(self, data: bytes) -> list[bytes]:
        """Every rank's bytes, in rank order."""


class LoneControl:
    """A world of one."""

    def all_gather(self, data: bytes) -> list[bytes]:
        """What was given."""
        return [data]


class StoreControl:
    """Over a torch.distributed store: torchrun's, or that of an initialised process group."""

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        import torch.distributed as dist

        self._store: Any = dist.PrefixStore("decentcomm", store)  # type: ignore[attr-defined]
        self._rank, self._size, self._timeout = rank, size, timeout
        self._turn = 0

    def all_gather(self, data: bytes) -> list[bytes]:
        """Set the own key, wait for all others'; name the missing ranks if they do not come in time."""
        keys = [f"{self._turn}/{r}" for r in range(self._size)]
        self._store.set(keys[self._rank], data)
        # Not store.wait(): it cannot be interrupted.
        if not _poll(lambda: self._store.check(keys), self._timeout.total_seconds()):
            missing = [r for r, key in enumerate(keys) if not self._store.check([key])]
            raise WorldError(
                f"rank {self._rank} waited {self._timeout.total_seconds():g} s for ranks {missing} at control exchange "
                f"{self._turn}; did they start, and do they run the same script?"
            )
        gathered = [bytes(b) for b in self._store.multi_get(keys)]
        # Whoever is here has seen that all ranks finished the turn before: that one's key is no longer needed.
        if self._turn > 0:
            self._store.delete_key(f"{self._turn - 1}/{self._rank}")
        self._turn += 1
        return gathered


class MpiControl:
    """Over MPI, with a communicator of its own.

    Non-blocking calls, so that a rank that does not come is noticed; only MPI_Init itself has no deadline.
    """

    def __init__(self, size: int, launcher: str, timeout: timedelta) -> None:
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as e:
            raise MissingDependencyError(
                f"{launcher} started {size} ranks, but mpi4py cannot be loaded ({e}): pip install 'decentcomm[mpi]'"
            ) from e
        self._timeout = timeout.total_seconds()
        seen = MPI.COMM_WORLD.Get_size()
        if seen != size:
            library = MPI.Get_library_version().splitlines()[0].split(",")[0]
            raise WorldError(
                f"{launcher} started {size} ranks, but mpi4py sees {seen}: it uses another MPI library ({library}), "
                "or the variables were set by hand; use that library's mpirun, or reinstall mpi4py"
            )
        self._complete(MPI.COMM_WORLD.Ibarrier())  # Dup and Open MPI's Idup block: first see that everyone is here
        self._comm = MPI.COMM_WORLD.Dup()

    def all_gather(self, data: bytes) -> list[bytes]:
        """Lengths first, then the bytes."""
        lengths = array("q", [0] * self._comm.Get_size())
        self._complete(self._comm.Iallgather(array("q", [len(data)]), lengths))
        gathered = bytearray(sum(lengths))
        self._complete(self._comm.Iallgatherv(data, [gathered, lengths.tolist()]))
        ends = list(accumulate(lengths))
        return [bytes(gathered[end - n : end]) for end, n in zip(ends, lengths, strict=True)]

    def _complete(self, request: Any) -> None:
        if not _poll(request.Test, self._timeout):
            raise WorldError(
                f"an MPI rank waited {self._timeout:g} s for others at a control exchange; "
                "did all ranks get there, and do they run the same script?"
            )


def _poll(ready: Callable[[], bool], timeout: float) -> bool:
    """Look until it is ready, with naps that grow to a millisecond; False if the time is over."""
    start, nap = time.monotonic(), 0.0
    while not ready():
        if time.monotonic() - start > timeout:
            return False
        time.sleep(nap)
        nap = min(nap + 1e-5, 1e-3)
    return True


def torchrun_store(timeout: timedelta) -> Store:
    """The store that torchrun's agent (or, started by hand, rank 0) serves at MASTER_ADDR:MASTER_PORT."""
    import torch.distributed as dist

    try:
        store: Any = next(dist.rendezvous("env://", timeout=timeout))[0]  # type: ignore[attr-defined]
    except Exception as e:
        address = f"MASTER_ADDR={os.environ.get('MASTER_ADDR')} MASTER_PORT={os.environ.get('MASTER_PORT')}"
        raise WorldError(f"cannot reach the other ranks through {address}: {e}") from e
    return store  # type: ignore[no-any-return]


def process_group_store() -> Store:
    """The store behind the process group that the user's script initialised."""
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()
