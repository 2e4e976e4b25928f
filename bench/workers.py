"""Many workers whose computation sleeps: the engine's own cost, how a group grows, and whom a late rank delays.

    python -m bench.workers [--json FILE]       starts 16, 4 and 8 ranks under torchrun by itself, one after the other

Cores are fewer than workers, so seconds on the clock include waiting for a core; CPU seconds do not, and are what
grows with work.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import decentcomm as dc
from bench.common import Report, arguments
from decentcomm._world import control

STEPS, LATE_STEP, LATE = 40, 20, 0.05


def race(params: int, topology: str, compute: float, spread: float) -> dict[str, float]:
    """Train with sleeping computation; what this rank saw."""
    world = dc.world()
    model = torch.nn.Parameter(torch.full((params,), float(world.rank)))
    optimizer = dc.optim.DAdamW([model], lr=0.0, weight_decay=0.0, topology=topology)
    model.grad = torch.zeros(params)
    randomness = random.Random(world.rank)
    wall, cpu, whole = [], [], []
    control().all_gather(b"")
    begin, begin_cpu = time.perf_counter(), time.process_time()
    for t in range(STEPS):
        start = time.perf_counter()
        late = LATE if t == LATE_STEP and world.rank == world.size - 1 else 0.0
        time.sleep(compute + randomness.uniform(0, spread) + late)
        waited = sum(optimizer.stats()["seconds_waited"].values())
        stepping, used = time.perf_counter(), time.process_time()
        optimizer.step()
        # Kernel and exchange; what is waited for another's computation is not theirs.
        waited = sum(optimizer.stats()["seconds_waited"].values()) - waited
        wall.append(time.perf_counter() - stepping - waited)
        cpu.append(time.process_time() - used)
        whole.append(time.perf_counter() - start)
    seconds, busy = time.perf_counter() - begin, time.process_time() - begin_cpu
    return {
        "wall": statistics.median(wall),
        "cpu": statistics.median(cpu),
        "busy": busy / seconds,
        "overhead": seconds / STEPS - compute - spread / 2 - LATE / STEPS,
        "delay": whole[LATE_STEP] - statistics.median(whole),
        "wrong": float((model != 0).sum()),
    }


def ranks(size: int, *args: str) -> list[dict[str, float]]:
    """Run `size` ranks of this file and gather what they saw."""
    torchrun = str(Path(sys.executable).parent / "torchrun")
    with tempfile.TemporaryDirectory() as folder:
        argv = [torchrun, "--standalone", f"--nproc-per-node={size}", "-m", "bench.workers", "--out", folder, *args]
        done = subprocess.run(
            argv, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True
        )
        if done.returncode:
            sys.exit(done.stderr)
        return [json.loads(path.read_text()) for path in sorted(Path(folder).iterdir())]


def middle(found: list[dict[str, float]], key: str) -> float:
    """Median over ranks."""
    return statistics.median(f[key] for f in found)


def main() -> None:
    """The three cases."""
    parser = arguments(__doc__)
    parser.add_argument("--out", type=Path, help="of a rank: where it writes what it saw")
    parser.add_argument("--case", nargs=4, help="of a rank: parameters, topology, seconds, spread")
    args = parser.parse_args()
    if args.out:
        world = dc.init()
        params, topology, compute, spread = args.case
        seen = race(int(params), topology, float(compute), float(spread))
        (args.out / f"{world.rank:04}").write_text(json.dumps(seen))
        return
    report = Report("workers", "case", "workers", "step ms", "cpu ms", "busy", "#wrong")
    small = ranks(16, "--case", "16", "one-peer-exponential", "0.03", "0")
    four = ranks(4, "--case", "2000000", "complete", "0.15", "0.1")
    eight = ranks(8, "--case", "2000000", "complete", "0.15", "0.1")
    late = ranks(8, "--case", "200000", "complete", "0.1", "0")
    cases = {"no data": small, "complete, 8 MB": four, "complete, 8 MB ": eight, "complete, one late": late}
    for name, found in cases.items():
        bad = int(sum(f["wrong"] for f in found))
        report.row(
            name, len(found), middle(found, "wall") * 1e3, middle(found, "cpu") * 1e3, middle(found, "busy"), bad
        )
    report.ratio("16 workers, no data: ms of CPU a step", middle(small, "cpu") * 1e3, "<= 1")
    report.ratio("16 workers, no data: ms on the clock over computation", middle(small, "overhead") * 1e3, "<= 1")
    report.ratio("16 workers: share of a core used by a waiting worker", middle(small, "busy"), "<= 0.05")
    report.ratio("complete, 8 / 4 workers, CPU time of a step", middle(eight, "cpu") / middle(four, "cpu"), "<= 1.5")
    report.ratio("complete, 8 / 4 workers, time of a step", middle(eight, "wall") / middle(four, "wall"), "<= 1.5")
    delays = [f["delay"] for f in late[:-1]]
    report.say(f"# rank 7 is {LATE * 1e3:.0f} ms late in step {LATE_STEP}")
    report.ratio("the most that another is delayed in that step, ms", max(delays) * 1e3, "<= 10")
    report.finish(args.json)


if __name__ == "__main__":
    main()
