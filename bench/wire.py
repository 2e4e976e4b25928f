"""What bfloat16 on the wire costs and gains: bytes, loss of the mean model, how far replicas are apart, time.

    python -m bench.wire [--steps N] [--json FILE]        starts its four ranks under torchrun by itself

A small GPT learns bytes of Python's standard library, from the same start with the same batches.
"""

from __future__ import annotations

import copy
import sysconfig
import time
from pathlib import Path

import torch

import decentcomm as dc
from bench.common import Report, arguments, launch
from examples.byte_gpt import ByteGPT

LENGTH = 64


def windows(data: torch.Tensor, size: int, generator: torch.Generator) -> torch.Tensor:
    """Random windows of the corpus."""
    starts = torch.randint(len(data) - LENGTH - 1, (size,), generator=generator)
    return torch.stack([data[s : s + LENGTH + 1] for s in starts.tolist()]).long()


def main() -> None:
    """Train three times."""
    parser = arguments(__doc__)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    launch("torchrun", 4)
    torch.set_num_threads(1)
    world = dc.init()
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    data = torch.frombuffer(bytearray(b"".join(f.read_bytes() for f in files)), dtype=torch.uint8)
    torch.manual_seed(0)
    model = ByteGPT(width=128, layers=2, heads=4, length=LENGTH)
    count = sum(p.numel() for p in model.parameters())
    columns = ("bytes/step", "loss", "consensus", "ms/step", "#wrong")
    report = Report("wire", "parameters, wire", *columns, shown=world.rank == 0)
    report.say(
        f"# {count / 1e6:.2f}M parameters, {world.size} workers, ring, {args.steps} steps; loss of the mean model"
    )
    kept: dict[str, tuple[float, float, float]] = {}
    for name, dtype, wire in (
        ("float32, float32", torch.float32, None),
        ("float32, bfloat16", torch.float32, torch.bfloat16),
        ("bfloat16, bfloat16", torch.bfloat16, None),
    ):
        net = copy.deepcopy(model).to(dtype)
        optimizer = dc.optim.DAdamW(net.parameters(), lr=2e-3, topology="ring", module=net, wire_dtype=wire)
        generator = torch.Generator().manual_seed(world.rank)
        start = time.perf_counter()
        for _ in range(args.steps):
            net(windows(data, 8, generator)).backward()
            optimizer.step()
            optimizer.zero_grad()
        seconds = (time.perf_counter() - start) / args.steps
        check = torch.Generator().manual_seed(1000)
        distance, received = optimizer.consensus_distance(), optimizer.stats()["bytes"] / args.steps
        with optimizer.averaged(), torch.no_grad():
            loss = float(torch.stack([net(windows(data, 16, check)) for _ in range(8)]).mean())
        wrong = sum(int((~p.isfinite()).sum()) for p in net.parameters())
        report.row(name, int(received), loss, f"{distance:.2e}", seconds * 1e3, wrong)
        kept[name] = loss, distance, received
    full, half = kept["float32, float32"], kept["float32, bfloat16"]
    report.ratio("bytes: bfloat16 / float32 on the wire", half[2] / full[2], "<= 0.51")
    report.ratio("loss: bfloat16 / float32 on the wire", half[0] / full[0], "<= 1.01")
    report.ratio("consensus distance: bfloat16 / float32 on the wire", half[1] / full[1], "<= 1.1")
    report.finish(args.json)


if __name__ == "__main__":
    main()
