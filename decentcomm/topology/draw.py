"""Pictures of topologies: a panel for each step of the period, nodes as boxes, ranks as circles. Needs matplotlib."""

from __future__ import annotations

from fractions import Fraction
from math import atan2, ceil, cos, pi, sin, sqrt
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decentcomm.errors import MissingDependencyError
from decentcomm.topology.edge import Edge

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from decentcomm.topology.base import Topology

Point = tuple[float, float]

MOST_PANELS = 8
INK, PAPER, BOX, NETWORK = "#22303c", "#ffffff", "#f1f3f5", "#8c2f39"
COLORS = (
    "#4e79a7",
    "#f28e2b",
    "#59a14f",
    "#b07aa1",
    "#76b7b2",
    "#e15759",
    "#edc948",
    "#9c755f",
    "#ff9da7",
    "#bab0ac",
)


def draw(topology: Topology, path: str | PathLike[str]) -> Path:
    """Write the picture to `path`; the format follows from its ending, PNG without one."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as e:
        raise MissingDependencyError("drawing needs matplotlib: pip install 'decentcomm[bench]'") from e
    shown = min(topology.period, MOST_PANELS)
    rows = ceil(shown / 4)
    columns = ceil(shown / rows)
    side = 3.6 if topology.size <= 16 else 4.6
    figure = Figure(figsize=(max(columns * side, 6.4), rows * (side + 0.35) + 1.15), facecolor=PAPER)
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, squeeze=False).flat
    scene = _Scene(topology)
    for t, axes in enumerate(panels):
        axes.set_axis_off()
        if t < shown:
            scene.panel(axes, t)
    title, facts = _caption(topology, shown)
    top = 1 - 0.12 / figure.get_figheight()
    figure.suptitle(title, x=0.5, y=top, fontsize=15, fontweight="bold", color=INK, va="top")
    figure.text(0.5, top - 0.34 / figure.get_figheight(), facts, fontsize=10.5, color="#5c6b77", ha="center", va="top")
    figure.subplots_adjust(
        left=0.01, right=0.99, bottom=0.01, top=1 - 1.2 / figure.get_figheight(), wspace=0.06, hspace=0.16
    )
    path = Path(path)
    path = path if path.suffix else path.with_suffix(".png")
    figure.savefig(path, dpi=160)
    return path


def _caption(topology: Topology, shown: int) -> tuple[str, str]:
    nodes, steps = len(topology.layout), topology.consensus_steps()
    where = f" on {nodes} nodes" if nodes > 1 else ""
    facts = [
        f"period {topology.period}" + (f" (first {shown} steps shown)" if shown < topology.period else ""),
        f"spectral gap {topology.spectral_gap():.3g}",
        f"exact average after {steps} step{'s' if steps != 1 else ''}"
        if steps is not None
        else "converges asymptotically",
    ]
    return f"{topology.name}: {topology.size} ranks{where}", "  ·  ".join(facts)


class _Scene:
    """Where ranks and node boxes stand, the same in every panel."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        layout = topology.layout
        self.node_of = {r: a for a, ranks in enumerate(layout) for r in ranks}
        if len(layout) == 1:
            self.centers: list[Point] = [(0.0, 0.0)]
            self.half = 1.0 if topology.size > 1 else 0.4
            self.ranks = dict(zip(layout[0], _circle(topology.size, 0.8 if topology.size > 1 else 0.0), strict=True))
            spacing = 2 * 0.8 * sin(pi / max(topology.size, 2))
        else:
            widest = ceil(sqrt(max(len(ranks) for ranks in layout)))
            turn = 3 * pi / 4 if len(layout) == 4 else pi / 2
            self.centers = _circle(len(layout), 1.0, turn) if len(layout) > 2 else [(-0.75, 0.0), (0.75, 0.0)]
            self.half = min(0.45, 0.72 * sin(pi / max(len(layout), 3)))
            spacing = 2 * self.half * 0.86 / widest
            self.ranks = {}
            for (x, y), ranks in zip(self.centers, layout, strict=True):
                rows = ceil(len(ranks) / widest)
                for i, rank in enumerate(ranks):
                    row, column = divmod(i, widest)
                    in_row = min(widest, len(ranks) - row * widest)
                    self.ranks[rank] = (
                        x + (column - (in_row - 1) / 2) * spacing,
                        y - (row - (rows - 1) / 2) * spacing,
                    )
        self.radius = min(0.12, 0.36 * spacing)

    def panel(self, axes: Axes, t: int) -> None:
        """Draw one step."""
        edges = self.topology.edges(t)
        paint: dict[int, str] = {}
        boxes: dict[int, str] = {}
        groups = [e for e in edges if not e.directed and len(e.ranks) > 2]
        for i, edge in enumerate(groups):
            color = COLORS[i % len(COLORS)]
            paint.update(dict.fromkeys(edge.ranks, color))
            nodes = self._whole_nodes(edge)
            if nodes:
                boxes.update(dict.fromkeys(nodes, color))
                self._band(axes, nodes, color)
            else:
                self._polygon(axes, edge, color)
        for edge in edges:
            if edge not in groups:
                self._line(axes, edge)
        self._boxes(axes, boxes)
        self._circles(axes, paint)
        reach = self.half + 0.16
        (left, right), (low, high) = ((min(c) - reach, max(c) + reach) for c in zip(*self.centers, strict=True))
        extent = max(right - left, high - low) / 2
        axes.set(xlim=((left + right) / 2 - extent, (left + right) / 2 + extent), aspect="equal")
        axes.set_ylim((low + high) / 2 - extent, (low + high) / 2 + extent)
        axes.set_title(f"step {t}", fontsize=12, color=INK, pad=14)
        axes.text(
            0.5,
            1.015,
            self._weights(edges),
            transform=axes.transAxes,
            ha="center",
            fontsize=8.5,
            color="#5c6b77",
        )

    def _weights(self, edges: tuple[Edge, ...]) -> str:
        if not edges:
            return "nobody communicates"
        kinds: dict[str, set[float]] = {}
        for e in edges:
            across = len({self.node_of[r] for r in e.ranks}) > 1
            kinds.setdefault("across nodes" if across else "inside nodes", set()).add(e.weight)
        if len(self.centers) == 1:
            kinds = {"weight": kinds["inside nodes"]}
        return "  ·  ".join(f"{kind} {_range(kinds[kind])}" for kind in sorted(kinds, reverse=True))

    def _whole_nodes(self, edge: Edge) -> list[int]:
        nodes = sorted({self.node_of[r] for r in edge.ranks})
        members = [r for a in nodes for r in self.topology.layout[a]]
        return nodes if sorted(members) == list(edge.ranks) else []

    def _band(self, axes: Axes, nodes: list[int], color: str) -> None:
        """A broad band that ties the boxes of a group together."""
        points = [self.centers[a] for a in nodes]
        if len(points) == 2 and len(self.centers) > 4:  # bow inwards, past the nodes in between
            points = _bow(points[0], points[1])
        if len(nodes) > 2:
            hub = _mean(points)
            points = [q for p in points for q in (p, hub)]
        xs, ys = zip(*points, strict=True)
        axes.plot(
            xs, ys, color=color, alpha=0.45, linewidth=60 * self.half, solid_capstyle="round", zorder=1, gid="edge"
        )

    def _polygon(self, axes: Axes, edge: Edge, color: str) -> None:
        """A patch with the group's members as corners."""
        from matplotlib.patches import Polygon

        points = [self.ranks[r] for r in edge.ranks]
        x0, y0 = _mean(points)
        around = sorted(points, key=lambda p: atan2(p[1] - y0, p[0] - x0))
        axes.add_patch(Polygon(around, facecolor=color, alpha=0.08, linewidth=0, zorder=3))
        axes.add_patch(
            Polygon(around, fill=False, edgecolor=color, linewidth=2.2, joinstyle="round", zorder=3, gid="edge")
        )

    def _line(self, axes: Axes, edge: Edge) -> None:
        from matplotlib.patches import FancyArrowPatch

        block = edge.directed and (len(edge.sources) > 1 or len(edge.targets) > 1)
        across = len({self.node_of[r] for r in edge.ranks}) > 1
        if block:
            a, b = self.centers[self.node_of[edge.sources[0]]], self.centers[self.node_of[edge.targets[0]]]
            a, b = _towards(a, b, self.half * 1.04), _towards(b, a, self.half * 1.04)
        elif edge.directed:
            a, b = self.ranks[edge.sources[0]], self.ranks[edge.targets[0]]
        else:
            a, b = (self.ranks[r] for r in edge.ranks)
        style: dict[str, Any] = {
            "arrowstyle": "-|>" if edge.directed else "-",
            "mutation_scale": 18 if block else 9,
        }
        style["connectionstyle"] = "arc3,rad=0.14" if edge.directed else "arc3,rad=0.0"
        shrink = 0 if block else self.radius * 62
        crowded = len(self.topology.edges(0)) > 60
        axes.add_patch(
            FancyArrowPatch(
                a,
                b,
                gid="edge",
                color=NETWORK if across else "#4e79a7",
                linewidth=3.0 if block else (0.7 if crowded else 1.6),
                alpha=0.55 if crowded else 0.9,
                shrinkA=shrink if edge.directed else 0,
                shrinkB=shrink if edge.directed else 0,
                zorder=3 if not block else 2,
                **style,
            )
        )

    def _boxes(self, axes: Axes, colors: dict[int, str]) -> None:
        from matplotlib.patches import FancyBboxPatch

        if len(self.centers) == 1 and self.topology.size == 1:
            return
        for a, (x, y) in enumerate(self.centers):
            side = 2 * self.half
            shape = f"round,pad=0,rounding_size={0.16 * self.half}"
            color = colors.get(a)
            for fill, alpha in ((BOX, 1.0), *(((color, 0.25),) if color else ())):
                axes.add_patch(
                    FancyBboxPatch(
                        (x - self.half, y - self.half),
                        side,
                        side,
                        boxstyle=shape,
                        facecolor=fill,
                        alpha=alpha,
                        linewidth=0,
                        zorder=2,
                    )
                )
            if len(self.centers) > 1:
                size = min(9.0, 22 * self.half)
                axes.text(
                    x - self.half + 0.02,
                    y + self.half + 0.02,
                    f"node {a}",
                    ha="left",
                    va="bottom",
                    fontsize=size,
                    color="#5c6b77",
                    zorder=5,
                )
            edge = color or "#b8c2cc"
            axes.add_patch(
                FancyBboxPatch(
                    (x - self.half, y - self.half),
                    side,
                    side,
                    boxstyle=shape,
                    gid="node",
                    fill=False,
                    edgecolor=edge,
                    linewidth=1.6,
                    zorder=2,
                )
            )

    def _circles(self, axes: Axes, colors: dict[int, str]) -> None:
        from matplotlib.patches import Circle

        for rank, (x, y) in self.ranks.items():
            color = colors.get(rank)
            axes.add_patch(
                Circle((x, y), self.radius, facecolor=color or PAPER, edgecolor=INK, linewidth=1.0, zorder=4)
            )
            size = min(9.5, 62 * self.radius)
            axes.text(
                x,
                y,
                str(rank),
                ha="center",
                va="center_baseline",
                fontsize=size,
                color=PAPER if color else INK,
                zorder=5,
            )


