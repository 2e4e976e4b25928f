"""Hugging Face's Trainer and Lightning with only the optimizer changed: the examples, as users run them."""

import statistics
from pathlib import Path

from tests.launching import launch

EXAMPLES = Path(__file__).parent.parent / "examples"
ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1"}


def test_a_hugging_face_trainer_run(tmp_path: Path) -> None:
    script = EXAMPLES / "hugging_face.py"
    ours = launch("torchrun", 2, script, "--out", str(tmp_path), **ENVIRONMENT)
    theirs = launch("torchrun", 2, script, "--optimizer", "AdamW", **ENVIRONMENT)
    for r, t in zip(ours, theirs, strict=True):
        assert r["steps"] == 60
        assert r["losses"][0] > 4 and abs(r["losses"][-1] / t["losses"][-1] - 1) < 0.05, "as good as AdamW under DDP"
        assert r["mean_loss"] < 3.5
        assert 0 < r["distance"] < 1e-4
        assert r["bytes"] > 0
    assert theirs[0]["sum"] == theirs[1]["sum"]
    assert ours[0]["sum"] != ours[1]["sum"], "replicas that are equal were averaged by DDP"

    more = launch("torchrun", 2, script, "--out", str(tmp_path), "--resume", "--steps", "70", **ENVIRONMENT)
    for r, first in zip(more, ours, strict=True):
        assert r["steps"] == 70
        assert r["losses"][:6] == first["losses"], "the Trainer's own log goes on"
        assert len(r["losses"]) == 7 and r["losses"][-1] < 1.05 * first["losses"][-1]


def test_a_lightning_run() -> None:
    # Mixed precision with gradient clipping is what Lightning refuses for torch's fused optimizers.
    ranks = launch("torchrun", 2, EXAMPLES / "lightning_run.py", "--precision", "bf16-mixed", **ENVIRONMENT)
    for r in ranks:
        assert r["steps"] == 5 * 8  # 1024 samples, 2 ranks, batches of 32, 2 of them a step
        assert statistics.mean(r["losses"][-16:]) < 0.7 * statistics.mean(r["losses"][:4])
        assert r["mean_loss"] < 0.6
        assert 0 < r["distance"] < 1e-1
    assert ranks[0]["sum"] != ranks[1]["sum"], "replicas that are equal were averaged by DDP"
