"""Time of a training step of a 9M-parameter Transformer: 2 workers, 1 thread each, against its peers.

    python -m bench.step [--batch N ...] [--json FILE]        starts its two ranks under torchrun by itself

Contestants take turns step by step, so that the machine's noise hits them alike. #wrong counts parameters that are
not finite, and for the synchronous contestants also those that differ between the ranks.
"""

from __future__ import annotations

import copy
import os
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

import decentcomm as dc
from bench.common import Report, arguments, launch
from examples.byte_gpt import ByteGPT

LENGTH = 64


def contestants(model: torch.nn.Module) -> dict[str, tuple[torch.nn.Module, Callable[[torch.Tensor], None]]]:
    """A model and a training step for each; every one starts from the same weights."""

    def steps(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[torch.Tensor], None]:
        def step(batch: torch.Tensor) -> None:
            net(batch).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    def fused(net: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(net.parameters(), lr=3e-4, fused=True)

    made = {}
    alone = copy.deepcopy(model)
    made["no communication"] = (alone, steps(alone, fused(alone)))
    ours = copy.deepcopy(model)
    made["decentcomm"] = (ours, steps(ours, dc.optim.DAdamW(ours.parameters(), lr=3e-4, topology="ring")))
    ddp = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(model))
    made["DDP on gloo"] = (ddp, steps(ddp, fused(ddp)))
    made["decent-dp"] = decent_dp(copy.deepcopy(model))
    return made


def decent_dp(model: torch.nn.Module) -> tuple[torch.nn.Module, Callable[[torch.Tensor], None]]:
    """The papers' library; it updates inside backward."""
    from decent_dp.ddp import DecentralizedDataParallel
    from decent_dp.optim import optim_fn_adamw
    from loguru import logger

    logger.disable("decent_dp")
    net = DecentralizedDataParallel(model, optim_fn_adamw, topology="ring")
    net.train()
    return net, lambda batch: net(batch).backward()


def wrong(net: torch.nn.Module, equal: bool) -> int:
    """Parameters that are not finite, or that differ between ranks though they must not."""
    bad = 0
    for p in net.parameters():
        flat = p.detach().reshape(-1)
        bad += int((~flat.isfinite()).sum())
        if equal:
            other = flat.clone()
            dist.broadcast(other, 0)
            bad += int((other != flat).sum())
    return bad


def main() -> None:
    """Both batch sizes."""
    parser = arguments(__doc__)
    parser.add_argument("--batch", type=int, nargs="+", default=[4, 1])
    args = parser.parse_args()
    launch("torchrun", 2)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    world = dc.init()
    torch.manual_seed(0)
    model = ByteGPT()
    count = sum(p.numel() for p in model.parameters())
    report = Report("step", "contestant", "batch", "ms/step", "min ms", "ratio", "#wrong", shown=world.rank == 0)
    report.say(f"# {count / 1e6:.1f}M parameters, {world.size} workers, 1 thread each; ratio to no communication")
    for batch in args.batch:
        racing = contestants(model)
        generator = torch.Generator().manual_seed(world.rank)
        times: dict[str, list[float]] = {name: [] for name in racing}
        for turn in range((args.repeats or 40) + 3):
            data = torch.randint(256, (batch, LENGTH + 1), generator=generator)
            for name, (_, step) in racing.items():
                dist.barrier()
                # Several steps in a row, so that what one leaves behind for the next counts.
                start = time.perf_counter()
                for _ in range(3):
                    step(data)
                if turn >= 3:
                    times[name].append((time.perf_counter() - start) / 3)
        time_of = {name: statistics.median(t) for name, t in times.items()}
        least = {name: min(t) for name, t in times.items()}
        base = time_of["no communication"]
        for name, (net, _) in racing.items():
            bad = wrong(net, equal=name == "DDP on gloo")
            report.row(name, f"{batch}x{LENGTH}", time_of[name] * 1e3, least[name] * 1e3, time_of[name] / base, bad)
        own = time_of["decentcomm"]
        asked = (">= 1.4", ">= 1.6") if batch == 1 else (">= 1", ">= 1")
        report.ratio(f"batch {batch}: decentcomm / no communication", own / base, "<= 1.03")
        report.ratio(f"batch {batch}: DDP / decentcomm", time_of["DDP on gloo"] / own, asked[0])
        report.ratio(f"batch {batch}: decent-dp / decentcomm", time_of["decent-dp"] / own, asked[1])
    report.finish(args.json)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
