"""A rank that trains over every topology with every optimizer and prints how far it is from the dense oracle."""

import json
import sys

import torch

import decentcomm as dc
from tests import oracle

STEPS = 20
SHAPES = [(37,), (8, 9), (1,), (3, 5, 7), (130,)]
LARGE = [(300, 700), (11,)]  # more than one chunk of a group's mean
OPTIMIZERS = {
    "DAdam": (dc.optim.DAdam, {"lr": 0.01, "weight_decay": 0.1}, oracle.Adam, {}),
    "DAdamW": (dc.optim.DAdamW, {"lr": 0.01, "weight_decay": 0.1}, oracle.Adam, {"decoupled": True}),
    "AccumAdam": (dc.optim.DAdam, {"lr": 0.01, "weight_decay": 0.1, "accumulate": 3}, oracle.Adam, {}),
    "AccumAdamW": (
        dc.optim.DAdamW,
        {"lr": 0.01, "weight_decay": 0.1, "accumulate": 4},
        oracle.Adam,
        {"decoupled": True},
    ),
    "DSGD": (dc.optim.DSGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True}, oracle.Sgd, {}),
    "DSGD plain": (dc.optim.DSGD, {"lr": 0.05}, oracle.Sgd, {}),
}


def gradient(rank: int, step: int, x: torch.Tensor) -> torch.Tensor:
    """A gradient that depends on all three, the same in fp32 and fp64 up to rounding."""
    noise = torch.randn(x.numel(), generator=torch.Generator().manual_seed(1000 * step + rank))
    return noise.to(x.dtype) + 0.5 * x


def topologies(size: int) -> list[dc.topology.Topology]:
    """Every topology that serves this size, over one and two nodes where nodes matter."""
    made = []
    for name in dc.topology.names():
        for nodes in (1, 2) if name in ("aer", "hierarchical") and size > 1 else (1,):
            try:
                weights = dc.topology.make("ring", size=size).matrix()
                options = {"weights": weights} if name == "custom" else {}
                made.append(dc.topology.make(name, size=size, nodes=nodes, **options))
            except dc.errors.TopologyError as e:
                assert "nearest" in str(e)
    return made


def distance(topology: dc.topology.Topology, which: str, dtype: torch.dtype, shapes: list[tuple[int, ...]]) -> float:
    """Relative distance of this rank's parameters from the oracle's after STEPS steps."""
    world = dc.world()
    cls, options, rule, more = OPTIMIZERS[which]
    generator = torch.Generator().manual_seed(7)
    start = [torch.randn(shape, generator=generator) for shape in shapes]
    # Other ranks start elsewhere: the optimizer must make them equal to rank 0.
    params = [torch.nn.Parameter((s + world.rank).to(dtype)) for s in start]
    optimizer = cls(params, topology=topology, bucket_bytes=512, **options)
    for t in range(STEPS):
        flat = torch.cat([p.detach().reshape(-1) for p in params])
        pieces = gradient(world.rank, t, flat).split([p.numel() for p in params])
        for p, g in zip(params, pieces, strict=True):
            p.grad = g.view_as(p)
        optimizer.step()
    flat_start = torch.cat([s.reshape(-1) for s in start])
    x = oracle.train(topology, rule(**options, **more), flat_start, gradient, STEPS)
    mine = torch.cat([p.detach().reshape(-1) for p in params]).double()
    mean_distance = optimizer.consensus_distance()
    expected = float((x - x.mean(0)).square().sum() / x.mean(0).square().sum())
    assert abs(mean_distance - expected) <= 1e-4 * expected + 1e-10, (mean_distance, expected)
    with optimizer.averaged():
        mean = torch.cat([p.detach().reshape(-1) for p in params]).double()
    back = torch.cat([p.detach().reshape(-1) for p in params]).double()
    assert torch.equal(back, mine), "averaged() must restore the replica bit for bit"
    assert float((mean - x.mean(0)).norm() / x.mean(0).norm()) < 1e-5
    return float((mine - x[world.rank]).norm() / x[world.rank].norm())


def main() -> None:
    """Print the distances of all cases."""
    world = dc.init()
    errors = {}
    for topology in topologies(world.size):
        for which in OPTIMIZERS if "--all" in sys.argv else ("DAdamW", "DSGD"):
            errors[f"{topology!r} {which}"] = distance(topology, which, torch.float32, SHAPES)
    for topology in (dc.topology.make("complete"), dc.topology.make("ring")):
        errors[f"{topology!r} large"] = distance(topology, "DAdamW", torch.float32, LARGE)
        errors[f"{topology!r} float64"] = distance(topology, "AccumAdamW", torch.float64, SHAPES)
    print(json.dumps({"rank": world.rank, "errors": errors}), flush=True)


if __name__ == "__main__":
    main()
