"""Who and where this process is: `init` finds it out once, `world` tells it.

`init` is collective: all ranks gather each other's host and place, so nodes may hold different numbers of ranks in
any order, and ranks that disagree are told so. torch and MPI are imported only here and only if there is more than
one rank.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from decentcomm.control import (
    Control,
    LoneControl,
    MpiControl,
    StoreControl,
    process_group_store,
    torchrun_store,
)
from decentcomm.errors import WorldError
from decentcomm.launch import (
    ALONE,
    TORCHRUN,
    Launcher,
    Placement,
    detect,
    require_agreement,
    require_master,
    told_by,
)


@dataclass(frozen=True)
class World:
    """This process's place among all.

    Attributes:
        rank: Number of this process, 0 <= rank < size.
        size: Number of processes.
        local_rank: Number of this process on its node.
        local_size: Number of processes on this node.
        node: Number of this node; nodes are numbered by their lowest rank.
        nodes: Number of nodes.
        layout: The ranks of each node.
        launcher: Who started the processes: torchrun, mpirun (Open MPI), mpirun (MPICH), torch.distributed, or alone.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    node: int
    nodes: int
    layout: tuple[tuple[int, ...], ...]
    launcher: str


LONGEST_TIMEOUT = 1e8
"""Three years: what torch's stores can still count."""


@dataclass
class _State:
    world: World | None = None
    control: Control | None = None


_state = _State()


def init(*, timeout: float | None = None) -> World:
    """Find out rank, size, node and the others, under torchrun, mpirun, inside torch.distributed or alone.

    Collective over all ranks. A second call returns the same world.

    Args:
        timeout: Seconds to wait for the other ranks; default: DECENTCOMM_TIMEOUT, else 300.
    """
    if _state.world is None:
        from decentcomm._C import Environment

        seconds = Environment.get().timeout_seconds if timeout is None else timeout
        if not 0 < seconds <= LONGEST_TIMEOUT:
            raise WorldError(f"timeout={seconds} must be a number of seconds above 0 and at most {LONGEST_TIMEOUT:g}")
        said, name = _placement(os.environ)
        control = _connect(said, name, timedelta(seconds=seconds))
        _state.world, _state.control = _agree(said, name, control), control
    return _state.world


def world() -> World:
    """What `init` found."""
    if _state.world is None:
        raise WorldError("decentcomm.init() has not been called: call it once at the start of the script")
    return _state.world


def initialised() -> bool:
    """True after `init`."""
    return _state.world is not None


def control() -> Control:
    """The control plane that `init` connected."""
    world()
    assert _state.control is not None
    return _state.control


def _placement(env: Mapping[str, str]) -> tuple[Placement, str]:
    """This process's place, and who knows it: an initialised process group goes before the environment."""
    dist: Any = sys.modules.get("torch.distributed")  # whoever initialised it has imported it
    if dist is None or not dist.is_available() or not dist.is_initialized():
        said = detect(env)
        return said, said.launcher.name
    rank, size, name = dist.get_rank(), dist.get_world_size(), "torch.distributed"
    said = detect(env)
    if said.launcher is ALONE:
        return Placement(told_by(name), rank, size), name
    require_agreement(said, rank, size, name)
    return said, name


def _connect(said: Placement, name: str, timeout: timedelta) -> Control:
    if said.size == 1:
        return LoneControl()
    if name == "torch.distributed":
        return StoreControl(process_group_store(), said.rank, said.size, timeout)
    if said.launcher is TORCHRUN:
        require_master(os.environ, said)
        return StoreControl(torchrun_store(timeout), said.rank, said.size, timeout)
    return MpiControl(said.size, name, timeout)


def _agree(said: Placement, name: str, control: Control) -> World:
    """Put everyone's placement together; raise if they do not fit."""
    own = {**asdict(said), "launcher": said.launcher.name, "host": socket.gethostname()}
    everyone = [json.loads(data) for data in control.all_gather(json.dumps(own).encode())]
    names = said.launcher
    for r, other in enumerate(everyone):
        if other["rank"] != r or other["size"] != said.size:
            raise WorldError(
                f"{names.rank}={other['rank']} and {names.size}={other['size']} on rank {r} of {said.size}"
            )
    by_node: dict[Any, list[int]] = {}
    agents = all(other["node"] is not None for other in everyone)
    for other in everyone:
        by_node.setdefault(other["node"] if agents else other["host"], []).append(other["rank"])
    layout = tuple(tuple(ranks) for ranks in by_node.values())
    node = next(i for i, ranks in enumerate(layout) if said.rank in ranks)
    for ranks in layout:
        _check_node(names, ranks, everyone)
    local_rank = layout[node].index(said.rank) if said.local_rank is None else said.local_rank
    return World(said.rank, said.size, local_rank, len(layout[node]), node, len(layout), layout, name)


def _check_node(names: Launcher, ranks: tuple[int, ...], everyone: list[dict[str, Any]]) -> None:
    taken: dict[int, int] = {}
    for r in ranks:
        local_rank, local_size = everyone[r]["local_rank"], everyone[r]["local_size"]
        if local_size is not None and local_size != len(ranks):
            raise WorldError(
                f"{names.local_size}={local_size} on rank {r}, but {len(ranks)} ranks are on its node "
                f"({everyone[r]['host']}): {ranks}"
            )
        if local_rank is not None and taken.setdefault(local_rank, r) != r:
            raise WorldError(
                f"{names.local_rank}={local_rank} on both rank {taken[local_rank]} and rank {r} of one node"
            )
