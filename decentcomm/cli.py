"""The command `decentcomm`: what is installed, and what a topology is worth. Prints; computes nothing itself."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from decentcomm import topology as topologies
from decentcomm.errors import Error
from decentcomm.report import Fact, machine_facts
from decentcomm.topology.base import REGISTRY

app = typer.Typer(help="Decentralized data-parallel training for PyTorch.", no_args_is_help=True, add_completion=False)
console = Console()
LARGEST_PRINTED = 32


@app.callback()
def main() -> None:
    """Decentralized data-parallel training for PyTorch."""


@app.command()
def info() -> None:
    """Show versions, devices, what is available, and what is not and why."""
    table = Table("what", "found", "note", title="decentcomm info", title_justify="left")
    for fact in machine_facts():
        table.add_row(fact.name, _mark(fact), escape(fact.note))
    console.print(table)


@app.command()
def topology(
    name: Annotated[str | None, typer.Argument(help="One of the topologies; without it, all are listed.")] = None,
    size: Annotated[int, typer.Option(help="Number of ranks.")] = 8,
    nodes: Annotated[str, typer.Option(help="Number of nodes, or their sizes: 3,1.")] = "1",
    option: Annotated[list[str] | None, typer.Option("--option", "-o", help="Option of the topology: k=4.")] = None,
    draw: Annotated[Path | None, typer.Option(help="Write a picture to this file.")] = None,
) -> None:
    """Show a topology's weights, spectral gap, steps to consensus and degree; --draw writes a picture."""
    if name is None:
        _list()
        return
    try:
        made = topologies.make(name, size=size, nodes=_nodes(nodes), **_options(option or []))
        _show(made)
        if draw is not None:
            typer.echo(f"wrote {made.draw(draw)}")
    except (Error, OSError, ValueError, MemoryError) as e:
        typer.echo(f"error: {e}", err=True)
        raise typer.Exit(2) from e


def _mark(fact: Fact) -> str:
    return f"[green]{fact.value}[/]" if fact.available else f"[yellow]{fact.value}[/]"


def _nodes(text: str) -> int | list[int]:
    sizes = [int(part) if part.strip().isdecimal() else None for part in text.split(",")]
    numbers = [n for n in sizes if n is not None]
    if len(numbers) != len(sizes):
        raise Error(f"--nodes {text}: give a number of nodes (2) or their sizes (3,1)")
    return numbers[0] if len(numbers) == 1 else numbers


def _options(pairs: list[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or key in ("size", "nodes"):
            raise Error(f"--option {pair}: write it as key=value; size and nodes are --size and --nodes")
        try:
            options[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[key] = value
    return options


def _list() -> None:
    table = Table("name", "what it is", title="topologies", title_justify="left")
    for name in topologies.names():
        table.add_row(name, (REGISTRY[name].__doc__ or "").split("\n")[0])
    console.print(table)


def _show(made: topologies.Topology) -> None:
    steps = made.consensus_steps()
    facts = Table(show_header=False, box=None)
    facts.add_row("ranks", str(made.size))
    facts.add_row("nodes", " + ".join(str(len(ranks)) for ranks in made.layout))
    facts.add_row("period", str(made.period))
    facts.add_row("spectral gap", f"{made.spectral_gap():.6g}")
    facts.add_row("steps to consensus", str(steps) if steps is not None else "asymptotic")
    facts.add_row("degree", str(made.degree()))
    facts.add_row("colours", str(max(len(made.edge_coloring(t)) for t in range(made.period))))
    facts.add_row("models received a step", f"{made.bytes_per_step(1, itemsize=1):.3g}")
    console.print(f"[bold]{made.name}[/]")
    console.print(facts)
    for t in range(made.period):
        table = Table("rank", "mixes (rank: weight)", title=f"step {t}", title_justify="left")
        for rank in range(min(made.size, LARGEST_PRINTED)):
            mixes = made.neighbors(rank, t)
            table.add_row(str(rank), "  ".join(f"{r}: {w:.4g}" for r, w in mixes.items()))
        if made.size > LARGEST_PRINTED:
            table.add_row("...", f"{made.size - LARGEST_PRINTED} more ranks")
        console.print(table)
