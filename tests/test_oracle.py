"""Training in real processes equals the dense oracle, for every topology, optimizer and number of ranks."""

from pathlib import Path

import pytest

from tests.launching import launch

SCRIPT = Path(__file__).parent / "ranks" / "train.py"


@pytest.mark.parametrize(
    ("launcher", "size", "more"),
    [("torchrun", n, "--all") for n in (1, 2, 3, 4, 5, 8)] + [("mpirun", 4, "--all")],
)
def test_training_equals_the_dense_oracle(launcher: str, size: int, more: str) -> None:
    root = str(Path(__file__).parent.parent)
    ranks = launch(launcher, size, SCRIPT, more, PYTHONPATH=root)
    assert len(ranks) == size
    for rank in ranks:
        assert len(rank["errors"]) >= 6 * (8 if size > 1 else 12)
        assert {case: e for case, e in rank["errors"].items() if not e < 1e-5} == {}
