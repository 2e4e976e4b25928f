"""Fused kernels against a plain fp64 computation: every instruction set, number of sources, option and awkward size."""

import json
import math
import sys
from pathlib import Path

import pytest
import torch

from decentcomm import _C
from decentcomm.errors import Error
from tests import oracle
from tests.launching import clean_environment, run

ROOT = Path(__file__).parent.parent
SIZES = [1, 15, 16, 17, 63, 1000, 300_001]
DTYPES = {torch.float32: (_C.Element.float32, 2e-6), torch.float64: (_C.Element.float64, 1e-14)}
ELEMENTS = {torch.bfloat16: _C.Element.bfloat16, **{dtype: element for dtype, (element, _) in DTYPES.items()}}


def aligned(n: int, dtype: torch.dtype) -> torch.Tensor:
    """Zeros on a 64-byte boundary, as the flat buffers are."""
    item = dtype.itemsize
    memory = torch.zeros(n + 64 // item, dtype=dtype)
    skip = -memory.data_ptr() % 64 // item
    return memory[skip : skip + n]


def random(n: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return aligned(n, dtype).copy_(torch.randn(n, generator=torch.Generator().manual_seed(seed)))


def sources(n: int, k: int, dtype: torch.dtype) -> list[tuple[torch.Tensor, float]]:
    weights = torch.arange(1.0, k + 2).div(torch.arange(1.0, k + 2).sum()).tolist()
    return [(random(n, dtype, 100 + j), w) for j, w in enumerate(weights)]


def incoming(mixed: list[tuple[torch.Tensor, float]], target: torch.Tensor) -> _C.Incoming:
    own = mixed[0][0]
    pointers = [(x.data_ptr(), w) for x, w in mixed]
    return _C.Incoming(
        DTYPES[own.dtype][0], own.data_ptr(), target.data_ptr(), own.numel() * own.element_size(), pointers
    )


def reference(mixed: list[tuple[torch.Tensor, float]]) -> torch.Tensor:
    return sum((w * x.double() for x, w in mixed), torch.zeros(mixed[0][0].numel(), dtype=torch.float64))


def worst(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.double() - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", range(9))
def test_mixing(k: int, dtype: torch.dtype) -> None:
    _, tolerance = DTYPES[dtype]
    for n in SIZES:
        mixed, target = sources(n, k, dtype), aligned(n, dtype)
        _C.weighted_mix(incoming(mixed, target), 2)
        assert worst(target, reference(mixed)) < tolerance


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("accumulate", [1, 2, 3])
@pytest.mark.parametrize("k", [0, 1, 4])
def test_mix_and_adam(k: int, accumulate: int, decoupled: bool, dtype: torch.dtype) -> None:
    element, tolerance = DTYPES[dtype]
    n = 1003
    mixed = sources(n, k, dtype)
    m, v, b = (aligned(n, dtype) for _ in range(3))
    table = _C.TensorTable([0], [n], [0], element)
    settings = [_C.AdamSettings(0.01, 0.9, 0.99, 1e-8, 0.1, decoupled)]
    rule = oracle.Adam(0.01, (0.9, 0.99), 1e-8, 0.1, decoupled, accumulate)
    for t in range(1, 8):
        grad, target = random(n, dtype, t), aligned(n, dtype)
        table.set([grad.data_ptr()], [t], [False])
        into = incoming(mixed, target)
        _C.mix_adam(into, table, settings, m.data_ptr(), v.data_ptr(), b.data_ptr(), accumulate, (0, 0), 1.0, 2)
        own = mixed[0][0].double()
        expected = rule.update(0, t, own, reference(mixed), grad.double())
        assert worst(target, expected) < tolerance
        assert worst(m, rule.state[0][0]) < tolerance if t % accumulate == 0 else True
        mixed[0] = (target, mixed[0][1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "options", [{}, {"momentum": 0.9}, {"momentum": 0.9, "dampening": 0.3}, {"momentum": 0.9, "nesterov": True}]
)
def test_mix_and_sgd(options: dict[str, float], dtype: torch.dtype) -> None:
    element, tolerance = DTYPES[dtype]
    n = 515
    mixed, momentum = sources(n, 2, dtype), aligned(n, dtype)
    full = {"momentum": 0.0, "dampening": 0.0, "weight_decay": 0.1, "nesterov": False, **options}
    rule = oracle.Sgd(0.05, **full)  # type: ignore[arg-type]
    table, settings = _C.TensorTable([0], [n], [0], element), [_C.SgdSettings(0.05, **full)]  # type: ignore[arg-type]
    for t in range(1, 6):
        grad, target = random(n, dtype, t), aligned(n, dtype)
        table.set([grad.data_ptr()], [t], [False])
        pointer = momentum.data_ptr() if full["momentum"] else 0
        _C.mix_sgd(incoming(mixed, target), table, settings, pointer, (0, 0), 1.0, 1)
        expected = rule.update(0, t, mixed[0][0].double(), reference(mixed), grad.double())
        assert worst(target, expected) < tolerance
        mixed[0] = (target, mixed[0][1])


def test_a_tensor_without_gradient_is_mixed_only_and_padding_is_left_alone() -> None:
    n, mixed, target = 96, sources(96, 1, torch.float32), aligned(96, torch.float32).fill_(7)
    m, v, grad = (aligned(n, torch.float32) for _ in range(3))
    table = _C.TensorTable([0, 32, 80], [20, 40, 16], [0, 0, 0], _C.Element.float32)
    table.set([grad.data_ptr(), 0, grad.data_ptr()], [1, 0, 1], [False] * 3)
    settings = [_C.AdamSettings(0.5, 0.9, 0.99, 1e-8, 0.0, True)]
    _C.mix_adam(incoming(mixed, target), table, settings, m.data_ptr(), v.data_ptr(), 0, 1, (0, 0), 1.0, 1)
    expected = reference(mixed)
    for begin, end in ((0, 20), (32, 72), (80, 96)):  # gradients are 0: no update either
        assert worst(target[begin:end], expected[begin:end]) < 1e-6
    assert target[20:32].eq(7).all() and target[72:80].eq(7).all()


def test_one_group_has_one_setting_each() -> None:
    n, mixed, target = 32, sources(32, 0, torch.float32), aligned(32, torch.float32)
    grad, m, v = random(16, torch.float32, 1), aligned(n, torch.float32), aligned(n, torch.float32)
    table = _C.TensorTable([0, 16], [16, 16], [0, 1], _C.Element.float32)
    table.set([grad.data_ptr()] * 2, [1, 1], [False] * 2)
    settings = [_C.AdamSettings(lr, 0.9, 0.99, 1e-12, 0.0, True) for lr in (0.5, 0.25)]
    _C.mix_adam(incoming(mixed, target), table, settings, m.data_ptr(), v.data_ptr(), 0, 1, (0, 0), 1.0, 1)
    moved = (target - mixed[0][0]).abs()
    torch.testing.assert_close(moved, torch.tensor([0.5, 0.25]).repeat_interleave(16), rtol=1e-5, atol=0)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(Error, match="at least one source"):
        _C.weighted_mix(_C.Incoming(_C.Element.float32, 0, 0, 64, []), 1)
    with pytest.raises(Error, match="one entry for each tensor"):
        _C.TensorTable([0], [1], [0], _C.Element.float32).set([], [], [])


@pytest.mark.parametrize("isa", [s for s in _C.instruction_sets()])
def test_every_instruction_set(isa: str) -> None:
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        __file__,
        "-k",
        "mixing or mix_and or squares or finite",
    ]
    done = run(argv, env=clean_environment(DECENTCOMM_ISA=isa, PYTHONPATH=str(ROOT)))
    assert done.returncode == 0, done.stdout
    code = "import json; from decentcomm._C import Environment; print(json.dumps(Environment.get().instruction_set))"
    chosen = run([sys.executable, "-c", code], env=clean_environment(DECENTCOMM_ISA=isa))
    assert json.loads(chosen.stdout) == isa


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int16)


@pytest.mark.parametrize("n", [1, 15, 16, 33, 1003])
def test_mixing_in_bfloat16_rounds_as_torch_does(n: int) -> None:
    special = torch.tensor([0.0, -0.0, 1.0, 1.00390625, 1.01171875, 3.3895e38, -3.4e38, 1e-40, 65504.0])
    wide = torch.cat([special, torch.randn(1003, generator=torch.Generator().manual_seed(1))])[:n]
    own, target = aligned(n, torch.bfloat16), aligned(n, torch.bfloat16)
    master = aligned(n, torch.float32).copy_(wide)
    table = _C.TensorTable([0], [n], [0], _C.Element.float32)
    table.set([0], [0.0], [True])  # frozen: the target gets the rounded master, which stays as it is
    into = _C.Incoming(_C.Element.bfloat16, own.data_ptr(), target.data_ptr(), 2 * n, [(own.data_ptr(), 1.0)])
    _C.mix_sgd(into, table, [_C.SgdSettings(0.1, 0, 0, 0, False)], 0, (master.data_ptr(),) * 2, 1.0, 1)
    assert torch.equal(bits(target), bits(wide.bfloat16()))
    assert torch.equal(master, wide)


@pytest.mark.parametrize("grad_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("k", [0, 1, 3])
def test_mix_and_adam_through_a_master(k: int, in_place: bool, grad_dtype: torch.dtype) -> None:
    n, scale = 1003, 0.5
    wires = [random(n, torch.bfloat16, 100 + j) for j in range(k + 1)]
    weights = [1 / (k + 1) - 1, *[1 / (k + 1)] * k]
    target, master = aligned(n, torch.bfloat16), random(n, torch.float32, 7)
    new = master if in_place else aligned(n, torch.float32)
    m, v = aligned(n, torch.float32), aligned(n, torch.float32)
    table = _C.TensorTable([0], [n], [0], ELEMENTS[grad_dtype])
    rule = oracle.Adam(0.01, (0.9, 0.99), 1e-8, 0.1)
    for t in range(1, 5):
        grad = random(n, grad_dtype, t)
        table.set([grad.data_ptr()], [t], [False])
        own = master.double()
        mixed = own + sum(w * x.double() for x, w in zip(wires, weights, strict=True))
        sources = [(x.data_ptr(), w) for x, w in zip(wires, weights, strict=True)]
        into = _C.Incoming(_C.Element.bfloat16, wires[0].data_ptr(), target.data_ptr(), 2 * n, sources)
        settings = [_C.AdamSettings(0.01, 0.9, 0.99, 1e-8, 0.1, False)]
        assert _C.mix_adam(
            into, table, settings, m.data_ptr(), v.data_ptr(), 0, 1, (master.data_ptr(), new.data_ptr()), scale, 2
        )
        assert in_place or torch.equal(master.double(), own)
        assert worst(new, rule.update(0, t, own, mixed, scale * grad.double())) < 2e-6
        assert torch.equal(bits(target), bits(new.bfloat16()))
        master.copy_(new)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_sum_of_squares_is_exact_enough_and_shows_what_is_not_finite(dtype: torch.dtype) -> None:
    for n in (1, 15, 16, 17, 300_001):
        grad = random(n, dtype, 3) * (1e20 if dtype != torch.float64 else 1.0)  # a float32's square would overflow
        table = _C.TensorTable([0, n], [n, n], [0, 0], ELEMENTS[dtype])
        table.set([grad.data_ptr(), 0], [1, 1], [False, False])
        expected = float(grad.double().square().sum())
        assert _C.sum_of_squares(table, 2) == pytest.approx(expected, rel=1e-12)
        for bad in (float("nan"), float("inf"), float("-inf")):
            grad[n - 1] = bad
            assert not math.isfinite(_C.sum_of_squares(table, 1))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("at", [0, 16, 34])
def test_a_kernel_says_if_it_made_something_that_is_not_finite(at: int, bad: float) -> None:
    n, mixed, target = 35, sources(35, 1, torch.float32), aligned(35, torch.float32)
    grad, m, v = random(n, torch.float32, 1), aligned(n, torch.float32), aligned(n, torch.float32)
    table = _C.TensorTable([0], [n], [0], _C.Element.float32)
    table.set([grad.data_ptr()], [1], [False])
    adam = [_C.AdamSettings(0.5, 0.9, 0.99, 1e-8, 0.0, True)]
    sgd = [_C.SgdSettings(0.1, 0.9, 0, 0, False)]
    assert _C.mix_adam(incoming(mixed, target), table, adam, m.data_ptr(), v.data_ptr(), 0, 1, (0, 0), 1.0, 1)
    assert _C.mix_sgd(incoming(mixed, target), table, sgd, m.data_ptr(), (0, 0), 1.0, 1)
    grad[at] = bad
    assert not _C.mix_sgd(incoming(mixed, target), table, sgd, m.data_ptr(), (0, 0), 1.0, 1)
    m.zero_()
    assert not _C.mix_adam(incoming(mixed, target), table, adam, m.data_ptr(), v.data_ptr(), 0, 1, (0, 0), 1.0, 1)
