"""The contract of every exchange: publish, collect, release, on versions of a flat buffer in buckets.

Version v is complete after step v-1; version 0 is the start. Step t reads version t of the neighbours and writes
version t+1. One thread calls an exchange.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import torch

from decentcomm._C import Incoming


class Exchange(Protocol):
    """Moves one flat buffer between neighbours."""

    def flat(self, version: int) -> torch.Tensor:
        """This rank's flat buffer of a version: where it is read and where it is written."""

    def restart(self, version: int) -> None:
        """Start anew at `version`, which is complete in `flat(version)`: all ranks, between two barriers."""

    def publish(self, bucket: int, version: int) -> None:
        """The bucket is complete as `version`. Never blocks."""

    def collect(self, bucket: int, step: int, staleness: int = 0) -> Incoming:
        """Wait until what `step` needs of the neighbours is there and the next version may be written.

        With staleness 0 that is version `step`; else the newest complete version, at least step - staleness. The same
        on all ranks and steps of a run. A bfloat16 buffer's weights add up to 0: the sum is added to a master.
        """

    def release(self, bucket: int, step: int) -> None:
        """What `step` needed of the bucket has been read."""

    def bytes_received(self, step: int) -> int:
        """Bytes that this rank reads of others at `step`."""

    @property
    def waited(self) -> Mapping[int, float]:
        """Seconds waited for each other rank so far."""


def seconds_waited(exchanges: Iterable[Exchange]) -> dict[int, float]:
    """Seconds waited for each other rank, over several exchanges."""
    waited: dict[int, float] = {}
    for exchange in exchanges:
        for rank, seconds in exchange.waited.items():
            waited[rank] = waited.get(rank, 0.0) + seconds
    return waited
