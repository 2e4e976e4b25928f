"""Fused mix+AdamW against torch's fused AdamW followed by torch mixing, and against the machine's own bandwidth.

    python -m bench.kernels [--params N] [--threads N] [--json FILE]

#wrong counts elements of the result that differ from a torch computation by more than 1e-5 of the largest.
"""

from __future__ import annotations

import os

import torch

from bench.common import Report, arguments, interleave, medians
from decentcomm import _C


class Contest:
    """Buffers of one size, and every contestant on them."""

    def __init__(self, params: int, threads: int) -> None:
        self.n, self.threads = params, threads
        self.own, self.target, self.grad, self.mean_grad = (torch.randn(params) for _ in range(4))
        self.m, self.v = torch.zeros(params), torch.zeros(params)
        self.neighbors = [torch.randn(params) for _ in range(3)]
        self.param = torch.nn.Parameter(self.own.clone())
        self.param.grad = self.grad
        self.torch_adam = torch.optim.AdamW([self.param], lr=1e-3, fused=True)
        self.table = _C.TensorTable([0], [params], [0], _C.Element.float32)
        self.settings = [_C.AdamSettings(1e-3, 0.9, 0.999, 1e-8, 0.01, True)]
        self.steps = 0

    def peer(self, k: int, one_pass: bool = False) -> None:
        """torch: AdamW, then the weighted sum, as a user would write it; for one neighbour there is a call for it."""
        self.torch_adam.step()
        with torch.no_grad():
            if k == 1 and one_pass:
                self.param.lerp_(self.neighbors[0], 0.5)
                return
            self.param.mul_(1 / (k + 1))
            for neighbor in self.neighbors[:k]:
                self.param.add_(neighbor, alpha=1 / (k + 1))

    def fused(self, k: int, accumulate: int = 1) -> None:
        """One pass."""
        self.steps += 1
        sources = [(x.data_ptr(), 1 / (k + 1)) for x in (self.own, *self.neighbors[:k])]
        incoming = _C.Incoming(_C.Element.float32, self.own.data_ptr(), self.target.data_ptr(), 4 * self.n, sources)
        self.table.set([self.grad.data_ptr()], [float(self.steps)], [False])
        state = (self.m.data_ptr(), self.v.data_ptr(), self.mean_grad.data_ptr())
        _C.mix_adam(incoming, self.table, self.settings, *state, accumulate, (0, 0), 1.0, self.threads)

    def limit(self, k: int, around: bool) -> None:
        """A bare loop with the same streams: x, g and k neighbours read, m and v updated, x written."""
        reads = [x.data_ptr() for x in (self.own, self.grad, *self.neighbors[:k])]
        _C.stream(reads, [self.m.data_ptr(), self.v.data_ptr()], self.target.data_ptr(), self.n, around, self.threads)

    def wrong(self, k: int) -> int:
        """Elements of a fused step that differ from torch."""
        m, v, t = self.m.clone(), self.v.abs_().clone(), self.steps + 1
        self.fused(k)
        m = 0.9 * m + 0.1 * self.grad
        v = 0.999 * v + 0.001 * self.grad.square()
        mixed = torch.stack([self.own, *self.neighbors[:k]]).mean(0)
        expected = (1 - 1e-5) * mixed - 1e-3 * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
        return int(((self.target - expected).abs() > 1e-5 * expected.abs().max()).sum())


def main() -> None:
    """Run the contest."""
    parser = arguments(__doc__)
    parser.add_argument("--params", type=int, default=20_000_000)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    contest = Contest(args.params, args.threads)
    contestants = {}
    for k in (1, 3):
        contestants[f"torch AdamW + mix, {k}"] = lambda k=k: contest.peer(k)
        contestants[f"fused, {k}"] = lambda k=k: contest.fused(k)
        contestants[f"limit, {k}, cached"] = lambda k=k: contest.limit(k, False)
        contestants[f"limit, {k}, around caches"] = lambda k=k: contest.limit(k, True)
    contestants["torch AdamW + lerp_, 1"] = lambda: contest.peer(1, one_pass=True)
    contestants["fused, 1, accumulate=4"] = lambda: [contest.fused(1, 4) for _ in range(4)]  # a whole cycle
    time = medians(interleave(contestants, args.repeats or 15))
    time["fused, 1, accumulate=4"] /= 4
    report = Report("kernels", "contestant, neighbours", "params", "time ms", "GB/s", "#wrong")
    report.say(f"# {args.threads} threads; GB/s counts 28 + 4k bytes an element")
    for name, seconds in time.items():
        k = 3 if ", 3" in name else 1
        moved = args.params * (28 + 4 * k) / seconds / 1e9
        report.row(name, args.params, seconds * 1e3, moved, contest.wrong(k) if name == f"fused, {k}" else "-")
    for k, wanted in ((1, ">= 1.6"), (3, ">= 1.8")):
        report.ratio(f"torch / fused, {k} neighbours", time[f"torch AdamW + mix, {k}"] / time[f"fused, {k}"], wanted)
        limit = min(time[f"limit, {k}, cached"], time[f"limit, {k}, around caches"])
        report.ratio(f"bandwidth reached, {k} neighbours", limit / time[f"fused, {k}"], ">= 0.85")
    report.ratio("accumulate=4 / accumulate=1", time["fused, 1, accumulate=4"] / time["fused, 1"], "<= 1.35")
    report.finish(args.json)


if __name__ == "__main__":
    main()
