"""A run that is stopped and resumed goes on bit for bit; a crash while saving leaves the checkpoint before whole."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.launching import clean_environment, command, launch, run

SCRIPT = Path(__file__).parent / "ranks" / "checkpoints.py"
ROOT = str(Path(__file__).parent.parent)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, Any]]]:
    """A directory with checkpoints of three ranks, and how those went on."""
    folder = str(tmp_path_factory.mktemp("checkpoints"))
    return folder, launch("torchrun", 3, SCRIPT, f"straight:{folder}", PYTHONPATH=ROOT)


@pytest.mark.parametrize("launcher", ["torchrun", "mpirun"])
def test_a_resumed_run_goes_on_bit_for_bit(saved: tuple[str, list[dict[str, Any]]], launcher: str) -> None:
    folder, straight = saved
    for once, again in zip(straight, launch(launcher, 3, SCRIPT, f"resumed:{folder}", PYTHONPATH=ROOT), strict=True):
        for kind, fingerprint in once["straight"].items():
            assert again["resumed"][kind] == fingerprint, kind
            assert again["resumed"][f"{kind} by state_dict"] == fingerprint, kind
    replicas = {r["straight"]["adam"] for r in straight}
    assert len(replicas) == 3, "replicas of a decentralized run differ, or the test shows nothing"


def test_another_number_of_ranks_starts_from_the_mean(saved: tuple[str, list[dict[str, Any]]]) -> None:
    ranks = launch("torchrun", 2, SCRIPT, f"other_size:{saved[0]}", PYTHONPATH=ROOT)
    for kind, (error, before, distance, steps, finite) in ranks[0]["other_size"].items():
        assert error < 1e-6, kind
        assert before == ranks[1]["other_size"][kind][1], "all ranks must start equal"
        assert steps == 13
        assert finite and distance < 1


def test_the_mean_model_loads_without_decentcomm(saved: tuple[str, list[dict[str, Any]]]) -> None:
    mean = torch.load(Path(saved[0]) / "adam-mean.pt", weights_only=True)
    each = [torch.load(Path(saved[0]) / f"adam-{r}.pt", weights_only=True) for r in range(3)]
    assert list(mean) == list(each[0]["net"])
    for key in ("first.weight", "norm.running_mean", "third.bias"):
        expected = torch.stack([e["net"][key].double() for e in each]).mean(0)
        torch.testing.assert_close(mean[key].double(), expected, rtol=1e-5, atol=1e-7)
    masters = torch.stack([e["optimizer"]["state"][4]["master"].double() for e in each]).mean(0)
    torch.testing.assert_close(mean["second.weight"].double(), masters, rtol=2**-8, atol=0)
    assert (Path(saved[0]) / "adam-mean.pt").stat().st_size < 30_000, "a view of shared memory was saved whole"


def test_a_crash_while_saving_leaves_the_checkpoint_before_whole(tmp_path: Path) -> None:
    argv = [*command("torchrun", 2), str(SCRIPT), f"crash:{tmp_path}"]
    assert run(argv, env=clean_environment(PYTHONPATH=ROOT, DECENTCOMM_TIMEOUT="5")).returncode != 0
    for r in launch("torchrun", 2, SCRIPT, f"after_crash:{tmp_path}", PYTHONPATH=ROOT):
        said = r["after_crash"]
        assert said["same"]
        assert (said["left"], said["cleaned"]) == (1, 0)
        assert said["kept"] == ["step-00000002", "step-00000002-1"]
        assert "rank 1 could not write its part of the checkpoint: " in said["unsaved"]
        assert "rank 1 could not read a checkpoint from" in said["broken"]
        assert "has no complete checkpoint" in said["empty"]


def test_the_state_of_adamw_can_be_loaded() -> None:
    (only,) = launch("torchrun", 1, SCRIPT, "from_adamw", PYTHONPATH=ROOT)
    assert only["from_adamw"]["error"] < 1e-6
    assert only["from_adamw"]["steps"] == 11
    assert only["from_adamw"]["kept"] == 11, "torch's state_dict tools must not lose the place in the topology"
