"""An edge of two ranks: both replace a buffer by the mean of the two. decentcomm against Open MPI and gloo.

    python -m bench.edge [--bytes N ...] [--json FILE]       starts its two ranks under mpirun by itself

Columns as nccl-tests: bandwidth is bytes that one rank receives per second; #wrong counts elements that are not the
mean.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

import decentcomm as dc
from bench.common import Report, arguments, interleave, launch, medians
from decentcomm._world import control
from decentcomm.exchange import ShmExchange


class Pair:
    """One buffer size; every contestant has a buffer of its own."""

    def __init__(self, size: int) -> None:
        from mpi4py import MPI

        self.world, self.size = dc.world(), size
        self.comm, self.other = MPI.COMM_WORLD, 1 - self.world.rank
        self.buffers = {name: torch.empty(size // 4) for name in ("open mpi", "gloo")}
        self.received = torch.empty(size // 4)
        pair = dc.topology.make("complete", size=2)
        self.exchange = ShmExchange(self.world, control(), pair, [size], torch.float32)
        self.step = 0

    def decentcomm(self) -> None:
        """Half of the mean is made by each rank, from both slots in place, and written to both."""
        self.exchange.average(0, self.step)
        self.step += 1

    def open_mpi(self) -> None:
        """Sendrecv, then the mean in place."""
        mine = self.buffers["open mpi"]
        self.comm.Sendrecv(mine.numpy(), self.other, recvbuf=self.received.numpy(), source=self.other)
        mine.lerp_(self.received, 0.5)

    def gloo(self) -> None:
        """Non-blocking send and receive, then the mean in place."""
        mine = self.buffers["gloo"]
        for work in (dist.isend(mine, self.other), dist.irecv(self.received, self.other)):
            work.wait()
        mine.lerp_(self.received, 0.5)

    def wrong(self, name: str, run: Callable[[], None]) -> int:
        """Put ranks' own numbers in, run once, count what is not the mean."""
        mine = self.exchange.flat(self.step) if name == "decentcomm" else self.buffers[name]
        if (
            name == "decentcomm"
        ):  # publish a fresh version with known numbers: the old one is being read until all are here
            self.comm.Barrier()
        mine.fill_(1.0 + self.world.rank)
        self.comm.Barrier()
        run()
        result = self.exchange.flat(self.step) if name == "decentcomm" else self.buffers[name]
        return int(self.comm.allreduce(int((result != 1.5).sum())))


def connect_gloo() -> None:
    """A gloo process group over loopback."""
    from mpi4py import MPI

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = MPI.COMM_WORLD.bcast(s.getsockname()[1])
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.TCPStore("127.0.0.1", port, 2, dc.world().rank == 0, timedelta(seconds=30))
    dist.init_process_group("gloo", store=store, rank=dc.world().rank, world_size=2)


def main() -> None:
    """Run all sizes."""
    parser = arguments(__doc__)
    parser.add_argument("--bytes", type=int, nargs="+", default=[1024, 64 * 1024, 1024**2, 16 * 1024**2, 64 * 1024**2])
    args = parser.parse_args()
    launch("mpirun", 2)
    world = dc.init()
    torch.set_num_threads(1)
    connect_gloo()
    report = Report("edge", "contestant", "bytes", "time us", "GB/s", "#wrong", shown=world.rank == 0)
    for size in args.bytes:
        pair = Pair(size)
        pair.exchange.flat(0).fill_(0.0)
        pair.exchange.publish(0, 0)
        inner = 200 if size <= 64 * 1024 else 1
        contestants = {"decentcomm": pair.decentcomm, "open mpi": pair.open_mpi, "gloo": pair.gloo}

        def several(run: Callable[[], None], inner: int = inner) -> Callable[[], None]:
            return lambda: [run() for _ in range(inner)] and None

        runs = {name: several(run) for name, run in contestants.items()}
        time = medians(interleave(runs, args.repeats or 9, between=pair.comm.Barrier))
        for name, run in contestants.items():
            each = max(pair.comm.allgather(time[name])) / inner
            time[name] = each
            report.row(name, size, each * 1e6, size / each / 1e9, pair.wrong(name, run))
        mpi, gloo = time["open mpi"] / time["decentcomm"], time["gloo"] / time["decentcomm"]
        wanted = (">= 3", ">= 10") if size >= 64 * 1024**2 else (">= 1", ">= 1")
        report.ratio(f"{size} bytes, open mpi / decentcomm", mpi, wanted[0])
        report.ratio(f"{size} bytes, gloo / decentcomm", gloo, wanted[1])
    report.finish(args.json)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
