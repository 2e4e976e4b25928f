"""What holds for every topology, over sizes 1 to 64 and nodes of different sizes."""

from collections import Counter

import networkx as nx
import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from decentcomm.errors import TopologyError
from decentcomm.topology import Topology, make, names

BUILT_IN = [name for name in names() if name != "custom"]
OPTIONS = {
    "torus": st.fixed_dictionaries({}, optional={"rows": st.integers(1, 8)}),
    "ring-lattice": st.fixed_dictionaries({}, optional={"k": st.integers(1, 32)}),
    "butterfly": st.fixed_dictionaries({}, optional={"S": st.sampled_from([2, 4, 8, 16])}),
    "base-k": st.fixed_dictionaries({}, optional={"k": st.integers(2, 7)}),
    "hierarchical": st.fixed_dictionaries(
        {}, optional={"outer": st.sampled_from([n for n in BUILT_IN if n != "hierarchical"])}
    ),
}


@st.composite
def layouts(draw: st.DrawFn) -> tuple[int, object]:
    """A size from 1 to 64, and its nodes: a number of them, unequal sizes, or ranks scattered over nodes."""
    size = draw(st.one_of(st.integers(1, 64), st.sampled_from([1, 2, 4, 8, 16, 32, 64])))
    nodes = draw(st.one_of(st.integers(1, size), st.sampled_from([n for n in (1, 2, 4, 8) if n <= size])))
    kind = draw(st.sampled_from(["number", "sizes", "ranks"]))
    if kind == "number":
        return size, nodes
    cuts = sorted(draw(st.permutations(range(1, size)))[: nodes - 1])
    if kind == "sizes":
        return size, [b - a for a, b in zip([0, *cuts], [*cuts, size], strict=True)]
    order = draw(st.permutations(range(size)))
    return size, [list(order[a:b]) for a, b in zip([0, *cuts], [*cuts, size], strict=True)]


def check(topology: Topology) -> None:
    n = topology.size
    product = np.eye(n)
    exact = topology.consensus_steps()
    for t in range(topology.period):
        w = topology.matrix(t)
        assert w.shape == (n, n)
        assert w.min() >= 0
        np.testing.assert_allclose(w.sum(axis=0), 1, rtol=0, atol=1e-12)
        np.testing.assert_allclose(w.sum(axis=1), 1, rtol=0, atol=1e-12)
        for rank in range(n):
            row = np.zeros(n)
            mixes = topology.neighbors(rank, t + topology.period)  # a period later it is the same
            row[list(mixes)] = list(mixes.values())
            assert rank in mixes
            np.testing.assert_array_equal(row, w[rank])
        check_coloring(topology, t)
        product = w @ product
        is_mean = np.abs(product - 1 / n).max() < 1e-9
        assert is_mean == (exact is not None and t + 1 >= exact)
    s2 = np.linalg.svd(product - 1 / n, compute_uv=False)[0]
    assert s2 < 1
    assert topology.spectral_gap() == pytest.approx(1 - s2 ** (1 / topology.period) if s2 > 1e-9 else 1, abs=1e-9)


def check_coloring(topology: Topology, t: int) -> None:
    colors = topology.edge_coloring(t)
    assert Counter(e for color in colors for e in color) == Counter(topology.edges(t))
    for color in colors:
        places = {e.ranks for e in color}
        ranks = [r for place in places for r in place]
        assert len(ranks) == len(set(ranks)), "a rank occurs twice in a colour"
    degree = Counter(r for place in {e.ranks for e in topology.edges(t)} for r in place)
    assert len(colors) <= max(degree.values(), default=0) + 1