def _mean(points: list[Point]) -> Point:
    return sum(x for x, _ in points) / len(points), sum(y for _, y in points) / len(points)


def _bow(a: Point, b: Point) -> list[Point]:
    """A curve from a to b, bent towards the origin."""
    bend = (0.22 * (a[0] + b[0]), 0.22 * (a[1] + b[1]))
    steps = [i / 24 for i in range(25)]
    return [
        tuple((1 - s) ** 2 * p + 2 * s * (1 - s) * c + s * s * q for p, c, q in zip(a, bend, b, strict=True))  # type: ignore[misc]
        for s in steps
    ]


def _towards(a: Point, b: Point, half: float) -> Point:
    """Where the line from a to b leaves the square of half side `half` around a."""
    dx, dy = b[0] - a[0], b[1] - a[1]
    scale = half / max(abs(dx), abs(dy))
    return a[0] + dx * scale, a[1] + dy * scale


def _circle(n: int, radius: float, start: float = pi / 2) -> list[Point]:
    """N points on a circle, clockwise from the top."""
    return [(radius * cos(start - 2 * pi * i / n), radius * sin(start - 2 * pi * i / n)) for i in range(n)]


def _range(weights: set[float]) -> str:
    low, high = _fraction(min(weights)), _fraction(max(weights))
    return low if low == high else f"{low} to {high}"


def _fraction(weight: float) -> str:
    near = Fraction(weight).limit_denominator(200)
    return str(near) if abs(near - weight) < 1e-9 else f"{weight:.3g}"
