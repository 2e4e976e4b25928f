"""Param groups, parameters of all kinds, gradients and their policies: ranks for test_groups.py."""

import copy
import math
import pickle
import time
import warnings
from typing import Any

import torch

import decentcomm as dc
from tests import oracle
from tests.ranks.cases import apart, batch, digest, flat, mlp, noise, refusal, run_cases


class Everything(torch.nn.Module):
    """Tied weights, a channels_last convolution, a float64 layer, a layer that is used later, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.embed = torch.nn.Embedding(11, 8)
        self.conv = torch.nn.Conv2d(1, 4, 3, padding=1).to(memory_format=torch.channels_last)
        self.late = torch.nn.Linear(8, 8)
        self.frozen = torch.nn.Linear(8, 8)
        self.precise = torch.nn.Linear(8, 8, dtype=torch.float64)
        self.out = torch.nn.Linear(8, 11, bias=False)
        self.out.weight = self.embed.weight
        for p in self.frozen.parameters():
            p.requires_grad_(False)

    def forward(self, tokens: torch.Tensor, use_late: bool) -> torch.Tensor:
        """A loss."""
        x = self.frozen(self.embed(tokens))
        image = self.conv(x[:, None].to(memory_format=torch.channels_last))
        x = image.mean(1)
        if use_late:
            x = self.late(x)
        x = self.precise(x.double()).float()
        return torch.nn.functional.cross_entropy(self.out(x).transpose(1, 2), tokens)


def one_run(make: Any, **options: Any) -> torch.Tensor:
    """A user's loop with everything in it, under any optimizer."""
    net = Everything()
    decay = [p for p in net.parameters() if p.dim() > 1 and p is not net.late.weight]
    plain = [p for p in net.parameters() if p.dim() <= 1 and p is not net.late.bias]
    optimizer = make([{"params": decay, "weight_decay": 0.1}, {"params": plain, "lr": 0.003}], lr=0.01, **options)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, [0.01, 0.003], total_steps=40)  # moves betas, too
    fresh = torch.Generator().manual_seed(1)
    for t in range(16):
        if t == 5:  # parameters that come later
            optimizer.add_param_group({"params": list(net.late.parameters()), "lr": 0.02, "weight_decay": 0.0})
        if t == 9:  # and such as are unfrozen later
            for p in net.frozen.parameters():
                p.requires_grad_(True)
        optimizer.zero_grad(set_to_none=t % 2 == 0)
        for _ in range(1 + t % 3):  # micro-batches, any number
            tokens = torch.randint(11, (4, 7), generator=fresh)
            net(tokens, use_late=t >= 7).backward()  # late has no gradient in its first steps
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        if t < 5:  # it knows nothing of groups that come later
            scheduler.step()
    return flat(net.parameters())


def everything_alone() -> dict[str, float]:
    """World size 1: as torch's AdamW."""
    ours, theirs = one_run(dc.optim.DAdamW, bucket_bytes=300), one_run(torch.optim.AdamW)
    return {"error": apart(ours, theirs)}


def frozen_stays() -> dict[str, bool]:
    """A frozen parameter is carried over bit for bit, though 1/3 + 1/3 + 1/3 of a float is not that float."""
    frozen, used = torch.nn.Parameter(noise(1000, seed=1), requires_grad=False), torch.nn.Parameter(noise(9, seed=2))
    before = frozen.clone()
    optimizer = dc.optim.DAdamW([frozen, used], topology="ring")
    for t in range(10):
        used.grad = noise(9, seed=t)
        frozen.grad = torch.ones_like(frozen) if t == 3 else None  # left over from before it was frozen
        optimizer.step()
    stayed = torch.equal(frozen, before)
    frozen.requires_grad_(True)
    frozen.grad = torch.ones_like(frozen)
    optimizer.step()
    return {"stayed": stayed, "moves when unfrozen": not torch.equal(frozen, before)}


def gradient(rank: int, t: int, x: torch.Tensor) -> torch.Tensor:
    """Depends on all three."""
    return noise(x.numel(), seed=100 * t + rank).to(x.dtype) + 0.3 * x


