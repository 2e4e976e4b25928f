"""The optimizers in real processes: equal to torch alone, equal at the start, and clear when something is wrong."""

from pathlib import Path
from typing import Any

import pytest
import torch

from decentcomm.errors import ConfigError, UnsupportedError
from decentcomm.optim.flat import FlatLayout, by_dtype
from tests.launching import LAUNCHERS, clean_environment, command, launch, run

SCRIPT = Path(__file__).parent / "ranks" / "optimizers.py"
ROOT = str(Path(__file__).parent.parent)


def test_alone_it_equals_torch() -> None:
    (only,) = launch("torchrun", 1, SCRIPT, "equals_torch", PYTHONPATH=ROOT)
    errors = {k: v for k, v in only.items() if k != "rank"}
    assert len(errors) == 4
    assert {k: v for k, v in errors.items() if not v < 1e-6} == {}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_all_start_as_rank_0(launcher: str) -> None:
    ranks = launch(launcher, 3, SCRIPT, "start_equal", PYTHONPATH=ROOT)
    assert {(r["parameters"], r["frozen"], r["mean"]) for r in ranks} == {
        (ranks[0]["parameters"], ranks[0]["frozen"], 0.0)
    }


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_allreduce_equals_one_process_with_the_whole_batch(launcher: str) -> None:
    for r in launch(launcher, 4, SCRIPT, "allreduce", PYTHONPATH=ROOT):
        assert r["distance"] < 1e-12
        assert (r["steps"], r["consensus"]) == (10, 0.0)


DIFFERENCES = {
    "shape": "weight: shape, dtype and strides differ between ranks: [[2, 4], 'torch.float32', [4, 1]] on rank 0",
    "order": "weight: name differ between ranks: weight on rank 0, bias on ranks [1]",
    "count": "bias: name differ between ranks: bias on rank 0, bias (not optimized) on ranks [1]",
    "dtype": "bias: shape, dtype and strides differ between ranks: [[2], 'torch.float32', [1]] on rank 0",
    "frozen": "bias: requires_grad differ between ranks: True on rank 0, False on ranks [1]",
    "lr": "group 0 lr differ between ranks: 0.1 on rank 0, 0.2 on ranks [1]",
    "topology": "topology differ between ranks: '<ring size=3 period=1> with weights",
    "weights": "topology differ between ranks: '<custom size=3 period=1> with weights",
    "accumulate": "accumulate differ between ranks: 1 on rank 0, 4 on ranks [1]",
    "groups": "group 0 parameters differ between ranks: 2 on rank 0, 1 on ranks [1]",
    "allreduce": "group 0 lr differ between ranks: 0.1 on rank 0, 0.2 on ranks [1]",
}


@pytest.fixture(scope="module")
def disagreeing() -> list[dict[str, Any]]:
    """All differences, one after the other, started once."""
    return launch("torchrun", 3, SCRIPT, "disagree", *DIFFERENCES, PYTHONPATH=ROOT)


@pytest.mark.parametrize("what", DIFFERENCES)
def test_ranks_that_differ_are_told_in_what(disagreeing: list[dict[str, Any]], what: str) -> None:
    for r in disagreeing:
        assert DIFFERENCES[what] in r[what]
        assert "rank 0" in r[what]
        assert "rank 1" in r[what] or "ranks [1]" in r[what]


def test_a_wait_ends_at_its_deadline_and_says_for_whom() -> None:
    ranks = launch("torchrun", 3, SCRIPT, "late", PYTHONPATH=ROOT)
    for r in (ranks[0], ranks[2]):
        assert f"rank {r['rank']} waited 1" in r["error"]
        assert "bucket 0" in r["error"] and "at step" in r["error"]
    assert any("for rank 1" in r["error"] for r in ranks)


def test_nothing_is_left_behind_and_a_dead_rank_is_noticed() -> None:
    before = set(Path("/dev/shm").glob("decentcomm-*"))
    done = run([*command("mpirun", 2)[:-2], str(SCRIPT), "killed"], env=clean_environment(PYTHONPATH=ROOT))
    assert done.returncode != 0
    assert '"named": []' in done.stdout
    assert set(Path("/dev/shm").glob("decentcomm-*")) == before


def test_ctrl_c_ends_a_wait() -> None:
    waited = launch("torchrun", 2, SCRIPT, "interrupted", PYTHONPATH=ROOT)[0]["seconds"]
    assert 0 < waited < 2


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_may_differ_in_which_parameters_are_used(launcher: str) -> None:
    for r in launch(launcher, 4, SCRIPT, "unequal_use", PYTHONPATH=ROOT):
        # Each parameter has a gradient of 1 on one of four ranks, for three steps with lr 1.
        assert [r[f"p{i}"] for i in range(4)] == pytest.approx([i - 0.75 for i in range(4)], abs=1e-6)


