"""What the environment says of this process's place: pure functions from variables to a `Placement`.

Knows torchrun (and the RANK/WORLD_SIZE convention in general), Open MPI and MPICH. Whatever is half set or
contradictory is refused here, with the variable's name; whether the ranks agree with each other is _world.py's
business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from decentcomm.errors import WorldError


@dataclass(frozen=True)
class Launcher:
    """The variables by which a launcher tells a process its place; the first two mark it."""

    name: str
    rank: str
    size: str
    local_rank: str
    local_size: str
    node: str | None = None


TORCHRUN = Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
OPEN_MPI = Launcher(
    "mpirun (Open MPI)",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
)
MPICH = Launcher("mpirun (MPICH)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")


def told_by(name: str) -> Launcher:
    """A launcher that uses no variables."""
    return Launcher(name, "rank", "size", "local_rank", "local_size")


ALONE = told_by("alone")


@dataclass(frozen=True)
class Placement:
    """Where one process says it is; None where its launcher did not say."""

    launcher: Launcher
    rank: int
    size: int
    local_rank: int | None = None
    local_size: int | None = None
    node: int | None = None


def detect(env: Mapping[str, str]) -> Placement:
    """Read this process's place from `env`; a lone process is rank 0 of 1."""
    found = [p for p in (_read(env, launcher) for launcher in (TORCHRUN, OPEN_MPI, MPICH)) if p]
    if not found:
        _refuse_bare_srun(env)
        return Placement(ALONE, 0, 1, 0, 1, 0)
    first = found[0]
    # torchrun started by mpirun is one agent a node: then the outer variables are the agents'.
    if not (first.launcher is TORCHRUN and "TORCHELASTIC_RUN_ID" in env):
        for other in found[1:]:
            _require_same(first, other)
    return first


def require_agreement(said: Placement, rank: int, size: int, who: str) -> None:
    """Raise unless the placement in the environment is the one that `who` knows."""
    for variable, value, real in (
        (said.launcher.rank, said.rank, rank),
        (said.launcher.size, said.size, size),
    ):
        if value != real:
            raise WorldError(f"{variable}={value}, but {who} says {real}; correct or unset {variable}")


def _read(env: Mapping[str, str], launcher: Launcher) -> Placement | None:
    rank, size = _integer(env, launcher.rank), _integer(env, launcher.size)
    if rank is None and size is None:
        for name in (launcher.local_rank, launcher.local_size, launcher.node):
            if name and name in env:
                raise WorldError(
                    f"{name}={env[name]} is set, but {launcher.rank} and {launcher.size} are not; set all or none"
                )
        return None
    if rank is None or size is None:
        missing, given = (launcher.rank, launcher.size) if rank is None else (launcher.size, launcher.rank)
        raise WorldError(
            f"{given}={env[given]} is set, but {missing} is not; set both (as {launcher.name} does) or neither"
        )
    if size < 1 or rank >= size:
        raise WorldError(f"{launcher.rank}={rank} must be less than {launcher.size}={size}")
    local_rank, local_size = _integer(env, launcher.local_rank), _integer(env, launcher.local_size)
    if local_size is not None and not 1 <= local_size <= size:
        raise WorldError(f"{launcher.local_size}={local_size} must be from 1 to {launcher.size}={size}")
    if local_rank is not None and local_rank >= (local_size or size):
        limit = f"{launcher.local_size}={local_size}" if local_size else f"{launcher.size}={size}"
        raise WorldError(f"{launcher.local_rank}={local_rank} must be less than {limit}")
    node = _integer(env, launcher.node) if launcher.node else None
    return Placement(launcher, rank, size, local_rank, local_size, node)


def _integer(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name)
    if text is None:
        return None
    if not text.strip().isdecimal():
        raise WorldError(f"{name}={text!r} must be a whole number of at least 0; correct or unset it")
    return int(text)


def _require_same(first: Placement, other: Placement) -> None:
    for field in ("rank", "size", "local_rank", "local_size"):
        value, other_value = getattr(first, field), getattr(other, field)
        if None not in (value, other_value) and value != other_value:
            name, other_name = getattr(first.launcher, field), getattr(other.launcher, field)
            raise WorldError(f"{name}={value} contradicts {other_name}={other_value}; unset {name} or make them equal")


def require_master(env: Mapping[str, str], said: Placement) -> None:
    """Raise unless `env` says where the ranks meet."""
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not env.get(name)]
    if missing:
        raise WorldError(
            f"WORLD_SIZE={said.size} is set, but {missing[0]} is not: launch with torchrun or mpirun, "
            f"or set {' and '.join(missing)} to where rank 0 listens"
        )


def _refuse_bare_srun(env: Mapping[str, str]) -> None:
    tasks = _integer(env, "SLURM_STEP_NUM_TASKS") or 1
    if "SLURM_PROCID" in env and tasks > 1:
        raise WorldError(
            f"SLURM_STEP_NUM_TASKS={tasks}: srun started {tasks} tasks, but none of RANK, OMPI_COMM_WORLD_RANK "
            "and PMI_RANK is set, so each would train alone; "
            "start torchrun with srun (one task a node), or use mpirun or srun --mpi=pmi2"
        )