@pytest.mark.parametrize("name", BUILT_IN)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_every_topology_is_doubly_stochastic_contracting_and_properly_coloured(name: str, data: st.DataObject) -> None:
    size, nodes = data.draw(layouts())
    options = data.draw(OPTIONS.get(name, st.just({})))
    try:
        topology = make(name, size=size, nodes=nodes, **options)
    except TopologyError as e:
        assert "nearest: " in str(e)
        event("refused")
        return
    check(topology)


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_size_with_its_defaults(name: str) -> None:
    served = []
    for size in range(1, 65):
        try:
            topology = make(name, size=size)
        except TopologyError as e:
            assert f"not {size};" in str(e)
            continue
        check(topology)
        served.append(size)
    powers = [1, 2, 4, 8, 16, 32, 64]
    only = {"hypercube": powers, "butterfly": powers, "alternating-ring": [1, *range(2, 65, 2)]}
    assert served == only.get(name, list(range(1, 65)))


def exact_steps(name: str, size: int, nodes: int) -> int | None:
    """What algorithms.md promises, or None."""
    log2 = (size - 1).bit_length()
    power = size & (size - 1) == 0
    return {
        "complete": 1,
        "hypercube": log2,
        "one-peer-exponential": log2 if power else None,
        "aer": max(1, 2 * (nodes.bit_length() - 1)),
    }.get(name)


EXACT = [
    (name, size, nodes)
    for name in ("complete", "hypercube", "one-peer-exponential", "aer")
    for size in (4, 6, 8, 16, 24, 32, 64)
    for nodes in (1, 2, 4)
    if not (name == "hypercube" and size & (size - 1)) and size % nodes == 0
]


@pytest.mark.parametrize(("name", "size", "nodes"), EXACT)
def test_exact_average_in_the_stated_steps(name: str, size: int, nodes: int) -> None:
    assert make(name, size=size, nodes=nodes).consensus_steps() == exact_steps(name, size, nodes)


@pytest.mark.parametrize(("bits", "S"), [(b, S) for b in range(1, 7) for S in (2, 4, 8) if 2**b >= S])
def test_butterfly_agrees_after_all_bits_were_flipped(bits: int, S: int) -> None:
    assert make("butterfly", size=2**bits, S=S).consensus_steps() == -(-bits // (S.bit_length() - 1))


@pytest.mark.parametrize("k", [2, 3, 4, 5])
def test_base_k_is_exact_for_any_size_with_the_degree_and_the_length_of_the_paper(k: int) -> None:
    for size in range(2, 65):
        topology = make("base-k", size=size, k=k)
        assert topology.degree() <= k - 1
        assert topology.consensus_steps() == topology.period <= 2 * np.log(size) / np.log(k) + 2


@settings(max_examples=100, deadline=None, derandomize=True)
@given(size=st.integers(2, 24), probability=st.floats(0.1, 1), seed=st.integers(0, 10**6))
def test_any_connected_graph_works_as_a_custom_topology(size: int, probability: float, seed: int) -> None:
    graph = nx.gnp_random_graph(size, probability, seed=seed)
    graph.add_edges_from(nx.random_labeled_tree(size, seed=seed).edges)
    topology = make("custom", weights=graph)
    check(topology)
    assert {e.ranks for e in topology.edges()} == {tuple(sorted(e)) for e in graph.edges}


@settings(max_examples=100, deadline=None, derandomize=True)
@given(size=st.integers(1, 16), period=st.integers(1, 3), seed=st.integers(0, 10**6))
def test_any_doubly_stochastic_matrices_work_as_a_custom_topology(size: int, period: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    mixtures = [
        sum(p * np.eye(size)[rng.permutation(size)] for p in rng.dirichlet(np.ones(4))) * 0.8 + 0.2 * _ring(size)
        for _ in range(period)
    ]
    topology = make("custom", weights=mixtures if period > 1 else mixtures[0])
    check(topology)
    for t, w in enumerate(mixtures):
        np.testing.assert_allclose(topology.matrix(t), w, rtol=0, atol=1e-12)


def _ring(size: int) -> np.ndarray:
    return make("ring", size=size).matrix()
