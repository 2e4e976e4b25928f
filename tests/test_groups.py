"""Param groups, parameters of all kinds and what is done with gradients: as AdamW does it, and as the oracle says."""

from pathlib import Path
from typing import Any

import pytest

from tests.launching import launch

SCRIPT = Path(__file__).parent / "ranks" / "groups.py"
ROOT = str(Path(__file__).parent.parent)
CASES = [
    "frozen_stays",
    "added_group",
    "clipping",
    "nonfinite_skip:nan",
    "in_backward",
    "changed_before_the_first_step",
]


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    """All cases on three ranks, started once."""
    return launch("torchrun", 3, SCRIPT, *CASES, PYTHONPATH=ROOT)


def test_a_users_loop_with_everything_in_it_equals_adamw() -> None:
    (only,) = launch("torchrun", 1, SCRIPT, "everything_alone", PYTHONPATH=ROOT)
    assert only["everything_alone"]["error"] < 1e-6


def test_frozen_parameters_stay_bit_for_bit_and_can_be_unfrozen(ranks: list[dict[str, Any]]) -> None:
    for r in ranks:
        assert r["frozen_stays"] == {"stayed": True, "moves when unfrozen": True}


def test_a_group_added_later_equals_the_oracle_from_there(ranks: list[dict[str, Any]]) -> None:
    for r in ranks:
        assert r["added_group"]["a"] < 1e-5
        assert r["added_group"]["b"] < 1e-5
        assert r["added_group"]["steps"] == 7


def test_clipping_inside_the_pass_is_global(ranks: list[dict[str, Any]]) -> None:
    for r in ranks:
        assert r["clipping"]["error"] < 1e-6
        assert r["clipping"]["norms"] < 1e-6
        assert r["clipping"]["smallest"] > 0.7, "every step must have been clipped"


@pytest.mark.parametrize("rank", range(3))
def test_a_step_with_a_bad_gradient_is_only_mixed(ranks: list[dict[str, Any]], rank: int) -> None:
    assert ranks[rank]["nonfinite_skip"]["error"] < 1e-5
    assert ranks[rank]["nonfinite_skip"]["skipped"] == (2 if rank == 1 else 0)


@pytest.mark.parametrize("in_backward", ["", "yes"])
def test_a_bad_gradient_is_named_and_never_reaches_a_neighbour(in_backward: str) -> None:
    for r in launch("torchrun", 3, SCRIPT, f"nonfinite_raise:{in_backward}", PYTHONPATH=ROOT):
        said = r["nonfinite_raise"]
        if r["rank"] == 1:
            assert (
                "NonFiniteError: the gradient of 2.bias is not finite at step 3; no neighbour saw it" in said["error"]
            )
            assert "a step failed before" in said["error"]
        else:
            assert "DeadlineError" in said["error"] and "for rank 1" in said["error"]
        assert said["finite"]
        assert said["steps"] in (3, 4)


def test_updates_in_backward_are_those_of_step(ranks: list[dict[str, Any]]) -> None:
    for r in ranks:
        assert r["in_backward"]["equal"]
        assert r["in_backward"]["left"] == 0, "gradients must be freed in backward"
        assert "2.bias got a second gradient in one step" in r["in_backward"]["second"]


def test_parameters_may_change_before_the_first_step(ranks: list[dict[str, Any]]) -> None:
    for r in ranks:
        assert r["changed_before_the_first_step"]["error"] < 1e-5
        assert r["changed_before_the_first_step"]["warnings"] == []