def added_group() -> dict[str, float]:
    """A group that all ranks add at step 5 starts there in the topology, equal to rank 0's."""
    world, topology = dc.world(), dc.topology.make("one-peer-exponential")
    a, b = torch.nn.Parameter(noise(70, seed=1)), torch.nn.Parameter(noise(33, seed=2) + world.rank)
    optimizer = dc.optim.DAdamW([a], lr=0.01, topology=topology)
    for t in range(12):
        if t == 5:
            optimizer.add_param_group({"params": [b], "lr": 0.05})
        a.grad, b.grad = gradient(world.rank, t, a.detach()), gradient(world.rank, t, b.detach())
        optimizer.step()
    decay = {"weight_decay": 1e-2, "decoupled": True}
    xa = oracle.train(topology, oracle.Adam(0.01, **decay), noise(70, seed=1), gradient, 12)
    xb = oracle.train(topology, oracle.Adam(0.05, **decay), noise(33, seed=2), gradient, 7, first=5)
    return {"a": apart(a, xa[world.rank]), "b": apart(b, xb[world.rank]), "steps": optimizer.state[b]["step"].item()}


def clipping() -> dict[str, float]:
    """max_grad_norm is clip_grad_norm_ over all parameters, whatever their buckets and dtypes."""
    results = []
    for inside in (False, True):
        net = mlp().append(torch.nn.Linear(3, 2, dtype=torch.float64))
        options = {"max_grad_norm": 0.7} if inside else {}
        optimizer = dc.optim.DAdamW(net.parameters(), lr=0.01, topology="ring", bucket_bytes=256, **options)
        norms = []
        for t in range(8):
            net[3](net[:3](batch(t)).double()).square().sum().backward()
            if not inside:
                norms.append(float(torch.nn.utils.clip_grad_norm_(net.parameters(), 0.7)))
            optimizer.step()
            if inside:
                norms.append(optimizer.stats()["grad_norm"])
            optimizer.zero_grad()
        results.append((flat(net.parameters()), torch.tensor(norms)))
    (a, norms_a), (b, norms_b) = results
    return {"error": apart(b, a), "norms": apart(norms_b, norms_a), "smallest": float(norms_a.min())}


def nonfinite_skip(value: str) -> dict[str, Any]:
    """Rank 1 has a bad gradient at steps 3 and 4 and only mixes then; everyone is where the oracle is."""
    world, topology = dc.world(), dc.topology.make("ring")
    p = torch.nn.Parameter(noise(100, seed=1))
    optimizer = dc.optim.DAdamW([p], lr=0.01, topology=topology, nonfinite="skip", weight_decay=0.0)

    def maybe(rank: int, t: int, x: torch.Tensor) -> torch.Tensor | None:
        return None if rank == 1 and t in (3, 4) else gradient(rank, t, x)

    for t in range(10):
        g = maybe(world.rank, t, p.detach())
        p.grad = noise(100, seed=t) if g is None else g
        if g is None:
            p.grad[17] = float(value)
        optimizer.step()
    x = oracle.train(topology, oracle.Adam(0.01), noise(100, seed=1), maybe, 10)
    return {"error": apart(p, x[world.rank]), "skipped": optimizer.stats()["skipped"]}


def nonfinite_raise(in_backward: str) -> dict[str, Any]:
    """Rank 1's gradient is NaN: it says so and stops, and what the others read of it stays finite."""
    world, net = dc.world(), mlp()
    optimizer = dc.optim.DAdamW(
        net.parameters(), topology="ring", module=net, timeout=2.0, in_backward=bool(in_backward), bucket_bytes=64
    )
    error = ""
    try:
        for t in range(6):
            loss = net(batch(t)).square().mean()
            (loss * math.nan if world.rank == 1 and t == 3 else loss).backward()
            optimizer.step()
            optimizer.zero_grad()
    except dc.Error as e:
        error = f"{type(e).__name__}: {e}"
    if world.rank == 1:
        error += " | " + refusal(optimizer.step)
    slots = [part.exchange.flat(v) for part in optimizer._partitions for v in (0, 1)] if world.rank != 1 else []
    finite = all(bool(s.isfinite().all()) for s in slots)
    return {"error": error, "finite": finite, "steps": optimizer.steps}


