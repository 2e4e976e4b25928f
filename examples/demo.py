"""Watch topologies mix: 16 workers on 4 nodes start apart; how far from their mean are they after each step?

Run by `make demo`. One process, no training: what is shown is x <- W(t) x for each topology.
"""

from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import decentcomm as dc

SIZE, NODES, STEPS = 16, 4, 16
SHOWN = (1, 2, 4, 8, 16)
OUT = Path("demo")


def distances(topology: dc.topology.Topology) -> list[float]:
    """Distance of the replicas from their mean before step 0 and after each step, relative to the start."""
    x = np.random.default_rng(0).standard_normal((topology.size, 1000))
    trace = [np.linalg.norm(x - x.mean(axis=0))]
    for t in range(STEPS):
        x = topology.matrix(t) @ x
        trace.append(np.linalg.norm(x - x.mean(axis=0)))
    return [d / trace[0] for d in trace]


def main() -> None:
    """Print the table and draw the pictures."""
    table = Table("topology", "degree", "gap", *(f"t={t}" for t in SHOWN))
    OUT.mkdir(exist_ok=True)
    for name in dc.topology.names():
        if name == "custom":
            continue
        topology = dc.topology.make(name, size=SIZE, nodes=NODES)
        trace = distances(topology)
        row = ["[green]exact[/]" if trace[t] < 1e-12 else f"{trace[t]:.2%}" for t in SHOWN]
        table.add_row(name, str(topology.degree()), f"{topology.spectral_gap():.3f}", *row)
        topology.draw(OUT / f"{name}.png")
    console = Console()
    console.print(f"{SIZE} workers on {NODES} nodes: distance from the mean after t steps, relative to the start")
    console.print(table)
    console.print(f"pictures of each topology: {OUT}/*.png")


if __name__ == "__main__":
    main()
