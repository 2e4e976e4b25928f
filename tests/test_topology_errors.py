"""What a topology cannot serve is refused with the offending value and the nearest that works."""

import networkx as nx
import numpy as np
import pytest

from decentcomm.errors import TopologyError, WorldError
from decentcomm.topology import make

UNBALANCED = np.array([[0.5, 0.5, 0], [0.5, 0.5, 0], [0.5, 0, 0.5]])
NEGATIVE = np.array([[1.5, -0.5], [-0.5, 1.5]])


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("hypercube", {"size": 6}, "hypercube needs a power of two, not 6; nearest: 4 or 8"),
        ("butterfly", {"size": 63}, "not 63; nearest: 32 or 64"),
        ("butterfly", {"size": 16, "S": 6}, "S=6 must be a power of two from 2 to 16; nearest: 4"),
        ("alternating-ring", {"size": 7}, "not 7; nearest: 6 or 8"),
        ("aer", {"size": 12, "nodes": 3}, "power of two as the number of nodes, not 3; nearest: 2 or 4"),
        (
            "ring-lattice",
            {"size": 7, "k": 3},
            "k=3 must be even and from 2 to 6 for 7 ranks; nearest: 2 or 4",
        ),
        ("ring-lattice", {"size": 7, "k": 8}, "nearest: 6"),
        ("torus", {"size": 12, "rows": 5}, "rows=5 does not divide size=12; nearest: 4"),
        ("base-k", {"size": 5, "k": 1}, "k=1 must be at least 2; nearest: 2"),
        ("hierarchical", {"size": 6, "nodes": 3, "outer": "hypercube"}, "not 3; nearest: 2 or 4"),
        ("hierarchical", {"size": 4, "nodes": 2, "inner": "ring"}, "nearest: 'complete'"),
        (
            "hierarchical",
            {"size": 4, "nodes": 2, "outer": make("ring", size=3)},
            "outer has size 3, but there are 2 nodes",
        ),
        ("ring", {"size": 0}, "size=0 must be a whole number of at least 1"),
        ("ring", {"size": -4}, "size=-4"),
        ("ring", {"size": 2.5}, "size=2.5"),
        ("ring", {"size": 4, "nodes": 5}, "nodes=5: 4 ranks fit on 1 to 4 nodes; nearest: 4"),
        ("ring", {"size": 4, "nodes": [3, 2]}, "add up to size=4, they add up to 5"),
        ("ring", {"size": 4, "nodes": [[0, 1], [1, 3]]}, "each rank from 0 to 3 exactly once"),
        ("ring", {"size": 4, "k": 2}, "unknown option 'k'; it takes none"),
        ("ring-lattice", {"size": 4, "degree": 2}, "unknown option 'degree'; it takes k"),
        ("rign", {"size": 4}, "unknown topology 'rign'; nearest: 'ring'"),
        ("custom", {"size": 4}, "custom needs weights="),
        ("custom", {"weights": UNBALANCED}, r"column 0 of weights\[0\] adds up to 1.5, not 1; .*networkx"),
        (
            "custom",
            {"weights": [[0.5, 0.4], [0.5, 0.5]]},
            r"row 0 of weights\[0\] adds up to 0.9, not 1; nearest: .*= 0.6",
        ),
        ("custom", {"weights": NEGATIVE}, r"weights\[0\]\[0, 1\] = -0.5 is negative; nearest: 0"),
        ("custom", {"weights": [np.eye(2), [[0.5, np.nan], [0.5, 0.5]]]}, r"weights\[1\]\[0, 1\] = nan"),
        ("custom", {"weights": np.ones((2, 3))}, r"not of shape \(1, 2, 3\)"),
        ("custom", {"weights": [np.eye(2), np.eye(3)]}, "all of one size"),
        ("custom", {"weights": np.eye(3)}, "never bring all ranks together"),
        (
            "custom",
            {"size": 3, "weights": np.full((2, 2), 0.5)},
            "weights are for 2 ranks, but size=3; nearest: 2",
        ),
        ("custom", {"weights": nx.path_graph(3, create_using=nx.DiGraph)}, "undirected graph"),
        ("custom", {"weights": nx.Graph([("a", "b")])}, "must be the ranks 0 to 1"),
        ("custom", {"weights": nx.empty_graph(3)}, "never bring all ranks together"),
    ],
)
def test_refused(name: str, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        make(name, **arguments)


def test_ranks_and_steps_out_of_range() -> None:
    ring = make("ring", size=4)
    for rank in (-1, 4):
        with pytest.raises(TopologyError, match=rf"rank={rank} is out of range: .* 0 to 3"):
            ring.neighbors(rank)
    with pytest.raises(TopologyError, match="step=-1 is negative"):
        ring.matrix(-1)


def test_size_left_out_before_init() -> None:
    with pytest.raises(WorldError, match=r"decentcomm.init\(\) has not been called"):
        make("ring")


def test_the_caller_cannot_change_a_topology_through_its_matrix() -> None:
    ring = make("ring", size=4)
    ring.matrix()[0, 0] = 7
    assert ring.matrix()[0, 0] == pytest.approx(1 / 3)
