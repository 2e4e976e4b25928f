"""Environments that are half set or contradictory are refused with the variable's name."""

import pytest

from decentcomm import _world
from decentcomm.errors import WorldError
from decentcomm.launch import MPICH, OPEN_MPI, TORCHRUN, detect, require_agreement, require_master

MASTER = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
BY_TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    **MASTER,
}
BY_OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}


def test_nothing_set_is_a_lone_process() -> None:
    said = detect({})
    assert (said.rank, said.size, said.launcher.name) == (0, 1, "alone")


@pytest.mark.parametrize(
    ("env", "launcher"),
    [
        (BY_TORCHRUN, TORCHRUN),
        (BY_OPEN_MPI, OPEN_MPI),
        ({"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, MPICH),
    ],
)
def test_each_launcher_is_recognised(env: dict[str, str], launcher: object) -> None:
    said = detect(env)
    assert said.launcher is launcher
    assert (said.rank, said.size, said.local_rank, said.local_size) == (3, 4, 1, 2)


def test_torchrun_started_by_mpirun_is_torchrun() -> None:
    outer = {**BY_OPEN_MPI, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    assert detect({**outer, **BY_TORCHRUN, "TORCHELASTIC_RUN_ID": "x"}).launcher is TORCHRUN


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2 is set, but RANK is not"),
        ({"RANK": "0"}, "RANK=0 is set, but WORLD_SIZE is not"),
        ({"OMPI_COMM_WORLD_RANK": "1"}, "OMPI_COMM_WORLD_SIZE is not"),
        ({"PMI_SIZE": "2"}, "PMI_RANK is not"),
        ({**BY_TORCHRUN, "RANK": "4"}, "RANK=4 must be less than WORLD_SIZE=4"),
        ({**BY_TORCHRUN, "RANK": "one"}, "RANK='one' must be a whole number"),
        ({**BY_TORCHRUN, "RANK": "-1"}, "RANK='-1' must be a whole number"),
        ({**BY_TORCHRUN, "LOCAL_RANK": "2"}, "LOCAL_RANK=2 must be less than LOCAL_WORLD_SIZE=2"),
        ({**BY_TORCHRUN, "LOCAL_WORLD_SIZE": "5"}, "LOCAL_WORLD_SIZE=5 must be from 1 to WORLD_SIZE=4"),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, "LOCAL_RANK=1 is set, but RANK and WORLD_SIZE are not"),
        ({"GROUP_RANK": "1"}, "GROUP_RANK=1 is set, but RANK and WORLD_SIZE are not"),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, "but OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE are not"),
        ({**BY_OPEN_MPI, "PMI_RANK": "5", "PMI_SIZE": "8"}, "OMPI_COMM_WORLD_RANK=3 contradicts PMI_RANK=5"),
        ({**BY_OPEN_MPI, **BY_TORCHRUN, "LOCAL_RANK": "0"}, "LOCAL_RANK=0 contradicts OMPI_COMM_WORLD_LOCAL_RANK=1"),
        ({**BY_OPEN_MPI, **BY_TORCHRUN, "RANK": "0"}, "RANK=0 contradicts OMPI_COMM_WORLD_RANK=3"),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "8"}, "srun started 8 tasks"),
    ],
)
def test_the_wrong_variable_is_named(env: dict[str, str], message: str) -> None:
    with pytest.raises(WorldError, match=message):
        detect(env)


def test_where_the_ranks_meet_must_be_known() -> None:
    with pytest.raises(WorldError, match="WORLD_SIZE=4 is set, but MASTER_ADDR is not"):
        require_master({"MASTER_PORT": "1"}, detect(BY_TORCHRUN))


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
def test_a_timeout_must_be_a_time(timeout: float) -> None:
    with pytest.raises(WorldError, match=f"timeout={timeout} must be a number of seconds"):
        _world.init(timeout=timeout)


def test_a_process_group_that_contradicts_the_environment() -> None:
    with pytest.raises(WorldError, match=r"RANK=3, but torch.distributed says 2; correct or unset RANK"):
        require_agreement(detect(BY_TORCHRUN), 2, 4, "torch.distributed")


class Gathered:
    """A control plane that answers with what other ranks are made to have said."""

    def __init__(self, *records: bytes) -> None:
        self.records = list(records)

    def all_gather(self, data: bytes) -> list[bytes]:
        return [data, *self.records]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ('"rank": 1, "size": 3, "local_rank": 1, "local_size": 2, "node": 0', "WORLD_SIZE=3 on rank 1 of 2"),
        (
            '"rank": 1, "size": 2, "local_rank": 0, "local_size": 2, "node": 0',
            "LOCAL_RANK=0 on both rank 0 and rank 1",
        ),
        (
            '"rank": 1, "size": 2, "local_rank": 1, "local_size": 2, "node": 1',
            "LOCAL_WORLD_SIZE=2 on rank 0, but 1 ranks",
        ),
    ],
)
def test_ranks_that_disagree_are_told(other: str, message: str) -> None:
    env = {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
        **MASTER,
    }
    with pytest.raises(WorldError, match=message):
        _world._agree(detect(env), "torchrun", Gathered(f'{{{other}, "host": "b", "launcher": "torchrun"}}'.encode()))


def test_world_before_init_says_what_to_do() -> None:
    with pytest.raises(WorldError, match=r"call it once at the start"):
        _world.world()
