"""Autocast, GradScaler, bfloat16 parameters with float32 masters, and bfloat16 on the wire."""

from pathlib import Path
from typing import Any

import pytest

from tests.launching import launch

SCRIPT = Path(__file__).parent / "ranks" / "precision.py"
ROOT = str(Path(__file__).parent.parent)


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    """The cases on three ranks, started once."""
    cases = ["mean_stays", "scaler:", "scaler:by-hand", "scaler_clips", "scaler_in_backward"]
    return launch("torchrun", 3, SCRIPT, *cases, PYTHONPATH=ROOT)


@pytest.mark.parametrize("size", [2, 5])
def test_bfloat16_equals_the_oracle_that_rounds_alike(size: int) -> None:
    for r in launch("torchrun", size, SCRIPT, "narrow:parameters", "narrow:wire", PYTHONPATH=ROOT):
        cases = {**r["narrow:parameters"], **{f"{case} on the wire": said for case, said in r["narrow:wire"].items()}}
        assert len(cases) == 12
        neighbors = {"ring": min(size - 1, 2), "complete": 1, "one-peer-exponential": 1}
        for case, (off, worst, bytes_each, consensus) in cases.items():
            assert off < 5e-3, f"{case}: more than one in 200 elements is more than 1e-5 off"
            assert worst < 2**-7, case
            # 2 bytes an element from each neighbour; a group of four or more is read as one mean, in float32
            expected = 4 if case.startswith("complete") and size >= 4 else 2 * neighbors[case.split()[0]]
            assert bytes_each == pytest.approx(expected, rel=0.01), case
            assert consensus < 1e-3, case


def test_bfloat16_on_the_wire_does_not_move_the_mean(ranks: list[dict[str, Any]]) -> None:
    for r in ranks:
        said = r["mean_stays"]
        assert said["moved"] < 3e-6  # float32 over 50 steps; mixing rounded parameters would move it by 1e-3
        assert said["before"] > 1
        assert said["after"] < 1e-4


def test_a_scaled_step_that_overflowed_still_mixes(ranks: list[dict[str, Any]]) -> None:
    for r in ranks:
        said = r["scaler:"]
        assert said["error"] < 1e-5
        assert said["steps"] == 9
        if r["rank"] == 1:
            assert said["updates"] == 7 and said["skipped"] == 2
            assert said["scales"] == [1024, 1024, 512, 512, 512, 256, 256, 256, 256]
            assert said["saved"] == 3
        else:
            assert said["updates"] == 9 and said["skipped"] == 0
            assert said["scales"] == [1024, 1024, 1024, 2048, 2048, 2048, 2048, 4096, 4096]
            assert said["saved"] == 1


def test_unscaling_by_hand_gives_the_same(ranks: list[dict[str, Any]]) -> None:
    for r in ranks:
        assert r["scaler:by-hand"]["error"] < 1e-5
        assert r["scaler:by-hand"]["updates"] == (7 if r["rank"] == 1 else 9)


def test_clipping_counts_unscaled_gradients(ranks: list[dict[str, Any]]) -> None:
    for r in ranks:
        assert r["scaler_clips"]["error"] < 1e-6
        assert "GradScaler judges gradients after backward" in r["scaler_in_backward"]


def test_alone_every_precision_equals_adamw() -> None:
    (only,) = launch("torchrun", 1, SCRIPT, "autocast_alone", PYTHONPATH=ROOT)
    assert only["autocast_alone"]["autocast"] < 1e-6
    assert only["autocast_alone"]["float32"] < 1e-6
    assert only["autocast_alone"]["master"] < 1e-6
    assert only["autocast_alone"]["float64"] < 1e-14
