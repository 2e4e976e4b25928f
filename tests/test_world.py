"""The world in real processes: torchrun, Open MPI, MPICH, an initialised process group, alone."""

import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.launching import BIN, LAUNCHERS, clean_environment, command, launch, results, run

SCRIPT = Path(__file__).parent / "ranks" / "show_world.py"
NAMES = {"torchrun": "torchrun", "mpirun": "mpirun (Open MPI)"}


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("size", [1, 3])
def test_every_rank_finds_its_place(launcher: str, size: int) -> None:
    ranks = launch(launcher, size, SCRIPT)
    assert [r["rank"] for r in ranks] == list(range(size))
    assert sorted(r["local_rank"] for r in ranks) == list(range(size))
    for r in ranks:
        assert (r["size"], r["local_size"], r["node"], r["nodes"]) == (size, size, 0, 1)
        assert r["layout"] == [list(range(size))]
        assert r["launcher"] == NAMES[launcher]
        assert (r["ring"], r["boxes"]) == (size, 1)


def test_alone() -> None:
    (only,) = results(run([sys.executable, str(SCRIPT)]))
    assert (only["rank"], only["size"], only["nodes"], only["launcher"]) == (0, 1, 1, "alone")


def test_inside_an_initialised_process_group() -> None:
    ranks = launch("torchrun", 2, SCRIPT, "--process-group")
    assert [(r["rank"], r["size"], r["local_rank"], r["launcher"]) for r in ranks] == [
        (0, 2, 0, "torch.distributed"),
        (1, 2, 1, "torch.distributed"),
    ]


def test_ranks_started_by_hand_find_their_node_by_its_name() -> None:
    port = str(free_port())
    by_hand = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = together([([sys.executable, str(SCRIPT)], {**by_hand, "RANK": str(r)}) for r in range(3)])
    assert [(r["local_rank"], r["local_size"], r["nodes"]) for r in ranks] == [(0, 3, 1), (1, 3, 1), (2, 3, 1)]


def test_nodes_of_different_sizes_under_torchrun() -> None:
    meet = ["--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    agents = [
        ([str(BIN / "torchrun"), *meet, f"--node-rank={node}", f"--nproc-per-node={n}", str(SCRIPT)], {})
        for node, n in enumerate((1, 3))
    ]
    ranks = together(agents)
    assert [(r["node"], r["local_rank"], r["local_size"]) for r in ranks] == [
        (0, 0, 1),
        (1, 0, 3),
        (1, 1, 3),
        (1, 2, 3),
    ]
    assert all(r["layout"] == [[0], [1, 2, 3]] and r["boxes"] == 2 for r in ranks)


def test_a_process_group_may_come_before_or_after() -> None:
    for when in ("--process-group", "--process-group-after", "--process-group-by-file"):
        ranks = launch("torchrun", 2, SCRIPT, when)
        assert [(r["rank"], r["size"], r["nodes"]) for r in ranks] == [(0, 2, 1), (1, 2, 1)]


def test_mpich() -> None:
    mpich = BIN.parent / "mpich"
    assert (mpich / "bin" / "mpirun").exists(), "make installs MPICH beside Open MPI for this test; run make test"
    env = clean_environment(MPI4PY_MPIABI="mpich", LD_LIBRARY_PATH=str(mpich / "lib"))
    ranks = results(run([str(mpich / "bin" / "mpirun"), "-n", "3", sys.executable, str(SCRIPT)], env=env))
    assert [(r["rank"], r["local_rank"], r["size"], r["launcher"]) for r in ranks] == [
        (r, r, 3, "mpirun (MPICH)") for r in range(3)
    ]


def test_the_wrong_mpirun_is_named() -> None:
    done = run([str(BIN.parent / "mpich" / "bin" / "mpirun"), "-n", "2", sys.executable, str(SCRIPT)])
    assert done.returncode != 0
    assert "mpirun (MPICH) started 2 ranks, but mpi4py sees 1" in done.stderr


@pytest.mark.parametrize(
    ("launcher", "message"),
    [("torchrun", "rank 0 waited 2 s for ranks [1]"), ("mpirun", "an MPI rank waited 2 s for others")],
)
def test_a_rank_that_does_not_come_is_noticed(launcher: str, message: str) -> None:
    done = run([*command(launcher, 2), str(SCRIPT), "--only-rank-0"])
    assert done.returncode != 0
    assert message in done.stderr


def together(commands: list[tuple[list[str], dict[str, str]]]) -> list[dict[str, Any]]:
    """Run commands at the same time, each with its environment; what all their ranks printed."""
    with ThreadPoolExecutor(len(commands)) as pool:
        done = list(pool.map(lambda c: run(c[0], env=clean_environment(**c[1])), commands))
    return sorted((r for d in done for r in results(d)), key=lambda r: r["rank"])


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
