"""Watching a run: `TensorBoard` writes an optimizer's statistics, `WaitWatch` notices a rank that mostly waits."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

WINDOW = 20
"""Steps over which waiting is judged; the first window, with its compilation and first batches, does not count."""


class WaitWatch:
    """Warns, once, if more than `share` of a window's time went into waiting; None: never."""

    def __init__(self, share: float | None) -> None:
        self._share = share
        self._since: float | None = None
        self._waited: dict[int, float] = {}

    def look(self, steps: int, waited: Callable[[], Mapping[int, float]]) -> None:
        """After each step; `waited` tells the seconds waited for each rank so far."""
        if self._share is None or steps % WINDOW != 0:
            return
        now, total = time.perf_counter(), dict(waited())
        if self._since is not None:
            window = {rank: seconds - self._waited.get(rank, 0.0) for rank, seconds in total.items()}
            lost, elapsed = sum(window.values()), now - self._since
            if lost > self._share * elapsed:
                rank, most = max(window.items(), key=lambda item: item[1])
                warnings.warn(
                    f"{lost / elapsed:.0%} of the last {WINDOW} steps ({elapsed:.2g} s) went into waiting for other "
                    f"ranks, most of it ({most:.2g} s) for rank {rank}: is it slower, or given more work? "
                    "optimizer.stats() tells all; wait_warning= sets the share (now "
                    f"{self._share:.0%}) or silences this",
                    stacklevel=4,
                )
                self._share = None
        self._since, self._waited = now, total


class TensorBoard:
    """A step hook that writes `optimizer.stats()` to TensorBoard.

        optimizer.register_step_post_hook(dc.monitor.TensorBoard(f"runs/{dc.world().rank}"))

    Args:
        log: A directory, or a SummaryWriter (or anything with its add_scalar).
        every: Write at every n-th step.
        prefix: Of the names of the curves.
    """

    def __init__(self, log: Any, every: int = 10, prefix: str = "decentcomm") -> None:
        if not hasattr(log, "add_scalar"):
            from torch.utils.tensorboard import SummaryWriter

            log = SummaryWriter(log)  # type: ignore[no-untyped-call, unused-ignore]
        self.writer, self._every, self._prefix = log, every, prefix

    def __call__(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """After a step."""
        stats = optimizer.stats()  # type: ignore[attr-defined]
        step = stats["steps"]
        if step % self._every:
            return
        for name, value in stats.items():
            values = {f"{name}/rank {r}": v for r, v in value.items()} if isinstance(value, Mapping) else {name: value}
            for key, number in values.items():
                if number is not None and name != "steps":
                    self.writer.add_scalar(f"{self._prefix}/{key}", number, step)
