"""Saving and resuming: ranks for test_checkpoints.py. Arguments are a directory."""

import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

import decentcomm as dc
from tests.ranks.cases import apart, batch, digest, flat, refusal, run_cases

SAVED, STEPS = 6, 13


class Net(torch.nn.Module):
    """float32, bfloat16 and float64 layers and a BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(dc.world().rank)
        self.first = torch.nn.Linear(6, 30)
        self.norm = torch.nn.BatchNorm1d(30)
        self.second = torch.nn.Linear(30, 20, dtype=torch.bfloat16)
        self.third = torch.nn.Linear(20, 4, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A loss."""
        x = self.norm(self.first(x)).relu()
        return self.third(self.second(x.bfloat16()).relu().double()).square().mean()


def make(kind: str) -> tuple[Net, torch.optim.Optimizer, Any]:
    """A model, an optimizer of this kind, a scheduler."""
    net = Net()
    options = {"lr": 0.01, "topology": "one-peer-exponential", "module": net, "bucket_bytes": 512}
    if kind == "adam":
        optimizer = dc.optim.DAdamW(net.parameters(), accumulate=4, **options)
    elif kind == "wire":
        optimizer = dc.optim.DAdam(net.parameters(), wire_dtype=torch.bfloat16, in_backward=True, **options)
    elif kind == "sgd":
        optimizer = dc.optim.DSGD(net.parameters(), momentum=0.9, nesterov=True, **options)
    else:
        optimizer = dc.optim.AllReduce(torch.optim.AdamW(net.parameters(), lr=0.01), module=net)
    return net, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)


def train(net: Net, optimizer: Any, scheduler: Any, steps: range) -> None:
    """A loop; one step has no update, so that steps and updates differ."""
    for t in steps:
        if t == 2 and isinstance(optimizer, dc.optim.Decentralized):
            optimizer.mix()
            continue
        net(batch(t)).backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()


def fingerprint(net: Net, optimizer: Any) -> str:
    """Of all parameters, buffers and state."""
    state = [v for entries in optimizer.state_dict()["state"].values() for v in entries.values()]
    return digest(*net.state_dict().values(), *state)


KINDS = ("adam", "wire", "sgd", "allreduce")


def straight(folder: str) -> dict[str, Any]:
    """Never stopped; saved in the middle, which must not disturb it."""
    said = {}
    for kind in KINDS:
        net, optimizer, scheduler = make(kind)
        train(net, optimizer, scheduler, range(SAVED))
        for _ in range(2):  # twice at the same step: the second replaces the first
            extra = {"scheduler": scheduler.state_dict(), "rank": dc.world().rank}
            dc.checkpoint.save(Path(folder) / kind, net, optimizer, extra)
        torch.save(
            {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()},
            Path(folder) / f"{kind}-{dc.world().rank}.pt",
        )
        dc.checkpoint.export(Path(folder) / f"{kind}-mean.pt", net, optimizer)
        train(net, optimizer, scheduler, range(SAVED, STEPS))
        said[kind] = fingerprint(net, optimizer)
    return said


def resumed(folder: str) -> dict[str, Any]:
    """Stopped after SAVED steps: by dc.checkpoint, and by state_dict and torch.save as users have it."""
    said = {}
    for kind in KINDS:
        net, optimizer, scheduler = make(kind)
        extra = dc.checkpoint.load(Path(folder) / kind, net, optimizer)
        assert extra["rank"] == dc.world().rank
        scheduler.load_state_dict(extra["scheduler"])
        train(net, optimizer, scheduler, range(SAVED, STEPS))
        said[kind] = fingerprint(net, optimizer)

        net, optimizer, scheduler = make(kind)
        train(net, optimizer, scheduler, range(SAVED + 4))  # what was before, and further on, is forgotten
        time.sleep(0.2 * dc.world().rank)  # and a rank that goes back later is waited for
        saved = torch.load(Path(folder) / f"{kind}-{dc.world().rank}.pt", weights_only=True)
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
        train(net, optimizer, scheduler, range(SAVED, STEPS))
        said[f"{kind} by state_dict"] = fingerprint(net, optimizer)
    return said


