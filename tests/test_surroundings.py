"""Model buffers, uneven data, torch.compile, activation checkpointing, data loaders, DDP, monitoring."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.launching import launch

SCRIPT = Path(__file__).parent / "ranks" / "surroundings.py"
ROOT = str(Path(__file__).parent.parent)


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    """The cases on three ranks, started once."""
    cases = ["buffers", "join", "join_two", "checkpointed", "join_of_the_dead"]
    return launch("torchrun", 3, SCRIPT, *cases, PYTHONPATH=ROOT)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The cases on two ranks, started once, and where TensorBoard wrote."""
    folder = tmp_path_factory.mktemp("board")
    return folder, launch(
        "torchrun", 2, SCRIPT, "dataloader", f"monitored:{folder}", "ddp", PYTHONPATH=ROOT, GLOO_SOCKET_IFNAME="lo"
    )


def test_buffers_are_the_mean_inside_averaged_and_then_again_the_ranks_own(ranks: list[dict[str, Any]]) -> None:
    means = [r["buffers"]["average"]["own"][0] for r in ranks]
    assert len({tuple(m) for m in means}) == 3
    for r in ranks:
        said = r["buffers"]
        assert said["average"]["inside"][0] == pytest.approx(np.mean(means, 0).tolist(), rel=1e-5)
        assert said["average"]["own"][1] == 2 + r["rank"]
        assert said["average"]["inside"][1] == 2, "an integer buffer is rank 0's"
        assert said["local"]["inside"] == said["local"]["own"]
        assert said["average"]["restored"] and said["local"]["restored"]


def test_ranks_may_run_out_of_batches_at_different_times(ranks: list[dict[str, Any]]) -> None:
    for r, count in zip(ranks, [3, 7, 5], strict=True):
        assert r["join"]["error"] < 1e-5
        assert r["join"]["steps"] == 14
        assert r["join"]["updates"] == 2 * count
        assert r["join_two"]["steps"] == [6, 6]
        assert 0 < r["join_two"]["distance"] < 1


def test_joining_a_rank_that_never_comes_ends_at_the_deadline(ranks: list[dict[str, Any]]) -> None:
    for r in (ranks[0], ranks[2]):
        assert (
            "is out of batches and waited 1 s at step 1 for ranks that are not, at steps {1: 1}"
            in r["join_of_the_dead"]
        )


def test_activation_checkpointing_changes_nothing(ranks: list[dict[str, Any]]) -> None:
    assert all(r["checkpointed"]["equal"] for r in ranks)


def test_a_compiled_model_is_compiled_once() -> None:
    for r in launch("torchrun", 2, SCRIPT, "compiled", PYTHONPATH=ROOT):
        assert r["compiled"]["error"] < 1e-5
        assert r["compiled"]["graphs"] == 1


def test_loader_workers_fork_beside_the_engine(pair: tuple[Path, list[dict[str, Any]]]) -> None:
    for r in pair[1]:
        assert r["dataloader"]["workers"] == 4
        assert r["dataloader"]["steps"] == 24
        assert r["dataloader"]["equal"], "workers change nothing"


def test_ddp_around_the_model_no_longer_averages_gradients(pair: tuple[Path, list[dict[str, Any]]]) -> None:
    said = [r["ddp"] for r in pair[1]]
    for s in said:
        assert s["before False"] == s["before True"] == s["after"] == s["without"]
    assert said[0]["without"] != said[1]["without"]
    assert [s["branches"] for s in said] == [[1, 0], [0, 4]], "find_unused_parameters must not make gradients of zeros"
    assert said[0]["mean False"] != said[1]["mean False"], "buffers stay each rank's own"
    assert said[0]["other"] == said[1]["other"], "DDP over another model still averages"


def test_tensorboard_shows_the_statistics(pair: tuple[Path, list[dict[str, Any]]]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder, ranks = pair
    for r in ranks:
        events = EventAccumulator(str(folder / str(r["rank"])))
        events.Reload()
        stats = r["monitored"]["stats"]
        received = events.Scalars("decentcomm/bytes")
        assert [e.step for e in received] == list(range(10, 91, 10))
        assert received[-1].value == stats["bytes"]
        other = str(1 - r["rank"])
        waited = events.Scalars(f"decentcomm/seconds_waited/rank {other}")[-1].value
        assert waited == pytest.approx(stats["seconds_waited"][other], rel=1e-5)
        assert events.Scalars("decentcomm/grad_norm")[-1].value > 0


def test_a_rank_that_mostly_waits_is_told_for_whom_once(pair: tuple[Path, list[dict[str, Any]]]) -> None:
    (warning,) = pair[1][0]["monitored"]["warnings"]
    assert "of the last 20 steps" in warning
    assert "for rank 1: is it slower" in warning
    assert pair[1][1]["monitored"]["warnings"] == []
