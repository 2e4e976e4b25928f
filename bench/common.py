"""What every benchmark shares: starting ranks, interleaving contestants, and one table style (that of nccl-tests).

A benchmark reports ratios: contestants run in turn in the same process, many times, and medians are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import decentcomm as dc

LAUNCHED = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The options that all benchmarks have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument(
        "--repeats", type=int, default=0, help="times each contestant runs; default: what the bench needs"
    )
    return parser


def launch(launcher: str, size: int) -> None:
    """If this process was started by no launcher, start `size` ranks of the same command and exit with their code."""
    if any(name in os.environ for name in LAUNCHED):
        return
    beside = Path(sys.executable).parent
    start = {
        "torchrun": [str(beside / "torchrun"), "--standalone", f"--nproc-per-node={size}", "-m"],
        "mpirun": [str(beside / "mpirun"), "-np", str(size), "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"],
    }[launcher]
    if launcher == "mpirun":
        start += [sys.executable, "-m", "mpi4py", "-m"]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.geteuid() == 0 else {}
    env = {**os.environ, **root, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    sys.exit(
        subprocess.run([*start, f"bench.{Path(sys.argv[0]).stem}", *sys.argv[1:]], env=env, check=False).returncode
    )


def interleave(
    contestants: Mapping[str, Callable[[], Any]], repeats: int, between: Callable[[], None] = lambda: None
) -> dict[str, list[float]]:
    """Seconds of each run of each contestant, in turn.

    `between` comes before each run, as does one run that does not count.
    """
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(repeats + 1):
        for name, run in contestants.items():
            between()
            start = time.perf_counter()
            run()
            if turn:
                times[name].append(time.perf_counter() - start)
    return times


def medians(times: Mapping[str, list[float]]) -> dict[str, float]:
    """The median of each contestant."""
    return {name: statistics.median(t) for name, t in times.items()}


class Report:
    """A table on stdout, lines behind # around it, and the same as JSON. Prints on rank 0 only.

    Args:
        name: The benchmark.
        columns: Names of the columns; the first is the contestant.
    """

    def __init__(self, name: str, *columns: str, shown: bool = True) -> None:
        self.columns, self.shown = columns, shown
        self.data: dict[str, Any] = {"bench": name, "version": dc.__version__, "rows": [], "ratios": {}}
        self.data["machine"] = f"{os.cpu_count()} cores, {platform.machine()}, torch {torch.__version__}"
        self.say(f"# {name}: decentcomm {dc.__version__}, {self.data['machine']}")
        self.say("# " + "  ".join(f"{c:>{self._width(c)}}" for c in columns))

    def say(self, text: str) -> None:
        """A line of text."""
        if self.shown:
            print(text, flush=True)

    def row(self, *values: Any) -> None:
        """A row of the table."""
        cells = [f"{v:.3f}" if isinstance(v, float) else str(v) for v in values]
        self.say("  " + "  ".join(f"{v:>{self._width(c)}}" for v, c in zip(cells, self.columns, strict=True)))
        self.data["rows"].append(dict(zip(self.columns, values, strict=True)))

    def ratio(self, what: str, value: float, wanted: str) -> None:
        """A ratio that is asked for, beside what was wanted: ">= 1.6" or "<= 1.03"."""
        relation, bound = wanted.split()
        met = value >= float(bound) if relation == ">=" else value <= float(bound)
        self.say(f"# {what}: {value:.3f} (wanted {wanted}: {'reached' if met else 'NOT REACHED'})")
        self.data["ratios"][what] = {"value": value, "wanted": wanted, "reached": met}

    def finish(self, path: Path | None) -> None:
        """Write the JSON file."""
        if path is not None and self.shown:
            path.write_text(json.dumps(self.data, indent=2) + "\n")

    def _width(self, column: str) -> int:
        return 34 if column == self.columns[0] else max(len(column), 9)