def other_size(folder: str) -> dict[str, Any]:
    """On another number of ranks: from the mean of parameters, masters and moments."""
    said = {}
    for kind in KINDS:
        net, optimizer, scheduler = make(kind)
        dc.checkpoint.load(Path(folder) / kind, net, optimizer)
        mean = torch.load(Path(folder) / f"{kind}-mean.pt", weights_only=True)
        error = max(apart(value, mean[key]) for key, value in net.state_dict().items() if value.is_floating_point())
        before = fingerprint(net, optimizer)
        train(net, optimizer, scheduler, range(SAVED, STEPS))
        finite = bool(flat(net.parameters()).isfinite().all())
        said[kind] = [error, before, optimizer.consensus_distance(), optimizer.steps, finite]
    return said


def crash(folder: str) -> dict[str, Any]:
    """Rank 1 dies while it writes the second checkpoint."""
    net, optimizer, scheduler = make("adam")
    train(net, optimizer, scheduler, range(2))
    dc.checkpoint.save(folder, net, optimizer)
    (Path(folder) / f"whole-{dc.world().rank}").write_text(fingerprint(net, optimizer))
    train(net, optimizer, scheduler, range(2, 4))
    if dc.world().rank == 1:
        write = torch.distributed.checkpoint.FileSystemWriter.write_data

        def die(self: Any, *args: Any) -> Any:
            write(self, *args).wait()
            os._exit(9)

        torch.distributed.checkpoint.FileSystemWriter.write_data = die
    dc.checkpoint.save(folder, net, optimizer)
    return {}


def after_crash(folder: str) -> dict[str, Any]:
    """What is there is the first checkpoint; saving again removes what was left; a failure is told to all."""
    net, optimizer, _ = make("adam")
    dc.checkpoint.load(folder, net, optimizer)
    same = fingerprint(net, optimizer) == (Path(folder) / f"whole-{dc.world().rank}").read_text()
    left = len(list(Path(folder).glob(".writing-*")))
    dc.checkpoint.save(folder, net, optimizer, keep=2)
    kept = sorted(p.name for p in Path(folder).glob("*step-*"))
    cleaned = len(list(Path(folder).glob(".writing-*")))
    extra = {"bad": object()} if dc.world().rank == 1 else {}
    unsaved = refusal(lambda: dc.checkpoint.save(folder, net, optimizer, extra))
    optimizer._control.all_gather(b"")
    if dc.world().rank == 1:
        (Path(folder) / kept[-1] / "rank-1" / ".metadata").unlink()
    optimizer._control.all_gather(b"")
    broken = refusal(lambda: dc.checkpoint.load(folder, net, optimizer))
    empty = refusal(lambda: dc.checkpoint.load(Path(folder) / "nowhere", net, optimizer))
    return {
        "same": same,
        "left": left,
        "kept": kept,
        "cleaned": cleaned,
        "unsaved": unsaved,
        "broken": broken,
        "empty": empty,
    }


def from_adamw() -> dict[str, Any]:
    """A run that AdamW began is continued by DAdamW, as AdamW would, alone."""
    nets = [torch.nn.Linear(6, 3) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    theirs = torch.optim.AdamW(nets[0].parameters(), lr=0.01)
    again: torch.optim.Optimizer = torch.optim.AdamW(nets[1].parameters(), lr=0.01)
    for t in range(10):
        if t == 5:
            saved = again.state_dict()
            again = dc.optim.DAdamW(nets[1].parameters(), lr=0.5)
            again.load_state_dict(saved)
        for net, optimizer in zip(nets, (theirs, again), strict=True):
            net(batch(t)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    error = apart(*(flat(net.parameters()) for net in nets))
    again.mix()
    taken = get_optimizer_state_dict(nets[1], again)  # as torch's own tools save it
    other = dc.optim.DAdamW(nets[0].parameters(), lr=0.01)
    set_optimizer_state_dict(nets[0], other, taken)
    return {"error": error, "steps": again.steps, "kept": other.steps}


if __name__ == "__main__":
    run_cases(globals())