def test_misuse_is_refused_with_words_that_help() -> None:
    (said,) = launch("torchrun", 1, SCRIPT, "misuse", PYTHONPATH=ROOT)
    assert "leave the block first" in said["nested"]
    assert "leave the block first" in said["step inside"]
    assert said["fork"] == 0
    assert "needs ['exp_avg', 'exp_avg_sq']" in said["load"]
    assert "has groups of [1] parameters, this optimizer of [2]" in said["load less"]
    assert "momentum was 0 when this optimizer was made" in said["momentum"]
    assert "a step failed before (UnsupportedError at step 1)" in said["after a failure"]
    assert "modified by an inplace operation" in said["old graph"]
    assert len(said["in place"]) == 1
    assert "weight was changed in place between steps" in said["in place"][0]
    assert "weight is no longer where this optimizer put it" in said["moved"]
    assert "parameter 0 of group 0 and parameter 1 of group 0 share memory" in said["shared"]
    assert "weight has a torch.sparse_coo gradient" in said["sparse"]
    assert said["saved"] < 1.05
    assert said["kept"] == [0, 0, 0, 0], "an optimizer that is gone must give its memory back"


def test_what_is_wrong_on_one_rank_is_told_to_all() -> None:
    for r in launch("torchrun", 2, SCRIPT, "one_bad", PYTHONPATH=ROOT):
        assert "rank 1: parameter 0 of group 0 is torch.float16" in r["error"]


def test_allreduce_notices_replicas_that_differ() -> None:
    for r in launch("torchrun", 2, SCRIPT, "drifted", PYTHONPATH=ROOT):
        assert "ranks [1] differ from rank 0" in r["error"]


def test_a_fast_rank_is_one_step_ahead_at_most_and_waits_asleep_without_the_gil() -> None:
    fast, slow = launch("torchrun", 2, SCRIPT, "ahead", PYTHONPATH=ROOT)
    for t in range(7):
        assert fast["ends"][t + 1] >= slow["starts"][t], "rank 0 ended step t+1 before rank 1 came to publish step t"
    assert fast["ends"][0] < slow["starts"][0], "the first step needs nothing of the slow rank"
    assert fast["ticks"] > 100  # another thread ran while the main thread waited
    assert fast["waited"]["1"] > 0.3
    assert fast["cpu"] < 0.5 * fast["seconds"]
    assert fast["bytes"] == 9 * 64 * 4


def test_a_full_dev_shm_is_an_error_not_a_crash() -> None:
    from decentcomm import _C
    from decentcomm.errors import Error

    with pytest.raises(Error, match=r"/dev/shm cannot give this rank the \d+ MiB it needs .*--shm-size"):
        _C.Segment.create(1 << 50)


def test_what_cannot_be_held_is_named() -> None:
    whole = torch.zeros(4, 4)
    for tensor, message in (
        (torch.zeros(3, dtype=torch.int64), r"w is torch.int64: float32, float64 and bfloat16 are supported"),
        (torch.zeros(3, dtype=torch.float16), r"w is torch.float16"),
        (whole[:, :2], r"w is not a dense tensor \(strides \(4, 1\)\)"),
        (torch.zeros(1).expand(5), r"w is not a dense tensor"),
        (torch.zeros(3, device="meta"), r"w is on meta"),
    ):
        with pytest.raises(UnsupportedError, match=message):
            by_dtype([tensor], ["w"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "lr=-1.0 must be at least 0"),
        ({"betas": (1.0, 0.9)}, r"betas\[0\]=1.0 must be at least 0 and below 1"),
        ({"eps": -1.0}, "eps"),
        ({"accumulate": 0}, "accumulate=0 must be at least 1"),
        ({"weight_decay": float("nan")}, "weight_decay=nan"),
    ],
)
def test_hyperparameters_out_of_range(options: dict[str, object], message: str) -> None:
    from decentcomm.optim import DAdamW

    with pytest.raises(ConfigError, match=message):
        DAdamW([torch.nn.Parameter(torch.zeros(1))], **options)  # type: ignore[arg-type]


def test_parameters_lie_padded_in_reverse_order_in_buckets() -> None:
    params = [torch.zeros(3), torch.zeros(20, 2), torch.zeros(()), torch.zeros(0)]
    layout = FlatLayout(params, bucket_bytes=128)
    assert layout.buckets == [32, 48, 16]
    offsets = [p.offset for p in layout.places]
    assert offsets == [80, 32, 16, 0]
    flat = torch.arange(float(layout.size))
    assert layout.views(flat)[1][0].tolist() == [32.0, 33.0]
