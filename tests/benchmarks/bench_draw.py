"""Layout of graphs of 300, 5,000 and 20,000 nodes, graphs of profiles for a page, drawings and pages of real models.

Prints, asserts nothing: `python -m tests.benchmarks.bench_draw [MODEL.onnx ...]`.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ndld_flow.drawing.draw import picture_bytes
from ndld_flow.drawing.graph import Look, Reading
from ndld_flow.drawing.layout import Extent, lay_out
from ndld_flow.graph.drawn_graph import read_graph
from ndld_flow.report.encoding import packed
from ndld_flow.report.report_data import collect_graphs
from ndld_flow.verbs.draw import draw
from tests.support.graph_page import collect_graph, residual_profile
from tests.support.models import GraphBuilder, rename_output, save, tensor

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
    chain = [(index - 1, index) for index in range(1, count)]
    return chain + [(index - 3, index) for index in range(3, count, 4)]


def tangled_edges(count: int) -> list[tuple[int, int]]:
    """Three nodes in ten read two others, from up to twenty nodes back; one in seven starts a branch."""
    chance = random.Random(0)
    edges = []
    for index in range(1, count):
        near = chance.random() < 0.85
        edges.append((index - 1 if near else chance.randrange(max(0, index - 12), index), index))
        if index > 2 and chance.random() < 0.3:
            edges.append((chance.randrange(max(0, index - 20), index - 1), index))
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
    shape = collect_graph(profile)
    print(f"its data: {seconds(lambda: packed(shape)):.3f} s, {len(packed(shape)):,} bytes packed")


def bench_models(paths: list[Path]) -> None:
    for path in paths:
        graph = read_graph(path, Reading())
        read = seconds(partial(read_graph, path, Reading()))
        svg, png = (seconds(partial(picture_bytes, graph, suffix, Look())) for suffix in (".svg", ".png"))
        print(f"{path.name}: {len(graph.nodes):,} nodes, read {read:.2f} s, svg {svg:.2f} s, png {png:.2f} s")
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "page.html"
            built = seconds(partial(draw, path, page))
            print(f"{path.name}: its page {built:.2f} s, {page.stat().st_size:,} bytes")


def chain_model(path: Path, blocks: int) -> Path:
    """Five nodes and five weights a block."""
    b = GraphBuilder()
    h = "x"
    for _ in range(blocks):
        mixed = b.op("Conv", h, b.weight(16, 16, 3, 3), kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        normal = b.op("BatchNormalization", mixed, *(b.weight(16) for _ in range(4)))
        h = b.op("Add", b.op("Sigmoid", b.op("Relu", normal)), h)
    rename_output(b, h, "y")
    return save(b.model([tensor("x", [1, 16, 32, 32])], [tensor("y", None)]), path)


if __name__ == "__main__":
    bench_layout()
    bench_pages()
    with tempfile.TemporaryDirectory() as models:
        made = [chain_model(Path(models) / f"{5 * blocks}.onnx", blocks) for blocks in (200, 1_000)]
        bench_models([*made, *map(Path, sys.argv[1:])])
