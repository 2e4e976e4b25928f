"""Flat buffers: parameters of one dtype become views of a flat buffer, in buckets, in reverse order of use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from decentcomm.errors import UnsupportedError
from decentcomm.exchange.shm import ELEMENTS

LINE = 64
"""Bytes to which every parameter is padded: a cache line, and a whole number of vectors."""


@dataclass(frozen=True)
class Place:
    """Where a parameter is: `offset` and `count` in elements, `offset` from the begin of the flat buffer."""

    index: int
    bucket: int
    offset: int
    count: int


class FlatLayout:
    """Places of parameters of one dtype.

    Args:
        params: The parameters, in order of use.
        bucket_bytes: A bucket is closed when it has reached this size, in the dtype of the parameters.
        wire: The dtype in which they travel, if another.

    Attributes:
        buckets: Elements of each bucket.
        size: Elements in all.
    """

    def __init__(self, params: Sequence[torch.Tensor], bucket_bytes: int, wire: torch.dtype | None = None) -> None:
        self.params = list(params)
        self.dtype = self.params[0].dtype
        self.wire = wire or self.dtype
        line = LINE // min(self.dtype.itemsize, self.wire.itemsize)
        self.places: list[Place] = []
        self.buckets: list[int] = []
        offset = filled = 0
        for index in reversed(range(len(self.params))):
            count = self.params[index].numel()
            padded = -(-max(count, 1) // line) * line
            self.places.append(Place(index, len(self.buckets), offset, count))
            offset += padded
            filled += padded
            if filled * self.dtype.itemsize >= bucket_bytes:
                self.buckets.append(filled)
                filled = 0
        if filled:
            self.buckets.append(filled)
        self.places.sort(key=lambda place: place.index)
        self.size = offset

    def bucket_places(self, bucket: int) -> list[Place]:
        """The parameters of a bucket, in the order in which they lie."""
        return sorted((p for p in self.places if p.bucket == bucket), key=lambda p: p.offset)

    def bucket_begin(self, bucket: int) -> int:
        """First element of a bucket."""
        return sum(self.buckets[:bucket])

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """A view of `flat` for each parameter, with the parameter's shape and strides."""
        return [
            flat[place.offset : place.offset + place.count].as_strided(
                p.shape, p.stride(), flat.storage_offset() + place.offset
            )
            for p, place in zip(self.params, self.places, strict=True)
        ]


def by_dtype(params: Sequence[torch.Tensor], names: Sequence[str]) -> list[list[int]]:
    """Indices of the parameters of each dtype; refuses, with its name, what cannot be held."""
    groups: dict[torch.dtype, list[int]] = {}
    for i, (p, name) in enumerate(zip(params, names, strict=True)):
        if p.device.type != "cpu":
            raise UnsupportedError(
                f"{name} is on {p.device}: this version trains on CPUs; move the model with .to('cpu')"
            )
        if p.dtype not in ELEMENTS:
            supported = "float32, float64 and bfloat16 are supported"
            raise UnsupportedError(f"{name} is {p.dtype}: {supported}; convert it with .float()")
        if p.layout != torch.strided or not is_dense(p):
            raise UnsupportedError(f"{name} is not a dense tensor (strides {p.stride()}); make it .contiguous()")
        groups.setdefault(p.dtype, []).append(i)
    _require_apart(params, names)
    return list(groups.values())


def _require_apart(params: Sequence[torch.Tensor], names: Sequence[str]) -> None:
    """Raise if two of them share memory."""
    ranges = [(p.data_ptr(), p.data_ptr() + p.nbytes, name) for p, name in zip(params, names, strict=True) if p.nbytes]
    for (_, end, first), (begin, _, second) in pairwise(sorted(ranges, key=lambda r: r[0])):
        if begin < end:
            raise UnsupportedError(f"{first} and {second} share memory: give tied weights as one Parameter, once")


def is_dense(p: torch.Tensor) -> bool:
    """True if the tensor fills its memory without gaps or overlaps, in whatever order of dimensions."""
    if p.numel() == 0:
        return True
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(p.stride(), p.shape, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True
