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
    "in_backward_of_all_kinds",
    "in_the_middle_of_a_step",
    "changed_before_the_first_step",
    "baseline",
    "refused",
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


def test_a_bad_gradient_is_named_and_never_reaches_a_neighbour() -> None:
    cases = ["nonfinite_raise:", "nonfinite_raise:in-backward"]
    ranks = launch("torchrun", 3, SCRIPT, *cases, PYTHONPATH=ROOT)
    for r, said in ((r["rank"], r[case]) for r in ranks for case in cases):
        if r == 1:
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
        assert all(r["in_backward_of_all_kinds"].values()), r["in_backward_of_all_kinds"]


def test_nothing_else_comes_between_an_updating_backward_and_step(ranks: list[dict[str, Any]]) -> None:
    for r in ranks:
        said = r["in_the_middle_of_a_step"]
        assert "2.bias got a second gradient in one step" in said["second"]
        for what in ("mix", "save", "group", "averaged"):
            assert "backward has already updated some parameters" in said[what], what
        for what in ("skip", "clip"):
            assert "need all gradients before the first update" in said[what], what


@pytest.mark.parametrize(("dtype", "narrow"), [("float32", ""), ("bfloat16", "yes")])
def test_changes_in_place_and_failures_can_be_lived_with(dtype: str, narrow: str) -> None:
    cases = [f"changed_in_place:{dtype}", f"recovers:{narrow}"]
    for r in launch("torchrun", 2, SCRIPT, *cases, PYTHONPATH=ROOT):
        changed, recovers = r["changed_in_place"], r["recovers"]
        assert changed["quiet"] == []
        assert changed["after"] == [5.0] * 40, "neither rank may have seen the other's private 100"
        assert len(changed["warned"]) == 1 and "parameter 0 of group 0 was changed in place" in changed["warned"][0]
        assert changed["set"] == 3.0, "what was written counts"
        assert ("is not finite at step 5" if r["rank"] == 1 else "rank 0 waited 2") in recovers["error"]
        assert "a step failed before" in recovers["failed"]
        assert recovers["equal"], "a run goes on bit for bit after its ranks went back"


def test_the_baseline_freezes_grows_and_skips(ranks: list[dict[str, Any]]) -> None:
    for r in ranks:
        said = r["baseline"]
        assert said["frozen"] and said["skipped"] and said["went on"]
        assert said["added"] > 0.1
        assert said["scale"] == (4.0 if r["rank"] == 1 else 8.0)


def test_what_cannot_be_is_refused_by_name(ranks: list[dict[str, Any]]) -> None:
    for r in ranks:
        said = r["refused"]
        assert "amsgrad=True is not supported" in said["amsgrad"]
        assert "maximize=True is not supported" in said["maximize"]
        assert "copy its state_dict()" in said["copy"] and "save its state_dict()" in said["pickle"]
        assert "parameter 0 of group 0 and parameter 1 of group 0 share memory" in said["overlap"]
        assert "leave the block first" in said["inside averaged"]
        assert "other ranks may be out of batches" in said["inside join"]


def test_parameters_may_change_before_the_first_step(ranks: list[dict[str, Any]]) -> None:
    for r in ranks:
        assert r["changed_before_the_first_step"]["error"] < 1e-5
        assert r["changed_before_the_first_step"]["warnings"] == []
