"""`Guarded`: may this be done now? What an optimizer asks before it steps, saves, or meets the other ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from decentcomm.errors import UnsupportedError
from decentcomm.optim.backward import InBackward


class Guarded:
    """Mixin of `Decentralized`: the states in which something must not be done, and the words for it."""

    steps: int

    def __init__(self) -> None:
        self._failed, self._process = "", os.getpid()
        self._showing = ""  # the block inside which parameters are not the replica's
        self._tell: Callable[[int], None] | None = None  # inside join(): who is told of each step
        self._in_backward: InBackward | None = None

    @contextmanager
    def _marked(self) -> Iterator[None]:
        """What fails inside leaves this replica incomplete."""
        try:
            yield
        except BaseException as e:
            self._failed = f"{type(e).__name__} at step {self.steps}"
            raise

    def _require_usable(self) -> None:
        """Raise if this optimizer cannot step."""
        if self._failed:
            raise UnsupportedError(
                f"a step failed before ({self._failed}), so this replica is incomplete: "
                "load a checkpoint on all ranks, or restart the run"
            )
        self._require_own_parameters()

    def _require_own_parameters(self) -> None:
        if self._process != os.getpid():
            raise UnsupportedError("this optimizer belongs to the parent process: a forked child must not use it")
        if self._showing:
            raise UnsupportedError(f"inside {self._showing} the parameters are not this rank's: leave the block first")

    def _require_no_half_step(self) -> None:
        if self._in_backward is not None and self._in_backward.started:
            raise UnsupportedError("backward has already updated some parameters (in_backward=True): call step() first")

    def _require_whole(self) -> None:
        """Raise if this optimizer cannot step, or is in the middle of one."""
        self._require_usable()
        self._require_no_half_step()

    def _require_together(self) -> None:
        """Raise if not all ranks can be expected to do the same now."""
        self._require_whole()
        if self._tell is not None:
            raise UnsupportedError("inside join() other ranks may be out of batches: leave the block first")

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise UnsupportedError("this optimizer shares memory with other ranks: copy its state_dict() instead")

    def __getstate__(self) -> NoReturn:
        raise UnsupportedError("this optimizer shares memory with other ranks: save its state_dict() instead")
