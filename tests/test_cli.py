"""The command line, as a user types it."""

from pathlib import Path

import pytest

from tests.launching import BIN, clean_environment, run


def decentcomm(*args: str, code: int = 0) -> str:
    done = run([str(BIN / "decentcomm"), *args], env=clean_environment(COLUMNS="200"))
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_info_tells_what_is_there_and_why_something_is_not() -> None:
    told = decentcomm("info")
    for word in ("engine", "torch", "cpu kernels", "mpirun", "shared memory", "DECENTCOMM_TIMEOUT"):
        assert word in told
    row = next(line for line in told.splitlines() if " cuda " in line)
    assert "GPUs" in row or "build without CUDA" in row or "finds no GPU" in row


def test_topology_prints_its_numbers_and_draws(tmp_path: Path) -> None:
    picture = tmp_path / "aer.png"
    told = decentcomm("topology", "aer", "--size", "16", "--nodes", "4", "--draw", str(picture))
    facts = {line.split("  ")[0].strip(): line.split()[-1] for line in told.splitlines() if line.startswith(" ")}
    assert facts["spectral gap"] == "1"
    assert facts["steps to consensus"] == "4"
    assert facts["degree"] == "7"
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["ring", "exponential", "butterfly", "hierarchical", "complete", "base-k"])
@pytest.mark.parametrize(("size", "nodes"), [(1, 1), (8, 1), (64, 8)])
def test_every_kind_of_edge_can_be_drawn(name: str, size: int, nodes: int, tmp_path: Path) -> None:
    from decentcomm.topology import make

    topology = make(name, size=size, nodes=nodes)
    assert topology.draw(tmp_path / "x.svg") == tmp_path / "x.svg"
    text = (tmp_path / "x.svg").read_text()
    shown = range(min(topology.period, 8))
    assert text.count('<g id="edge">') == sum(len(topology.edges(t)) for t in shown)
    assert text.count('<g id="node">') == (nodes if size > 1 else 0) * len(shown)


def test_options_and_unequal_nodes() -> None:
    assert "3 + 1" in decentcomm("topology", "ring-lattice", "--size", "4", "--nodes", "3,1", "-o", "k=2")


def test_without_a_name_all_are_listed() -> None:
    assert "one-peer-exponential" in decentcomm("topology")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["hypercube", "--size", "6"], "error: hypercube needs a power of two, not 6; nearest: 4 or 8"),
        (["ring", "--nodes", "two"], "error: --nodes two"),
        (["ring-lattice", "-o", "k=abc"], "error: k='abc' must be a whole number"),
        (["ring", "-o", "size=3"], "error: --option size=3: write it as key=value; size and nodes are"),
        (["ring", "-o", "k"], "error: --option k: write it as key=value"),
        (["ring", "--draw", "/nonexistent/x.png"], "error: "),
        (["ring", "--draw", "x.nonsense"], "error: "),
    ],
)
def test_bad_input_is_one_line_and_code_2(args: list[str], message: str) -> None:
    told = decentcomm("topology", *args, code=2)
    assert told.splitlines()[-1].startswith(message)
    assert "Traceback" not in told


def test_info_survives_a_wrong_setting() -> None:
    done = run([str(BIN / "decentcomm"), "info"], env=clean_environment(COLUMNS="200", DECENTCOMM_LOG="loud"))
    assert done.returncode == 0
    assert "DECENTCOMM_LOG='loud' must be" in done.stdout


def test_a_picture_without_an_ending_is_a_png(tmp_path: Path) -> None:
    assert f"wrote {tmp_path}/pic.png" in decentcomm("topology", "ring", "--draw", str(tmp_path / "pic"))
