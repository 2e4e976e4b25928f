"""What updating and publishing in backward gains over doing it in step(), where communication weighs most.

    python -m bench.backward [--json FILE]        starts its two ranks under torchrun by itself

Small batches of a 9M-parameter Transformer: a step is then mostly update and exchange. Peak gradient memory is counted
as the bytes of gradients that exist when backward ends. #wrong counts parameters that differ from those of step().
"""

from __future__ import annotations

import copy
import statistics
import time

import torch

import decentcomm as dc
from bench.common import Report, arguments, launch
from examples.byte_gpt import ByteGPT


def main() -> None:
    """Interleave both."""
    args = arguments(__doc__).parse_args()
    launch("torchrun", 2)
    torch.set_num_threads(1)
    world = dc.init()
    torch.manual_seed(0)
    model = ByteGPT()
    report = Report("backward", "updates in", "tokens", "ms/step", "min ms", "grad MB", "#wrong", shown=world.rank == 0)
    for length in (8, 64):
        times: dict[str, list[float]] = {"step()": [], "backward": []}
        racing = {}
        for name in times:
            net = copy.deepcopy(model)
            options = {"topology": "ring", "in_backward": name == "backward", "bucket_bytes": 4 * 2**20}
            racing[name] = net, dc.optim.DAdamW(net.parameters(), lr=3e-4, **options)
        generator, left = torch.Generator().manual_seed(world.rank), dict.fromkeys(times, 0)
        for turn in range((args.repeats or 60) + 3):
            data = torch.randint(256, (1, length + 1), generator=generator)
            for name, (net, optimizer) in racing.items():
                start = time.perf_counter()
                net(data).backward()
                left[name] = sum(p.grad.nbytes for p in net.parameters() if p.grad is not None)
                optimizer.step()
                optimizer.zero_grad()
                if turn >= 3:
                    times[name].append(time.perf_counter() - start)
        reference = list(racing["step()"][0].parameters())
        for name, (net, _) in racing.items():
            wrong = sum(int((p != q).sum()) for p, q in zip(net.parameters(), reference, strict=True))
            median = statistics.median(times[name]) * 1e3
            report.row(name, length, median, min(times[name]) * 1e3, left[name] / 1e6, wrong)
        gained = statistics.median(times["step()"]) / statistics.median(times["backward"])
        report.ratio(f"{length} tokens: step() / backward", gained, ">= 1")
    report.finish(args.json)


if __name__ == "__main__":
    main()
