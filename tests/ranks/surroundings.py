"""What stands around an optimizer in a real script: ranks for test_surroundings.py."""

import os
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

import decentcomm as dc
from tests import oracle
from tests.ranks.cases import apart, batch, digest, mlp, noise, refusal, run_cases


def buffers() -> dict[str, Any]:
    """BatchNorm's statistics inside averaged(), and afterwards; integers are rank 0's."""
    world, said = dc.world(), {}
    for policy in ("average", "local"):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.BatchNorm1d(5).double())
        optimizer = dc.optim.DAdamW(net.parameters(), module=net, buffers=policy)
        for t in range(2 + world.rank):
            net[:2](batch(t))
        optimizer.mix()
        own = [b.clone() for b in net.buffers()]
        with optimizer.averaged():
            inside = [b.clone() for b in net.buffers()]
        said[policy] = {
            "own": [own[0].tolist(), int(own[2])],
            "inside": [inside[0].tolist(), int(inside[2])],
            "restored": all(torch.equal(a, b) for a, b in zip(own, net.buffers(), strict=True)),
        }
    return said


def join() -> dict[str, Any]:
    """Ranks have 3, 7, 5, ... batches; who has none left mixes on. Twice, as in two epochs."""
    world, topology = dc.world(), dc.topology.make("one-peer-exponential")
    counts = [3, 7, 5][: world.size]
    p = torch.nn.Parameter(noise(40, seed=9))
    optimizer = dc.optim.DAdamW([p], lr=0.02, weight_decay=0.0, topology=topology)
    longest = max(counts)

    def gradient(rank: int, t: int, x: torch.Tensor) -> torch.Tensor | None:
        return noise(40, seed=10 * t + rank).to(x.dtype) + x if t % longest < counts[rank] else None

    for epoch in range(2):
        with optimizer.join():
            for i in range(counts[world.rank]):
                time.sleep(0.01 * world.rank)
                p.grad = gradient(world.rank, longest * epoch + i, p.detach())
                optimizer.step()
    x = oracle.train(topology, oracle.Adam(0.02), noise(40, seed=9), gradient, 2 * longest)
    return {"error": apart(p, x[world.rank]), "steps": optimizer.steps, "updates": float(optimizer.state[p]["step"])}


def join_two() -> dict[str, Any]:
    """Two optimizers in one loop, as of a GAN."""
    world = dc.world()
    params = [torch.nn.Parameter(noise(30, seed=s)) for s in (1, 2)]
    optimizers = [dc.optim.DSGD([p], lr=0.1, topology="ring") for p in params]
    with dc.optim.join(*optimizers):
        for t in range(2 + 2 * world.rank):
            for p, optimizer in zip(params, optimizers, strict=True):
                p.grad = noise(30, seed=t)
                optimizer.step()
    return {"steps": [o.steps for o in optimizers], "distance": optimizers[1].consensus_distance()}


def join_of_the_dead() -> str:
    """Rank 1 never leaves the block: the others' wait ends."""
    p = torch.nn.Parameter(torch.zeros(4))
    optimizer = dc.optim.DSGD([p], topology="ring", timeout=1.0)

    def body() -> None:
        with optimizer.join():
            p.grad = torch.ones(4)
            optimizer.step()
            if dc.world().rank == 1:
                time.sleep(3)

    return refusal(body)


