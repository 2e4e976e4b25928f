"""What a topology cannot serve is refused with the offending value and the nearest that works."""

import networkx as nx
import numpy as np
import pytest

from decentcomm import World, _world
from decentcomm.errors import TopologyError, WorldError
from decentcomm.topology import Edge, Topology, make

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
        ("ring", {"size": 0}, "size=0 must be at least 1; nearest: 1"),
        ("ring", {"size": -4}, "size=-4"),
        ("ring", {"size": 2.5}, "size=2.5"),
        ("ring", {"size": 4, "nodes": 5}, "nodes=5: 4 ranks fit on 1 to 4 nodes; nearest: 4"),
        ("ring", {"size": 4, "nodes": [3, 2]}, "add up to size=4, they add up to 5"),
        ("ring", {"size": 4, "nodes": [[0, 1], [1, 3]]}, "each rank from 0 to 3 exactly once"),
        ("ring", {"size": 4, "k": 2}, "unknown option 'k'; it takes none"),
        ("ring-lattice", {"size": 4, "degree": 2}, "unknown option 'degree'; it takes k"),
        ("rign", {"size": 4}, "unknown topology 'rign'; nearest: 'ring'"),
        ("custom", {"size": 4}, "custom needs weights="),
        ("custom", {"weights": UNBALANCED}, r"weights\[0\]: column 0 adds up to 1.5, not 1; .*networkx"),
        (
            "custom",
            {"weights": [[0.5, 0.4], [0.5, 0.5]]},
            r"weights\[0\]: row 0 adds up to 0.9, not 1; nearest: .*= 0.6",
        ),
        ("custom", {"weights": NEGATIVE}, r"weights\[0\]: \[0, 1\] = -0.5 is negative; nearest: 0"),
        ("custom", {"weights": [np.eye(2), [[0.5, np.nan], [0.5, 0.5]]]}, r"weights\[1\]: \[0, 1\] = nan"),
        ("custom", {"weights": np.ones((2, 3))}, r"not of shape \(2, 3\)"),
        ("custom", {"weights": [np.eye(2), np.eye(3)]}, "all of one size"),
        ("custom", {"weights": np.eye(3)}, "one period does not bring"),
        (
            "custom",
            {"size": 3, "weights": np.full((2, 2), 0.5)},
            "weights are for 2 ranks, but size=3; nearest: 2",
        ),
        ("custom", {"weights": nx.path_graph(3, create_using=nx.DiGraph)}, "undirected graph"),
        ("custom", {"weights": nx.Graph([("a", "b")])}, "must be the ranks 0 to 1"),
        ("custom", {"weights": nx.empty_graph(3)}, "one period does not bring"),
        ("custom", {"weights": [[1j, 1], [1, 1]]}, "dtype complex128"),
        ("ring-lattice", {"size": 8, "k": "4"}, "k='4' must be a whole number"),
        ("ring-lattice", {"size": 2, "k": 99}, "k=99 must be even and from 2 to 2"),
        ("base-k", {"size": 8, "k": 2.5}, "k=2.5 must be a whole number"),
        ("butterfly", {"size": 8, "S": 4.0}, "S=4.0 must be a whole number"),
        ("torus", {"size": 8, "rows": "a"}, "rows='a' must be a whole number"),
        ("ring", {"size": 2, "nodes": [[0.9], [1.2]]}, "nodes=0.9 must be a whole number"),
        ("ring", {"size": 4, "nodes": [2.0, 2.0]}, "nodes=2.0 must be a whole number"),
        ("ring", {"size": 3, "nodes": [[0, 1], 2]}, "2 is among lists of ranks"),
        (["ring"], {"size": 3}, "unknown topology"),
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
    with pytest.raises(TopologyError, match=r"step=1\.5 must be a whole number"):
        ring.matrix(1.5)  # type: ignore[arg-type]


def test_numpy_numbers_are_numbers() -> None:
    topology = make("ring", size=np.int64(4), nodes=[np.int32(1), np.int64(3)])
    assert topology.layout == ((0,), (1, 2, 3))
    assert make("ring", size=4, nodes=np.int64(2)).layout == ((0, 1), (2, 3))


def test_weights_that_are_nearly_right_become_right() -> None:
    near = np.array([[0, 0.5 + 3e-10, 0.5], [0.5 + 3e-10, 0, 0.5], [0.5, 0.5, -1e-18]])
    w = make("custom", weights=near).matrix()
    assert w.min() >= 0
    np.testing.assert_allclose([*w.sum(axis=0), *w.sum(axis=1)], 1, rtol=0, atol=1e-12)


def test_a_class_with_wrong_weights_and_a_name_twice_are_refused() -> None:
    with pytest.raises(TopologyError, match="there is a topology 'ring' already: Ring"):

        class Again(Topology, name="ring"):
            pass

    class Star(Topology):
        name = "star"

        def step_edges(self, t: int) -> list[Edge]:
            return [Edge((0, i), (0, i), 0.9) for i in range(1, self.size)]

    with pytest.raises(TopologyError, match=r"star: the matrix of step 0 is not doubly stochastic: .* is negative"):
        Star(3).matrix()


def test_custom_takes_the_world_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    here = World(0, 4, 0, 2, 0, 2, ((0, 1), (2, 3)), "torchrun")
    monkeypatch.setattr(_world._state, "world", here)
    assert make("custom", weights=np.full((4, 4), 0.25)).layout == here.layout
    with pytest.raises(TopologyError, match="weights are for 2 ranks, but size=4"):
        make("custom", weights=np.full((2, 2), 0.5))


def test_size_left_out_before_init() -> None:
    with pytest.raises(WorldError, match=r"decentcomm.init\(\) has not been called"):
        make("ring")


def test_the_caller_cannot_change_a_topology_through_its_matrix() -> None:
    ring = make("ring", size=4)
    ring.matrix()[0, 0] = 7
    assert ring.matrix()[0, 0] == pytest.approx(1 / 3)
