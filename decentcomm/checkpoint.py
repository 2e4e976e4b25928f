"""Checkpoints of a decentralized run: every rank's replica, through torch.distributed.checkpoint, all or nothing.

A directory holds one folder for each checkpoint, in it one for each rank, and a file `latest` that names the newest
complete one. A checkpoint is written under another name, moved when every rank has written its part, and counts from
the moment `latest` is replaced: whatever happens before leaves the one before whole. All functions are collective;
ranks on several hosts need a directory that all of them see.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import torch
import torch.distributed.checkpoint
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from decentcomm._world import control, init
from decentcomm.errors import CheckpointError
from decentcomm.exchange.shm import broadcast
from decentcomm.optim.agreement import require_same_step

dcp: Any = torch.distributed.checkpoint  # untyped

FORMAT = 1
LATEST = "latest"


class Optimizer(Protocol):
    """What is asked of an optimizer: any of decentcomm.optim."""

    state: Mapping[torch.Tensor, Any]
    steps: int

    def state_dict(self) -> dict[str, Any]:
        """As torch's."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's."""

    def averaged(self) -> Any:
        """A context in which the model is the mean."""


def save(
    directory: str | os.PathLike[str],
    model: torch.nn.Module,
    optimizer: Optimizer,
    extra: dict[str, Any] | None = None,
    keep: int = 1,
) -> Path:
    """Save all ranks' replicas at the same step. Collective.

    Args:
        directory: Of the run.
        model: This rank's.
        optimizer: This rank's.
        extra: What else this rank needs to go on: scheduler, scaler, random states, the place in its data. Tensors,
            numbers, strings and containers of them.
        keep: How many complete checkpoints stay, this one included; at least 1.

    Returns:
        The folder of this checkpoint.
    """
    world, talk, root = init(), control(), Path(directory)
    require_same_step(optimizer.steps, talk)
    name = talk.all_gather(f".writing-{uuid.uuid4().hex}".encode())[0].decode()

    def write() -> None:
        part = root / name / f"rank-{world.rank}"
        part.mkdir(parents=True)
        values = _pack(model, optimizer, extra)
        with _alone():
            dcp.save(values, storage_writer=dcp.FileSystemWriter(part), no_dist=True)
        _sync(part)

    def commit() -> None:
        if world.rank == 0:
            run = json.dumps({"format": FORMAT, "size": world.size, "steps": optimizer.steps})
            _write(root / name / "run.json", lambda file: file.write(run.encode()))
            _sync(root / name)
            _commit(root, name, f"step-{optimizer.steps:08d}", max(keep, 1))

    _together(write, "write its part of the checkpoint", lambda: _remove(root / name, world.rank))
    _together(commit, "complete the checkpoint", lambda: None)
    return root / (root / LATEST).read_text()


def load(directory: str | os.PathLike[str], model: torch.nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Load the newest complete checkpoint. Collective.

    On as many ranks as saved it every rank goes on bit for bit. On another number all start from the mean over the
    saved ranks, of parameters, buffers and moments.

    Returns:
        This rank's `extra`; on another number of ranks that of rank 0.
    """
    world, root = init(), Path(directory)
    found: dict[str, Any] = {}

    def read() -> None:
        folder = newest(root)
        size = json.loads((folder / "run.json").read_text())["size"]
        found["same"] = size == world.size
        if found["same"]:
            found["values"] = _read(folder / f"rank-{world.rank}")
        else:
            replicas = (_read(folder / f"rank-{r}") for r in range(size if world.rank == 0 else 1))
            found["values"] = _mean(replicas, size) if world.rank == 0 else next(replicas)

    _together(read, f"read a checkpoint from {root}", lambda: None)
    values: dict[str, torch.Tensor] = found["values"]
    if not found["same"]:  # rank 0 has the mean; the others have something of the same shapes, but for the blob
        values["blob"] = _equal_length(values["blob"])
        broadcast([values[key] for key in sorted(values)], world, control())
    extra = _unpack(values, model, optimizer)
    if not found["same"]:
        with torch.no_grad():
            for p, state in optimizer.state.items():
                if "master" in state:  # the mean of masters is finer than that of bfloat16 parameters
                    p.copy_(state["master"])
    return extra


def newest(directory: str | os.PathLike[str]) -> Path:
    """The folder of the newest complete checkpoint."""
    root = Path(directory)
    if not (root / LATEST).exists():
        raise CheckpointError(f"{root} has no complete checkpoint: there is no file {LATEST}")
    return root / (root / LATEST).read_text()


