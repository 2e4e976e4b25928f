"""`make` and `names`: topologies by name. A new topology is one file and one line here."""

from __future__ import annotations

from difflib import get_close_matches
from inspect import signature
from typing import Any

from decentcomm._world import initialised, world
from decentcomm.errors import TopologyError
from decentcomm.topology import aer as aer
from decentcomm.topology import base_k as base_k
from decentcomm.topology import complete as complete
from decentcomm.topology import custom as custom
from decentcomm.topology import exponential as exponential
from decentcomm.topology import hierarchical as hierarchical
from decentcomm.topology import hypercube as hypercube
from decentcomm.topology import ring as ring
from decentcomm.topology import torus as torus
from decentcomm.topology.base import REGISTRY, Topology
from decentcomm.topology.layout import Nodes


def names() -> list[str]:
    """The names that `make` knows."""
    return sorted(REGISTRY)


def make(name: str, *, size: int | None = None, nodes: Nodes | None = None, **options: Any) -> Topology:
    """Make a topology by name.

    Args:
        name: One of `names()`.
        size: Number of ranks; default: the world's, after `decentcomm.init()`.
        nodes: On which nodes they live: a number, a list of sizes, or a list of rank lists. Default: the world's if
            size is not given either, else one node.
        options: What the topology itself takes, such as `k` of ring-lattice.
    """
    if not isinstance(name, str) or name not in REGISTRY:
        close = get_close_matches(str(name), REGISTRY, n=1, cutoff=0.0)
        raise TopologyError(f"unknown topology {name!r}; nearest: {close[0]!r}; known: {', '.join(names())}")
    cls = REGISTRY[name]
    takes = [p for p in signature(cls.__init__).parameters if p not in ("self", "size", "nodes")]
    unknown = [o for o in options if o not in takes]
    if unknown:
        known = f"it takes {', '.join(takes)}" if takes else "it takes none"
        raise TopologyError(f"{name}: unknown option {unknown[0]!r}; {known}")
    if name == "custom" and options.get("weights") is None:
        raise TopologyError("custom needs weights=: a doubly stochastic matrix, a list of them, or a networkx graph")
    if size is None and ("weights" not in options or initialised()):
        here = world()
        size = here.size
        nodes = here.layout if nodes is None else nodes
    made: Topology = cls(size, 1 if nodes is None else nodes, **options)  # type: ignore[arg-type]
    return made