def in_backward() -> dict[str, Any]:
    """Bit for bit the numbers of step(); gradients are gone before it; micro-batches and unused layers work."""
    results, early = [], []
    for inside in (False, True):
        net = mlp(width=200)
        unused = torch.nn.Linear(4, 4)
        params = [*net.parameters(), *unused.parameters()]
        optimizer = dc.optim.DAdamW(params, lr=0.01, topology="ring", bucket_bytes=64, in_backward=inside)
        for t in range(12):
            if t == 6 and inside:
                with optimizer.accumulating():
                    net(batch(100)).square().mean().backward()
            elif t == 6:
                net(batch(100)).square().mean().backward()
            y = net(batch(t)).square().mean()
            if t % 4 == 3:
                y = y + unused(torch.ones(1, 4)).sum()
            y.backward()
            if inside:
                early.append(sum(p.grad is not None for p in net.parameters()))
            optimizer.step()
            optimizer.zero_grad()
        results.append(digest(*params))
    return {"equal": results[0] == results[1], "left": max(early)}


class StraightThrough(torch.nn.Module):
    """Uses a weight once more without a gradient, so that backward reads it after its own gradient is there."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Some output."""
        return self.second(self.first(x) @ self.second.weight.detach().T)


def in_backward_of_all_kinds() -> dict[str, bool]:
    """Unfreezing, reading a weight once more, and every precision: as step()."""
    said = {}
    for name, dtype, wire in (
        ("float32", torch.float32, None),
        ("wire", torch.float32, torch.bfloat16),
        ("bfloat16", torch.bfloat16, None),
    ):
        digests = set()
        for inside in (False, True):
            net = StraightThrough().to(dtype)
            net.first.weight.requires_grad_(False)
            options = {"topology": "ring", "bucket_bytes": 64, "in_backward": inside, "wire_dtype": wire}
            optimizer = dc.optim.DAdamW(net.parameters(), lr=0.1, **options)
            for t in range(6):
                net.first.weight.requires_grad_(t >= 2)
                net(batch(t).to(dtype)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            digests.add(digest(*net.parameters()))
            said[f"{name} steps"] = float(optimizer.state[net.first.weight]["step"]) == 4
        said[name] = len(digests) == 1
    return said


def in_the_middle_of_a_step() -> dict[str, str]:
    """Between a backward that updates and step() nothing else is allowed."""
    net = mlp()
    optimizer = dc.optim.DSGD(net.parameters(), module=net, in_backward=True)
    net(batch(0)).sum().backward()
    return {
        "second": refusal(lambda: net(batch(0)).sum().backward()),
        "mix": refusal(optimizer.mix),
        "save": refusal(optimizer.state_dict),
        "group": refusal(lambda: optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]})),
        "averaged": refusal(lambda: optimizer.averaged().__enter__()),
        "skip": refusal(lambda: dc.optim.DSGD(mlp().parameters(), in_backward=True, nonfinite="skip")),
        "clip": refusal(lambda: dc.optim.DSGD(mlp().parameters(), in_backward=True, max_grad_norm=1.0)),
    }


def changed_in_place(dtype: str) -> dict[str, Any]:
    """Writes through p.data are noticed and count; meet() makes them safe, private() keeps them from neighbours."""
    world = dc.world()
    p = torch.nn.Parameter(torch.full((40,), 1.0, dtype=getattr(torch, dtype)))
    optimizer = dc.optim.DSGD([p], lr=0.0, topology="ring")
    optimizer.mix()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for t in range(4):
            with optimizer.private():
                p.data.fill_(100.0)
                time.sleep(0.1 * world.rank)
            optimizer.mix()
            if t == 2:
                p.data.fill_(5.0)
                optimizer.meet()
        untouched = [str(w.message) for w in caught]
        after = p.detach().float().tolist()
        p.data.fill_(3.0)
        optimizer._control.all_gather(b"")  # both have written; which value a neighbour sees is else left to chance
        optimizer.step()
    return {"quiet": untouched, "after": after, "warned": [str(w.message) for w in caught], "set": float(p[0].detach())}


