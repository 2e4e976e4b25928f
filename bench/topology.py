"""How long it takes to make a topology of 1,024 ranks and to analyse it: every rank does this at start-up."""

import time
from itertools import pairwise

from rich.console import Console
from rich.table import Table

import decentcomm as dc

SIZE, NODES = 1024, 128


def main() -> None:
    """Print milliseconds per topology."""
    table = Table("topology", "edges a step", "make + edges ms", "own neighbours ms", "gap ms", title=f"{SIZE} ranks")
    for name in dc.topology.names():
        if name == "custom":
            continue
        times = [time.perf_counter()]
        topology = dc.topology.make(name, size=SIZE, nodes=NODES)
        edges = [len(topology.edges(t)) for t in range(topology.period)]
        times.append(time.perf_counter())
        assert abs(sum(topology.neighbors(0).values()) - 1) < 1e-12
        times.append(time.perf_counter())
        topology.spectral_gap()
        times.append(time.perf_counter())
        spans = [f"{(b - a) * 1e3:.1f}" for a, b in pairwise(times)]
        table.add_row(name, f"{max(edges)}", *spans)
    Console().print(table)


if __name__ == "__main__":
    main()