def mean_state_dict(model: torch.nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """The mean model as a plain state_dict, in memory of its own. Collective."""
    with optimizer.averaged():
        return {
            key: value.detach().clone() if isinstance(value, torch.Tensor) else value
            for key, value in model.state_dict().items()
        }


def export(path: str | os.PathLike[str], model: torch.nn.Module, optimizer: Optimizer) -> None:
    """Write the mean model as a plain state_dict for torch.load(path); decentcomm is not needed there. Collective."""
    mean, target = mean_state_dict(model, optimizer), Path(path)

    def write() -> None:
        if init().rank == 0:
            _write(target, lambda file: torch.save(mean, file))

    _together(write, f"export to {target}", lambda: None)


def _pack(model: torch.nn.Module, optimizer: Optimizer, extra: dict[str, Any] | None) -> dict[str, torch.Tensor]:
    """Everything as named tensors; what is none goes into one of bytes."""
    values: dict[str, torch.Tensor] = {}
    rest: dict[str, Any] = {"extra": extra or {}, "model": {}}
    for key, value in model.state_dict().items():
        if isinstance(value, torch.Tensor):
            values[f"model/{key}"] = value.detach()
        else:
            rest["model"][key] = value
    state = optimizer.state_dict()
    for number, entries in state["state"].items():
        for key, value in entries.items():
            values[f"optimizer/{number}/{key}"] = torch.as_tensor(value)
    rest["optimizer"] = {key: value for key, value in state.items() if key != "state"}
    data = io.BytesIO()
    torch.save(rest, data)
    torch.load(io.BytesIO(data.getvalue()), weights_only=True)  # what could not be loaded is refused now
    values["blob"] = torch.frombuffer(bytearray(data.getvalue()), dtype=torch.uint8)
    return values


def _unpack(values: dict[str, torch.Tensor], model: torch.nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    rest = torch.load(io.BytesIO(values["blob"].numpy().tobytes()), weights_only=True)
    state: dict[int, dict[str, torch.Tensor]] = {}
    parameters: dict[str, Any] = dict(rest["model"])
    for name, value in values.items():
        kind, _, key = name.partition("/")
        if kind == "model":
            parameters[key] = value
        elif kind == "optimizer":
            number, _, entry = key.partition("/")
            state.setdefault(int(number), {})[entry] = value
    model.load_state_dict(parameters)
    optimizer.load_state_dict({"state": state, **rest["optimizer"]})
    extra: dict[str, Any] = rest["extra"]
    return extra


def _read(part: Path) -> dict[str, torch.Tensor]:
    reader = dcp.FileSystemReader(part)
    entries = reader.read_metadata().state_dict_metadata
    values = {
        key: torch.empty(entry.size, dtype=entry.properties.dtype)
        for key, entry in entries.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    with _alone():
        dcp.load(values, storage_reader=reader, no_dist=True)
    return values


@contextmanager
def _alone() -> Iterator[None]:
    """Each rank writes and reads its own part, on purpose."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        yield


def _mean(replicas: Iterator[dict[str, torch.Tensor]], size: int) -> dict[str, torch.Tensor]:
    """The mean of all floating-point values; of others the first."""
    first = next(replicas)
    sums = {key: value.double() for key, value in first.items() if value.is_floating_point()}
    for other in replicas:
        for key, total in sums.items():
            total.add_(other[key])
    means = {key: (total / size).to(first[key].dtype) for key, total in sums.items()}
    counts = {key: value.round() for key, value in means.items() if key.endswith("/step")}
    return {**first, **means, **counts}


def _equal_length(blob: torch.Tensor) -> torch.Tensor:
    """Room for rank 0's, so that it can be broadcast."""
    length = int(control().all_gather(str(blob.numel()).encode())[0])
    return blob if init().rank == 0 else torch.empty(length, dtype=torch.uint8)


def _commit(root: Path, written: str, name: str, keep: int) -> None:
    """Rank 0: give the folder its name, point `latest` to it, remove what is no longer kept."""
    before = (root / LATEST).read_text() if (root / LATEST).exists() else ""
    names = [name, *(f"{name}-{i}" for i in range(1, 1000))]
    final = next(n for n in names if not (root / n).exists())
    (root / written).rename(root / final)
    _sync(root)
    _write(root / LATEST, lambda file: file.write(final.encode()))
    _sync(root)
    complete = sorted(root.glob("step-*"), key=lambda folder: (folder.name == before, folder.stat().st_mtime))
    old = [folder for folder in complete if folder.name != final]
    for folder in [*old[: max(len(old) + 1 - keep, 0)], *root.glob(".writing-*")]:
        shutil.rmtree(folder, ignore_errors=True)


def _write(target: Path, fill: Callable[[BinaryIO], object]) -> None:
    """A whole file or none: written beside the target, on disk before it takes its place."""
    beside = target.with_name(f".{target.name}-{uuid.uuid4().hex}")
    try:
        with beside.open("wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    """What was renamed in the folder survives a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(folder: Path, rank: int) -> None:
    if rank == 0:
        shutil.rmtree(folder, ignore_errors=True)


def _together(act: Callable[[], None], what: str, otherwise: Callable[[], None]) -> None:
    """All ranks act; if one cannot, all raise and say which and why, so that none goes on alone."""
    problem = ""
    try:
        act()
    except Exception as e:
        problem = f"{type(e).__name__}: {e}"
    problems = [p.decode() for p in control().all_gather(problem.encode())]
    bad = [r for r, p in enumerate(problems) if p]
    if bad:
        otherwise()
        raise CheckpointError(f"rank {bad[0]} could not {what}: {problems[bad[0]]}")
