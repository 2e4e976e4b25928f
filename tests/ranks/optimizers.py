"""Ranks for test_optim.py: the first argument names the case; each prints one JSON object."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

import decentcomm as dc


def model(seed: int = 0) -> torch.nn.Sequential:
    """Linear layers with a BatchNorm, so that there are buffers."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 40), torch.nn.BatchNorm1d(40), torch.nn.ReLU(), torch.nn.Linear(40, 3)
    )


def flat(net: torch.nn.Module) -> torch.Tensor:
    """All parameters."""
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


def equals_torch() -> dict[str, float]:
    """Alone: as torch.optim, with groups, a scheduler and a parameter that is unused at first."""
    errors = {}
    cases = {
        "adam": (dc.optim.DAdam, torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1}),
        "adamw": (dc.optim.DAdamW, torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
        "sgd": (dc.optim.DSGD, torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
        "sgd dampening": (dc.optim.DSGD, torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "dampening": 0.2}),
    }
    for name, (ours, theirs, options) in cases.items():
        # No normalisation: the bias before it has gradients of pure rounding error, which Adam blows up.
        nets = [torch.nn.Sequential(*(m for m in model() if not isinstance(m, torch.nn.BatchNorm1d))) for _ in range(2)]
        optimizers = []
        for net, cls in zip(nets, (ours, theirs), strict=True):
            first, last = list(net[0].parameters()), list(net[2].parameters())
            optimizers.append(cls([{"params": first}, {"params": last, "lr": 0.003}], **options))
        schedulers = [torch.optim.lr_scheduler.StepLR(o, 5, 0.5) for o in optimizers]
        for t in range(20):
            x = torch.randn(16, 6, generator=torch.Generator().manual_seed(t))
            for net, optimizer, scheduler in zip(nets, optimizers, schedulers, strict=True):
                optimizer.zero_grad()
                y = net(x) if t > 3 else net[:2](x)  # the last layer gets no gradient at first
                y.square().mean().backward()
                optimizer.step()
                scheduler.step()
        a, b = map(flat, nets)
        errors[name] = float((a - b).norm() / b.norm())
    return errors


def start_equal() -> dict[str, object]:
    """Parameters, buffers and frozen parameters become rank 0's, and layouts of all kinds survive."""
    net = model(seed=dc.world().rank)
    net[1].running_mean.fill_(dc.world().rank)
    net[0].weight.requires_grad_(False)
    conv = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    used = [p for p in net.parameters() if p.requires_grad]
    stride = conv.weight.stride()
    dc.optim.DAdamW([*used, *conv.parameters()], module=torch.nn.ModuleList([net, conv]))
    assert conv.weight.stride() == stride
    return {
        "parameters": float(flat(net).double().sum()),
        "frozen": float(net[0].weight.double().sum()),
        "mean": float(net[1].running_mean.sum()),
    }


def allreduce() -> dict[str, float]:
    """AllReduce: every rank ends as one process with the whole batch would."""
    world = dc.world()
    net, whole = (torch.nn.Linear(5, 2, dtype=torch.float64) for _ in range(2))
    torch.manual_seed(3)
    with torch.no_grad():
        for p, q in zip(net.parameters(), whole.parameters(), strict=True):
            q.copy_(torch.randn(q.shape, dtype=q.dtype))
            p.copy_(q + world.rank)
    optimizer = dc.optim.AllReduce(torch.optim.AdamW(net.parameters(), lr=0.05), module=net)
    single = torch.optim.AdamW(whole.parameters(), lr=0.05)
    for t in range(10):
        xs = [
            torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(100 * t + r))
            for r in range(world.size)
        ]
        net(xs[world.rank]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.stack([whole(x).square().mean() for x in xs]).mean().backward()
        single.step()
        single.zero_grad()
    with optimizer.averaged():
        distance = float((flat(net) - flat(whole)).norm())
    return {"distance": distance, "steps": optimizer.stats()["steps"], "consensus": optimizer.consensus_distance()}


def disagree(what: str) -> dict[str, str]:
    """Rank 1 has another model or setting."""
    odd = dc.world().rank == 1
    net = torch.nn.Linear(4, 3 if odd and what == "shape" else 2)
    if odd and what == "dtype":
        net.bias = torch.nn.Parameter(net.bias.detach().double())
    params = list(net.parameters())
    if odd and what == "order":
        params.reverse()
    if odd and what == "count":
        params.pop()
    lr = 0.2 if odd and what == "lr" else 0.1
    topology = "complete" if odd and what == "topology" else "ring"
    try:
        dc.optim.DAdamW(params, lr=lr, topology=topology, module=net)
    except dc.errors.DisagreementError as e:
        return {"error": str(e)}
    return {"error": "none"}


def late() -> dict[str, str]:
    """Rank 1 never takes its second step: the others' wait ends with a message."""
    p = torch.nn.Parameter(torch.zeros(10))
    optimizer = dc.optim.DSGD([p], topology="ring", timeout=1.0)
    p.grad = torch.ones(10)
    optimizer.step()
    error = ""
    if dc.world().rank != 1:
        try:
            for _ in range(5):
                optimizer.step()
        except dc.errors.DeadlineError as e:
            error = str(e)
    return {"error": error}


def killed() -> dict[str, object]:
    """Rank 1 is killed in mid-run; nothing of ours is left in /dev/shm while training runs."""
    p = torch.nn.Parameter(torch.zeros(100_000))
    optimizer = dc.optim.DAdamW([p], topology="ring", timeout=1.0)
    p.grad = torch.ones_like(p)
    for _ in range(10):
        optimizer.step()
    named = [f.name for f in Path("/dev/shm").glob("decentcomm-*")]
    if dc.world().rank == 1:
        print(json.dumps({"rank": 1, "named": named}), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            optimizer.step()
    except dc.errors.DeadlineError as e:
        return {"named": named, "error": str(e)}


def interrupted() -> dict[str, float]:
    """Ctrl-C while waiting for a rank that does not come."""
    p = torch.nn.Parameter(torch.zeros(10))
    optimizer = dc.optim.DSGD([p], topology="ring", timeout=60.0)
    p.grad = torch.ones(10)
    if dc.world().rank == 1:
        time.sleep(3)
        return {"seconds": 0.0}
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    start = time.monotonic()
    try:
        for _ in range(5):
            optimizer.step()
    except KeyboardInterrupt:
        return {"seconds": time.monotonic() - start}
    return {"seconds": -1.0}


def unequal_use() -> dict[str, float]:
    """Ranks differ in which parameters get gradients: nobody hangs, mixing goes on."""
    rank = dc.world().rank
    params = [torch.nn.Parameter(torch.full((50,), float(i))) for i in range(4)]
    optimizer = dc.optim.DSGD(params, lr=1.0, topology="complete", bucket_bytes=256)
    for _ in range(3):
        for i, p in enumerate(params):
            p.grad = torch.ones(50) if i == rank else None
        optimizer.step()
    with optimizer.averaged():
        return {f"p{i}": float(p[0]) for i, p in enumerate(params)}


if __name__ == "__main__":
    dc.init()
    case, *arguments = sys.argv[1:]
    print(json.dumps({"rank": dc.world().rank, **globals()[case](*arguments)}), flush=True)