def train(net: torch.nn.Module, optimizer: torch.optim.Optimizer, forward: Any = None, steps: int = 6) -> str:
    """A digest of what this rank has after some steps."""
    for t in range(steps):
        (forward or net)(batch(t)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return digest(*net.parameters())


def compiled() -> dict[str, Any]:
    """torch.compile of forward and backward: as eager, and no recompilation though parameters move."""
    eager, net = mlp(), mlp()
    train(eager, dc.optim.DAdamW(eager.parameters(), topology="ring"))
    optimizer = dc.optim.DAdamW(net.parameters(), topology="ring")
    fast = torch.compile(net)
    train(net, optimizer, fast, steps=1)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for t in range(1, 6):
            fast(batch(t)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    pairs = zip(net.parameters(), eager.parameters(), strict=True)
    return {
        "error": max(apart(a, b) for a, b in pairs),
        "graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"],
    }


def checkpointed() -> dict[str, bool]:
    """Activation checkpointing: bit for bit the same, also with updates in backward."""
    digests = set()
    for reentrant in (None, False, True):
        for inside in (False, True):
            net = mlp()
            optimizer = dc.optim.DAdamW(net.parameters(), topology="ring", in_backward=inside, bucket_bytes=64)

            def forward(x: torch.Tensor, net: torch.nn.Sequential = net, how: bool | None = reentrant) -> torch.Tensor:
                if how is None:
                    return net(x)
                hidden = checkpoint(net[:2], x.requires_grad_(how), use_reentrant=how)
                return checkpoint(net[2], hidden, use_reentrant=how)

            digests.add(train(net, optimizer, forward))
    return {"equal": len(digests) == 1}


class Batches(Dataset[torch.Tensor]):
    """This rank's batches, and the process that made each."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return batch(i), os.getpid()


def dataloader() -> dict[str, Any]:
    """Worker processes that fork while the engine has threads and shared memory; new ones in each epoch."""
    torch.set_num_threads(2)
    digests, workers = set(), set()
    for count in (2, 0):
        net = torch.nn.Linear(6, 200_000)  # large enough for the engine's threads
        torch.nn.init.constant_(net.weight, 0.1)
        torch.nn.init.zeros_(net.bias)
        optimizer = dc.optim.DSGD(net.parameters(), lr=1.0, topology="ring")
        for _ in range(2):
            for x, made in DataLoader(Batches(), batch_size=None, num_workers=count):
                net(x).square().sum().mul(1e-3).backward()
                optimizer.step()
                optimizer.zero_grad()
                workers.add(int(made))
        digests.add(digest(*net.parameters()))
    torch.set_num_threads(1)
    return {"workers": len(workers - {os.getpid()}), "equal": len(digests) == 1, "steps": optimizer.steps}


KEPT: list[object] = []


class Branches(torch.nn.Module):
    """One of which is used, by rank."""

    def __init__(self, branches: torch.nn.ModuleList) -> None:
        super().__init__()
        self.branches = branches

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Through this rank's branch."""
        return self.branches[dc.world().rank](x)


def ddp() -> dict[str, Any]:
    """A script that wraps its model in DDP, before or after the optimizer is made: as without, nothing is averaged."""
    dist.init_process_group("gloo")
    said: dict[str, Any] = {}

    def model() -> torch.nn.Sequential:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(6, 30), torch.nn.BatchNorm1d(30), torch.nn.Linear(30, 3))

    net = model()
    said["without"] = train(net, dc.optim.DAdamW(net.parameters(), topology="ring", module=net))
    for inside in (False, True):
        net = model()
        wrapped = torch.nn.parallel.DistributedDataParallel(net)
        options = {"topology": "ring", "module": net, "in_backward": inside, "bucket_bytes": 64}
        said[f"before {inside}"] = train(net, dc.optim.DAdamW(wrapped.parameters(), **options), wrapped)
        said[f"mean {inside}"] = net[1].running_mean.tolist()
    net = model()
    optimizer = dc.optim.DAdamW(net.parameters(), topology="ring", module=net)
    said["after"] = train(net, optimizer, torch.nn.parallel.DistributedDataParallel(net))
    # Each rank uses one branch only, and they have different numbers of batches.
    branches = torch.nn.ModuleList([torch.nn.Linear(6, 2), torch.nn.Linear(6, 2)])
    unused = torch.nn.parallel.DistributedDataParallel(Branches(branches), find_unused_parameters=True)
    optimizer = dc.optim.DAdamW(unused.parameters(), topology="ring", module=unused)
    with optimizer.join():
        for t in range(1 + 3 * dist.get_rank()):
            unused(batch(t)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    said["branches"] = [float(optimizer.state[b.weight]["step"]) for b in branches]
    other = torch.nn.parallel.DistributedDataParallel(mlp())  # another model's DDP still averages
    other(batch(0)).square().mean().backward()
    said["other"] = digest(*[p.grad for p in other.parameters()])
    dist.barrier()  # and no destroy_process_group: torch 2.13 deadlocks if a DDP outlives its group
    KEPT.append(other)
    return said


def monitored(folder: str) -> dict[str, Any]:
    """TensorBoard's curves, and the warning of a rank that mostly waits."""
    world, net = dc.world(), mlp()
    optimizer = dc.optim.DAdamW(net.parameters(), topology="ring", max_grad_norm=1.0)
    board = dc.monitor.TensorBoard(Path(folder) / str(world.rank), every=10)
    optimizer.register_step_post_hook(board)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for t in range(90):
            if world.rank == 1:
                time.sleep(0.01)
            net(batch(t)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    board.writer.close()
    return {"warnings": [str(w.message) for w in caught], "stats": optimizer.stats()}


if __name__ == "__main__":
    run_cases(globals())
