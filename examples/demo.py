"""`make demo`: 4 workers train a small GPT on this machine, decentralized and with AllReduce; a table and a picture.

Each method runs examples/train_gpt.py under torchrun, with the same data, steps and learning rate. The topology is
one-peer-exponential: each worker reads one neighbour a step, the least that can travel, and 4 workers agree after 2
steps.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import decentcomm as dc

WORKERS, STEPS = 4, int(os.environ.get("DEMO_STEPS", "300"))
HERE, OUT = Path(__file__).parent, Path("demo")
METHODS = {"decentralized": "decentralized (decentcomm)", "allreduce": "AllReduce (DDP on gloo)"}


def train(method: str, progress: Progress) -> list[dict[str, Any]]:
    """Run one method and follow it; its reports."""
    out, errors = OUT / f"{method}.jsonl", OUT / f"{method}.log"
    out.write_text("")
    torchrun = [str(Path(sys.executable).parent / "torchrun"), "--standalone", f"--nproc-per-node={WORKERS}"]
    argv = [*torchrun, str(HERE / "train_gpt.py"), "--method", method, "--steps", str(STEPS), "--out", str(out)]
    task = progress.add_task(METHODS[method], total=STEPS, loss="starting")
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with errors.open("w") as log, subprocess.Popen(argv, env=env, stdout=log, stderr=log) as process:
        while process.poll() is None:
            lines = read(out)
            if lines:
                losses = [line["loss"] for line in lines if "loss" in line]
                progress.update(task, completed=lines[-1]["step"], loss=f"loss {losses[-1]:.3f}")
            time.sleep(0.2)
    if process.returncode != 0:
        raise SystemExit(f"{method} failed, see {errors}:\n{errors.read_text()[-2000:]}")
    reports = [line for line in read(out) if "loss" in line]
    progress.update(task, completed=STEPS, loss=f"loss {reports[-1]['loss']:.3f}")
    return reports


def read(path: Path) -> list[dict[str, Any]]:
    """The whole lines so far."""
    text = path.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def picture(runs: dict[str, list[dict[str, Any]]], topology: dc.topology.Topology) -> Path:
    """Loss against wall time, and the topology below."""
    from matplotlib.figure import Figure
    from matplotlib.image import imread

    drawn = topology.draw(OUT / "topology.png")
    figure = Figure(figsize=(8, 9))
    above, below = figure.subplots(2, 1, gridspec_kw={"height_ratios": [1, 1]})
    for method, reports in runs.items():
        above.plot([r["seconds"] for r in reports], [r["loss"] for r in reports], marker="o", label=METHODS[method])
    above.set(xlabel="seconds of training", ylabel="validation loss of the mean model")
    above.set_title(f"{WORKERS} workers, the same {STEPS} steps and data")
    above.legend()
    above.grid(alpha=0.3)
    below.imshow(imread(drawn))
    below.set_axis_off()
    figure.tight_layout()
    figure.savefig(OUT / "demo.png", dpi=130)
    return OUT / "demo.png"


def main() -> None:
    """Train both ways, then compare."""
    console = Console()
    OUT.mkdir(exist_ok=True)
    console.print(
        f"A byte-level GPT on the source of Python's standard library, {WORKERS} workers, {STEPS} steps each way."
    )
    columns = (TextColumn("{task.description:<28}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn(), TextColumn("{task.fields[loss]}"), console=console) as progress:
        runs = {method: train(method, progress) for method in METHODS}
    table = Table("method", "ms/step", "tokens/s", "validation loss", "seconds waited")
    for method, reports in runs.items():
        last = reports[-1]
        per_step = last["seconds"] / last["step"] * 1e3
        rate = last["tokens"] / last["seconds"]
        table.add_row(
            METHODS[method], f"{per_step:.0f}", f"{rate:,.0f}", f"{last['loss']:.3f}", f"{last['waited']:.1f}"
        )
    console.print(table)
    console.print("Loss is that of the mean of all replicas.")
    console.print("AllReduce waits: its forward and backward over those without communication.")
    topology = dc.topology.make("one-peer-exponential", size=WORKERS)
    console.print(f"picture: {picture(runs, topology)}")


if __name__ == "__main__":
    main()