def recovers(narrow: str) -> dict[str, Any]:
    """After a bad gradient all ranks go back to what they saved, in the same processes."""
    world, net = dc.world(), mlp()
    wire = torch.bfloat16 if narrow else None
    optimizer = dc.optim.DAdamW(net.parameters(), lr=0.01, topology="ring", timeout=2.0, wire_dtype=wire)

    def train(steps: range, bad: int = -1) -> None:
        for t in steps:
            loss = net(batch(t)).square().mean()
            (loss * math.nan if world.rank == 1 and t == bad else loss).backward()
            optimizer.step()
            optimizer.zero_grad()

    train(range(3))
    saved = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
    train(range(3, 8))
    straight = digest(*net.parameters())
    for bad in (-1, 5):
        net.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
        error = refusal(lambda bad=bad: train(range(3, 8), bad))
    optimizer.zero_grad()
    failed = refusal(optimizer.step)
    net.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    train(range(3, 8))
    return {"error": error, "failed": failed, "equal": digest(*net.parameters()) == straight}


def baseline() -> dict[str, Any]:
    """AllReduce: frozen parameters stay, added groups train, an overflow on one rank skips the update on all."""
    world, net = dc.world(), mlp()
    net[0].requires_grad_(False)
    frozen = net[0].weight.clone()
    added = torch.nn.Parameter(torch.zeros(3))
    optimizer = dc.optim.AllReduce(torch.optim.AdamW(net.parameters(), lr=0.1, weight_decay=0.1))
    scale = torch.amp.GradScaler("cpu", init_scale=8.0)
    digests = []
    for t in range(6):
        if t == 2:
            optimizer.add_param_group({"params": [added], "lr": 0.5})
        loss = (net(batch(t)) + added).square().mean()
        scale.scale(loss * math.inf if world.rank == 1 and t == 4 else loss).backward()
        scale.step(optimizer)
        scale.update()
        optimizer.zero_grad()
        digests.append(digest(*net.parameters(), added))
    optimizer.consensus_distance()
    return {
        "frozen": torch.equal(net[0].weight, frozen),
        "added": float(added.detach().abs().sum()),
        "skipped": digests[4] == digests[3],
        "went on": digests[5] != digests[4],
        "scale": scale.get_scale(),
    }


def refused() -> dict[str, str]:
    """Words for what cannot be."""
    p, q = torch.nn.Parameter(torch.zeros(6)), torch.nn.Parameter(torch.zeros(2))
    optimizer = dc.optim.DAdamW([p], fused=True, foreach=False)
    whole = torch.zeros(10)
    with optimizer.averaged():
        inside = refusal(lambda: dc.checkpoint.save("nowhere", torch.nn.Linear(1, 1), optimizer))
    with optimizer.join():
        joined = refusal(optimizer.consensus_distance)
    return {
        "amsgrad": refusal(lambda: dc.optim.DAdamW([q], amsgrad=True)),
        "maximize": refusal(lambda: dc.optim.DSGD([q], maximize=True)),
        "copy": refusal(lambda: copy.deepcopy(optimizer)),
        "pickle": refusal(lambda: pickle.dumps(optimizer)),
        "overlap": refusal(lambda: dc.optim.DSGD([torch.nn.Parameter(whole[:6]), torch.nn.Parameter(whole[4:])])),
        "inside averaged": inside,
        "inside join": joined,
    }


def changed_before_the_first_step() -> dict[str, Any]:
    """A model that is loaded or moved after the optimizer was made is what training starts from, on all ranks."""
    world, topology = dc.world(), dc.topology.make("ring")
    p = torch.nn.Parameter(torch.zeros(50))
    optimizer = dc.optim.DSGD([p], lr=0.1, topology=topology)
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        p.copy_(noise(50, seed=world.rank))
        p.data = p.data.clone()
        for t in range(5):
            p.grad = gradient(world.rank, t, p.detach())
            optimizer.step()
    starts = torch.stack([noise(50, seed=r) for r in range(world.size)])
    x = oracle.train(topology, oracle.Sgd(0.1), starts, gradient, 5)
    return {"error": apart(p, x[world.rank]), "warnings": [str(w.message) for w in caught]}


if __name__ == "__main__":
    run_cases(globals())
