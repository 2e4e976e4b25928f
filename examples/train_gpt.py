"""Train a byte-level GPT on the source of Python's standard library: the script that `make demo` runs on each worker.

    torchrun --nproc-per-node 4 examples/train_gpt.py --method decentralized --out run.jsonl

The two methods differ in a few lines only: look for `method`. Rank 0 appends a JSON object to --out for each report.
"""

import argparse
import json
import os
import sysconfig
import time
from pathlib import Path

import torch
import torch.distributed as dist
from byte_gpt import ByteGPT

import decentcomm as dc

LENGTH = 64


def corpus(limit: int = 12_000_000) -> tuple[torch.Tensor, torch.Tensor]:
    """Bytes for training and for validation: every 20th file is validation."""
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted(p for p in root.rglob("*.py") if not {"site-packages", "test", "tests"} & set(p.parts))
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    for i, path in enumerate(files):
        parts[i % 20 == 0].append(path.read_bytes())
    train, valid = (b"".join(part)[:limit] for part in parts)
    return tuple(torch.frombuffer(bytearray(b), dtype=torch.uint8) for b in (train, valid))  # type: ignore[return-value]


def batch(data: torch.Tensor, size: int, generator: torch.Generator) -> torch.Tensor:
    """Random windows."""
    starts = torch.randint(len(data) - LENGTH - 1, (size,), generator=generator)
    return torch.stack([data[s : s + LENGTH + 1] for s in starts.tolist()]).long()


@torch.no_grad()
def validate(model: torch.nn.Module, data: torch.Tensor, world: dc.World) -> float:
    """Mean loss over windows that are the same at each call; every rank takes its share."""
    generator = torch.Generator().manual_seed(1000 + world.rank)
    losses = torch.stack([model(batch(data, 8, generator)) for _ in range(4)]).mean()
    dist.all_reduce(losses)
    return float(losses) / world.size


def main() -> None:
    """Train and report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--method", choices=["decentralized", "allreduce"], default="decentralized")
    parser.add_argument("--topology", default="one-peer-exponential")
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path(os.devnull))
    args = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    world = dc.init()
    train, valid = corpus()
    torch.manual_seed(0)
    model = ByteGPT(width=256, layers=4, heads=4, length=LENGTH)

    net: torch.nn.Module
    if args.method == "decentralized":
        net = model
        optimizer = dc.optim.DAdamW(model.parameters(), lr=2e-3, topology=args.topology, module=model)
    else:
        net = torch.nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.05, total_iters=20)

    generator = torch.Generator().manual_seed(world.rank)
    seconds = computing = alone = 0.0
    with args.out.open("a") as out:
        for step in range(args.steps + 1):
            if step % 40 == 0 or step == args.steps:
                if args.method == "decentralized":
                    with optimizer.averaged():
                        loss = validate(model, valid, world)
                    waited = sum(optimizer.stats()["seconds_waited"].values())
                else:
                    loss = validate(model, valid, world)
                    waited = max(0.0, computing - alone * step)
                if world.rank == 0:
                    line = {"step": step, "seconds": seconds, "loss": loss, "waited": waited}
                    out.write(json.dumps({**line, "tokens": step * args.batch * LENGTH * world.size}) + "\n")
                    out.flush()
                dist.barrier()
            if step == 0 and args.method == "allreduce":
                alone = time_alone(net, train, args.batch)
            start = time.perf_counter()
            net(batch(train, args.batch, generator)).backward()
            computing += time.perf_counter() - start  # with AllReduce, its communication too
            optimizer.step()
            optimizer.zero_grad()
            warmup.step()
            seconds += time.perf_counter() - start
            if world.rank == 0:
                out.write(json.dumps({"step": step + 1, "seconds": seconds}) + "\n")
                out.flush()
    dist.barrier()
    dist.destroy_process_group()


def time_alone(net: torch.nn.parallel.DistributedDataParallel, data: torch.Tensor, size: int) -> float:
    """Seconds of a forward and backward without communication, for what AllReduce waits; all ranks at the same time."""
    times = []
    with net.no_sync():
        for _ in range(6):
            start = time.perf_counter()
            net(batch(data, size, torch.Generator().manual_seed(0))).backward()
            times.append(time.perf_counter() - start)
    net.zero_grad()
    return sorted(times)[3]


if __name__ == "__main__":
    main()
