"""Layout of graphs of 300, 5,000 and 20,000 nodes, graphs of profiles for a page, and drawings of real models.

Prints, asserts nothing: `python -m tests.benchmarks.bench_draw [MODEL.onnx ...]`.
"""

from __future__ import annotations

import gzip
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ndld_flow.backends.models.drawn_graph import read_graph
from ndld_flow.drawing.choices import Look, Reading
from ndld_flow.drawing.draw import picture_bytes
from ndld_flow.drawing.layout import Extent, lay_out
from ndld_flow.report.collect_graph import collect_graph, collect_graphs, graph_payload
from tests.graph_page import residual_profile

SIZES = (300, 5_000, 20_000)
TRIES = 3


def seconds(work: Callable[[], object]) -> float:
    """Median of a few tries."""
    taken = []
    for _ in range(TRIES):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def residual_edges(count: int) -> list[tuple[int, int]]:
    """As exporters make them: a chain, and every fourth node reads what its third predecessor read."""
    chain = [(place - 1, place) for place in range(1, count)]
    return chain + [(place - 3, place) for place in range(3, count, 4)]


def tangled_edges(count: int) -> list[tuple[int, int]]:
    """Three nodes in ten read two others, from up to twenty nodes back; one in seven starts a branch."""
    chance = random.Random(0)
    edges = []
    for place in range(1, count):
        near = chance.random() < 0.85
        edges.append((place - 1 if near else chance.randrange(max(0, place - 12), place), place))
        if place > 2 and chance.random() < 0.3:
            edges.append((chance.randrange(max(0, place - 20), place - 1), place))
    return edges


def bench_layout() -> None:
    print(f"{'layout':<10} {'nodes':>7} {'edges':>7} {'strip':>9} {'columns':>9}")
    for name, make in (("residual", residual_edges), ("tangled", tangled_edges)):
        for count in SIZES:
            edges = make(count)
            laid = partial(lay_out, [Extent(90, 24, 14, 90)] * count, edges)
            strip, columns = seconds(laid), seconds(partial(laid, aspect=1.6))
            print(f"{name:<10} {count:>7,} {len(edges):>7,} {strip:>7.3f} s {columns:>7.3f} s")


def bench_pages() -> None:
    profile = residual_profile(5_000)
    print(f"graph of a profile of 5,000 layers: {seconds(lambda: collect_graph(profile)):.3f} s")
    print(f"of ten such profiles: {seconds(lambda: collect_graphs([profile] * 10)):.3f} s")
    picture = collect_graph(profile)
    assert picture is not None
    packed = gzip.compress(json.dumps(graph_payload(picture), separators=(",", ":")).encode(), 6)
    print(f"its payload: {seconds(lambda: graph_payload(picture)):.3f} s, {len(packed):,} bytes packed")


def bench_models(paths: list[Path]) -> None:
    for path in paths:
        graph = read_graph(path, Reading())
        read = seconds(partial(read_graph, path, Reading()))
        svg, png = (seconds(partial(picture_bytes, graph, suffix, Look())) for suffix in (".svg", ".png"))
        print(f"{path.name}: {len(graph.nodes):,} nodes, read {read:.2f} s, svg {svg:.2f} s, png {png:.2f} s")


if __name__ == "__main__":
    bench_layout()
    bench_pages()
    bench_models([Path(argument) for argument in sys.argv[1:]])
