"""Autocast, GradScaler, bfloat16 parameters and bfloat16 on the wire: ranks for test_precision.py."""

from typing import Any

import torch

import decentcomm as dc
from tests import oracle
from tests.ranks.cases import apart, batch, flat, mlp, noise, refusal, run_cases

STEPS = 20
COUNT = 5000


def gradient(rank: int, t: int, x: torch.Tensor) -> torch.Tensor:
    """Powers of two, so that bfloat16 holds them exactly."""
    return noise(x.numel(), seed=100 * t + rank).sign() * 0.25


def narrow(which: str) -> dict[str, Any]:
    """bfloat16 parameters, or bfloat16 on the wire: where the oracle that rounds the same way is."""
    world, results = dc.world(), {}
    start = noise(COUNT, seed=1).bfloat16().float()
    for name in ("ring", "complete", "one-peer-exponential"):
        topology = dc.topology.make(name)
        for rule, options, ours in (
            (oracle.Adam, {"lr": 0.01, "weight_decay": 0.1}, dc.optim.DAdam),
            (oracle.Sgd, {"lr": 0.01, "momentum": 0.9}, dc.optim.DSGD),
        ):
            dtype, wire = (torch.bfloat16, None) if which == "parameters" else (torch.float32, torch.bfloat16)
            p = torch.nn.Parameter(start.to(dtype))
            optimizer = ours([p], topology=topology, wire_dtype=wire, **options)
            for t in range(STEPS):
                p.grad = gradient(world.rank, t, p.detach()).to(dtype)
                optimizer.step()
            mine = optimizer.state[p]["master"] if dtype == torch.bfloat16 else p
            x = oracle.train(topology, rule(**options), start, gradient, STEPS, wire=torch.bfloat16)[world.rank]
            error = (mine.double() - x).abs() / x.abs().max()
            assert dtype == torch.float32 or torch.equal(mine.bfloat16(), p)
            # Where float32 and float64 round to different neighbours in bfloat16, one element differs by 2^-8.
            results[f"{name} {ours.__name__}"] = [
                float((error > 1e-5).double().mean()),
                float(error.max()),
                optimizer.stats()["bytes"] / STEPS / COUNT,
                optimizer.consensus_distance(),
            ]
    return results


def mean_stays() -> dict[str, float]:
    """Without gradients the mean of all replicas stays, and they come together as far as bfloat16 can tell."""
    world = dc.world()
    p = torch.nn.Parameter(torch.zeros(COUNT))
    optimizer = dc.optim.DSGD([p], topology="ring", wire_dtype=torch.bfloat16)
    with torch.no_grad():
        p.copy_(noise(COUNT, seed=world.rank))
    mean = torch.stack([noise(COUNT, seed=r) for r in range(world.size)]).mean(0)
    before = optimizer.consensus_distance()
    for _ in range(50):
        optimizer.mix()
    after = optimizer.consensus_distance()
    with optimizer.averaged():
        return {"before": before, "after": after, "moved": apart(p, mean)}


def scaler(unscale: str) -> dict[str, Any]:
    """Rank 1 overflows at steps 2 and 5: it only mixes then, and its scale alone is halved; all stay in step."""
    world, topology = dc.world(), dc.topology.make("ring")
    p = torch.nn.Parameter(noise(60, seed=3))
    optimizer = dc.optim.DAdamW([p], lr=0.01, weight_decay=0.0, topology=topology)
    scale = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4)

    def wanted(rank: int, t: int, x: torch.Tensor) -> torch.Tensor | None:
        return None if rank == 1 and t in (2, 5) else 2 * x + noise(60, seed=50 * t + rank).to(x.dtype)

    scales = []
    for t in range(9):
        loss = (p * p).sum() + (p * noise(60, seed=50 * t + world.rank)).sum()
        if wanted(world.rank, t, p.detach()) is None:
            loss = loss * float("inf")
        scale.scale(loss).backward()
        if unscale:
            scale.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_([p], 1e9)
        scale.step(optimizer)
        scale.update()
        optimizer.zero_grad()
        scales.append(scale.get_scale())
    x = oracle.train(topology, oracle.Adam(0.01), noise(60, seed=3), wanted, 9)
    return {
        "error": apart(p, x[world.rank]),
        "scales": scales,
        "steps": optimizer.steps,
        "updates": float(optimizer.state[p]["step"]),
        "skipped": optimizer.stats()["skipped"],
        "norm": optimizer.stats()["grad_norm"],
        "saved": scale.state_dict()["_growth_tracker"],
    }


def scaler_clips() -> dict[str, float]:
    """max_grad_norm under a GradScaler is of the unscaled gradients."""
    results = []
    for scaled in (False, True):
        net = mlp()
        optimizer = dc.optim.DAdamW(net.parameters(), topology="ring", max_grad_norm=0.3)
        scale = torch.amp.GradScaler("cpu", enabled=scaled, init_scale=4096.0)
        for t in range(6):
            scale.scale(net(batch(t)).square().sum()).backward()
            scale.step(optimizer)
            scale.update()
            optimizer.zero_grad()
        results.append(flat(net.parameters()))
    return {"error": apart(results[1], results[0])}


def scaler_in_backward() -> str:
    """Refused: the scaler judges when it is too late."""
    net = mlp()
    optimizer = dc.optim.DSGD(net.parameters(), in_backward=True)
    scale = torch.amp.GradScaler("cpu")
    scale.scale(net(batch(0)).sum()).backward()
    net[0].bias.grad = torch.ones(40)
    return refusal(lambda: scale.step(optimizer))


def autocast_alone() -> dict[str, float]:
    """World size 1, autocast to bfloat16, and mixed float32, bfloat16 and float64 parameters: as AdamW."""
    results = []
    for make in (dc.optim.DAdamW, torch.optim.AdamW):
        net = mlp()
        optimizer = make(net.parameters(), lr=0.01)
        for t in range(10):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = net(batch(t)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append(flat(net.parameters()))
    mixed = [torch.nn.Parameter(noise(40, seed=1).to(d)) for d in (torch.float32, torch.bfloat16, torch.float64)]
    wide = [torch.nn.Parameter(p.detach().to(torch.float64)) for p in mixed]
    ours, theirs = dc.optim.DAdamW(mixed, lr=0.01), torch.optim.AdamW(wide, lr=0.01)
    for t in range(10):
        for p, q in zip(mixed, wide, strict=True):
            p.grad = gradient(0, t, p.detach()).to(p.dtype)
            q.grad = gradient(0, t, q.detach()).to(q.dtype)
        ours.step()
        theirs.step()
    errors = [apart(ours.state[p].get("master", p), q) for p, q in zip(mixed, wide, strict=True)]
    return {"autocast": apart(*results), "float32": errors[0], "master": errors[1], "float64": errors[2]}


if __name__ == "__main__":
    run_cases(globals())
