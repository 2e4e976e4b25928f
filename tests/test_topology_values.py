"""Topologies against published and hand-computed numbers."""

import subprocess
import sys

import numpy as np
import pytest

from decentcomm.topology import Edge, Topology, make, names
from decentcomm.topology.base import REGISTRY

TABLE = [
    "complete",
    "ring",
    "alternating-ring",
    "torus",
    "hypercube",
    "exponential",
    "one-peer-exponential",
    "aer",
    "base-k",
    "ring-lattice",
    "butterfly",
    "hierarchical",
    "custom",
]


def test_names_are_those_of_the_table() -> None:
    assert names() == sorted(TABLE)


@pytest.mark.parametrize(
    ("name", "size", "options", "gap"),
    [
        ("ring-lattice", 96, {"k": 2}, 1.43e-3),
        ("ring-lattice", 96, {"k": 10}, 2.13e-2),
        ("ring-lattice", 96, {"k": 50}, 0.404),
        ("ring-lattice", 1008, {"k": 112}, 2.05e-2),
        ("exponential", 96, {}, 0.25),
        ("exponential", 1008, {}, 0.182),
    ],
)
def test_spectral_gaps_of_the_papers(name: str, size: int, options: dict[str, int], gap: float) -> None:
    assert make(name, size=size, **options).spectral_gap() == pytest.approx(gap, rel=5e-3)


@pytest.mark.parametrize(("size", "k"), [(5, 4), (9, 2), (16, 6), (33, 12), (64, 62)])
def test_ring_lattice_gap_is_that_of_its_eigenvalues(size: int, k: int) -> None:
    m = np.arange(1, size)
    eigenvalues = (1 + 2 * sum(np.cos(2 * np.pi * m * j / size) for j in range(1, k // 2 + 1))) / (k + 1)
    assert make("ring-lattice", size=size, k=k).spectral_gap() == pytest.approx(
        1 - np.abs(eigenvalues).max(), abs=1e-12
    )


def test_weights_of_the_table() -> None:
    third = pytest.approx(1 / 3)
    assert make("ring", size=5).neighbors(0) == {0: third, 1: third, 4: third}
    assert make("ring", size=2).neighbors(1) == {0: 0.5, 1: 0.5}
    alternating = make("alternating-ring", size=6)
    assert [alternating.neighbors(2, t) for t in (0, 1)] == [{2: 0.5, 3: 0.5}, {1: 0.5, 2: 0.5}]
    assert make("torus", size=9).neighbors(4) == {r: pytest.approx(0.2) for r in (1, 3, 4, 5, 7)}
    assert make("hypercube", size=8).neighbors(5, 1) == {5: 0.5, 7: 0.5}
    assert make("exponential", size=8).neighbors(0) == {r: pytest.approx(0.25) for r in (0, 4, 6, 7)}
    assert make("one-peer-exponential", size=6).neighbors(1, 2) == {1: 0.5, 3: 0.5}
    assert make("ring-lattice", size=8, k=4).neighbors(0) == {r: pytest.approx(0.2) for r in (0, 1, 2, 6, 7)}
    assert make("butterfly", size=8, S=4).neighbors(0, 1) == {r: 0.25 for r in (0, 1, 4, 5)}
    assert make("complete", size=4).neighbors(3) == dict.fromkeys(range(4), 0.25)


def test_torus_with_short_sides_uses_metropolis_weights() -> None:
    assert make("torus", size=8, rows=2).neighbors(0) == {r: pytest.approx(0.25) for r in (0, 1, 3, 4)}


def test_aer_uses_the_network_on_half_of_the_nodes_at_a_time() -> None:
    aer = make("aer", size=16, nodes=4)
    nodes = [set(ranks) for ranks in aer.layout]
    groups = [[set(e.ranks) for e in aer.edges(t)] for t in range(aer.period)]
    n0, n1, n2, n3 = nodes
    assert groups == [
        [n0, n1, n2 | n3],
        [n0 | n1, n2, n3],
        [n0, n2, n1 | n3],
        [n0 | n2, n1, n3],
    ]


def test_aer_with_one_rank_a_node_and_with_one_node() -> None:
    assert [[e.ranks for e in make("aer", size=2, nodes=2).edges(t)] for t in (0, 1)] == [[], [(0, 1)]]
    assert [e.ranks for e in make("aer", size=3).edges()] == [(0, 1, 2)]


def test_hierarchical_mixes_the_means_of_nodes() -> None:
    topology = make("hierarchical", size=6, nodes=3, outer="ring")
    outer = make("ring", size=3).matrix()
    np.testing.assert_allclose(topology.matrix(), np.kron(outer, np.full((2, 2), 0.5)), atol=1e-15)


def test_hierarchical_over_aer_pairs_nodes() -> None:
    topology = make("hierarchical", size=8, nodes=4, outer="aer")
    assert topology.neighbors(0, 1) == {r: 0.25 for r in (0, 1, 2, 3)}


def test_a_custom_matrix_that_is_the_mean_is_one_group() -> None:
    assert make("custom", weights=np.full((4, 4), 0.25)).edges() == (Edge((0, 1, 2, 3), (0, 1, 2, 3), 0.25),)


def test_bytes_per_step_of_the_busiest_rank() -> None:
    assert make("ring", size=8).bytes_per_step(1000) == 2 * 4000
    assert make("hypercube", size=8).bytes_per_step(1000, itemsize=2) == 2000
    assert make("complete", size=8).bytes_per_step(1000) == pytest.approx(2 * 7 / 8 * 4000)
    assert make("ring", size=1).bytes_per_step(1000) == 0


def test_a_new_topology_is_one_class() -> None:
    class Star(Topology, name="star"):
        """Everybody with rank 0."""

        def step_edges(self, t: int) -> list[Edge]:
            return [Edge((0, i), (0, i), 1 / self.size) for i in range(1, self.size)]

    try:
        assert make("star", size=4).neighbors(2) == {0: 0.25, 2: 0.75}
    finally:
        del REGISTRY["star"]


def test_needs_neither_torch_nor_the_engine() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['decentcomm._C'] = None\n"
        "import decentcomm as dc; assert dc.topology.make('aer', size=8, nodes=2).spectral_gap() == 1"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
