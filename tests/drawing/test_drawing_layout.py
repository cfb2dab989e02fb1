"""Layout of graphs: properties that hold for every graph, and the expected drawing of known graphs."""

from __future__ import annotations

import gc
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ndld_flow.drawing.graph import Box, Layout, Point, Route
from ndld_flow.drawing.layered import (
    Layered,
    assign_layers,
    build_layers,
    count_crossings,
    reduce_crossings,
    topological_order,
)
from ndld_flow.drawing.layout import Extent, lay_out

Edges = list[tuple[int, int]]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Extent], Edges, list[int]]:
    """Any graph: circles, self-loops, repeated edges, separate parts."""
    count = draw(st.integers(1, 24))
    node = st.integers(0, count - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=48))
    size = st.integers(4, 200)
    extents = [
        Extent(draw(size), draw(size), draw(st.sampled_from([0, 14])), draw(st.sampled_from([0, 120])))
        for _ in range(count)
    ]
    return extents, edges, [draw(st.integers(0, 2)) for _ in edges]


def overlap(box: Box, other: Box) -> bool:
    apart = (
        box.x + box.width <= other.x
        or other.x + other.width <= box.x
        or box.y + box.height <= other.y
        or other.y + other.height <= box.y
    )
    return not apart


def goes_down(points: tuple[Point, ...]) -> bool:
    return all(y0 <= y1 for (_, y0), (_, y1) in pairwise(points))


@settings(max_examples=20, deadline=None)
@given(graphs(), st.sampled_from(["down", "right"]), st.sampled_from([None, 1.6]))
def test_every_layout_is_valid(
    graph: tuple[list[Extent], Edges, list[int]], direction: str, aspect: float | None
) -> None:
    extents, edges, tensors = graph
    layout = lay_out(extents, edges, tensors, direction, aspect)  # type: ignore[arg-type]
    assert len(layout.boxes) == len(extents)
    assert len(layout.routes) == len(edges)
    for box, extent in zip(layout.boxes, extents, strict=True):
        assert (box.width, box.height) == (extent.width, extent.height)
        assert box.x >= -60 and box.x + box.width <= layout.width + 60
        assert box.y >= 0 and box.y + box.height <= layout.height
    assert not any(overlap(combination, other) for combination, other in combinations(layout.boxes, 2))
    assert lay_out(extents, edges, tensors, direction, aspect) == layout  # type: ignore[arg-type]


@settings(max_examples=20, deadline=None)
@given(graphs())
def test_edges_go_down_except_those_that_close_a_cycle(graph: tuple[list[Extent], Edges, list[int]]) -> None:
    extents, edges, tensors = graph
    layout = lay_out(extents, edges, tensors)
    for (source, target), route in zip(edges, layout.routes, strict=True):
        start, end = layout.boxes[source], layout.boxes[target]
        if source == target:
            assert route.back
        elif route.back:
            assert start.y > end.y and goes_down(route.points[::-1])
        else:
            assert start.y + start.height <= end.y and goes_down(route.points)


@settings(max_examples=20, deadline=None)
@given(graphs())
def test_edges_touch_their_nodes_and_pass_through_no_other(graph: tuple[list[Extent], Edges, list[int]]) -> None:
    extents, edges, tensors = graph
    layout = lay_out(extents, edges, tensors)
    for (source, target), route in zip(edges, layout.routes, strict=True):
        if source == target:
            continue
        upper, lower = (target, source) if route.back else (source, target)
        points = route.points[::-1] if route.back else route.points
        top, bottom = layout.boxes[upper], layout.boxes[lower]
        assert points[0] == (top.x + top.width / 2, top.y + top.height + extents[upper].tail)
        assert bottom.x <= points[-1][0] <= bottom.x + bottom.width and points[-1][1] == bottom.y
        others = [box for node, box in enumerate(layout.boxes) if node not in (source, target)]
        # A curve stays within the corners of its ends, and these lie between two layers.
        for (x0, y0), (x1, y1) in pairwise(points):
            piece = Box(min(x0, x1), min(y0, y1), abs(x1 - x0), abs(y1 - y0))
            assert not any(strictly_crossed(piece, box) for box in others)


def strictly_crossed(piece: Box, box: Box) -> bool:
    return (
        piece.x < box.x + box.width
        and piece.x + piece.width > box.x
        and piece.y < box.y + box.height
        and piece.y + piece.height > box.y
    )


@settings(max_examples=20, deadline=None)
@given(graphs())
def test_only_cycles_are_broken_and_layers_increase(graph: tuple[list[Extent], Edges, list[int]]) -> None:
    extents, edges, _ = graph
    order, back = topological_order(len(extents), edges)
    place = {node: number for number, node in enumerate(order)}
    assert sorted(order) == list(range(len(extents)))
    assert all((place[source] < place[target]) != (number in back) for number, (source, target) in enumerate(edges))
    onward = [edge for number, edge in enumerate(edges) if number not in back]
    for number in back:  # taking it back would close a circle with the edges that are kept
        source, target = edges[number]
        assert source == target or reaches(onward, target, source)
    layers = assign_layers(order, onward)
    assert all(layers[source] < layers[target] for source, target in onward)


def reaches(edges: Edges, start: int, end: int) -> bool:
    result, waiting = {start}, [start]
    while waiting:
        node = waiting.pop()
        for source, target in edges:
            if source == node and target not in result:
                result.add(target)
                waiting.append(target)
    return end in result


@settings(max_examples=20, deadline=None)
@given(graphs())
def test_crossings_are_counted_and_no_vertex_is_lost(graph: tuple[list[Extent], Edges, list[int]]) -> None:
    extents, edges, tensors = graph
    layered = build_layers(len(extents), edges, tensors)
    assert count_crossings(layered) == crossings_one_by_one(layered)
    vertices = [sorted(layer) for layer in layered.layers]
    reduce_crossings(layered)
    assert [sorted(layer) for layer in layered.layers] == vertices


def crossings_one_by_one(layered: Layered) -> int:
    result = 0
    for upper, lower in pairwise(layered.layers):
        lines = [(start, lower.index(end)) for start, item in enumerate(upper) for end in layered.below[item]]
        result += sum(
            (combination[0] - other[0]) * (combination[1] - other[1]) < 0
            for combination, other in combinations(lines, 2)
        )
    return result


def test_avoidable_crossings_are_avoided() -> None:
    # Two ladders, their rungs numbered so that the first order is the worst one.
    edges = [(index, 19 - index) for index in range(10)] + [(19 - index, 20 + (index * 7) % 10) for index in range(10)]
    layered = build_layers(30, edges, [0] * len(edges))
    reduce_crossings(layered)
    assert count_crossings(layered) == 0


@pytest.mark.parametrize(
    ("edges", "needs"),
    [
        ([(0, 2), (0, 5), (1, 3), (4, 5)], "the walk that gives the first order"),
        ([(0, 4), (0, 6), (2, 4), (2, 5)], "a sweep down"),
        ([(0, 5), (1, 3), (2, 5)], "a sweep up"),
    ],
)
def test_planar_small_graphs_are_drawn_without_crossings(edges: Edges, needs: str) -> None:
    layered = build_layers(9, edges, list(range(len(edges))))
    reduce_crossings(layered)
    assert count_crossings(layered) == 0, needs


def laid(edges: Edges, count: int | None = None, aspect: float | None = None) -> Layout:
    nodes = count or 1 + max(max(edge) for edge in edges)
    return lay_out([Extent(60, 20)] * nodes, edges, aspect=aspect)


def middle(box: Box) -> float:
    return box.x + box.width / 2


def test_a_residual_chain_is_one_straight_line() -> None:
    chain = [(index, index + 1) for index in range(12)]
    layout = laid([*chain, (1, 4), (4, 8), (8, 12)])
    assert len({middle(box) for box in layout.boxes}) == 1
    for (x0, _), (x1, _) in pairwise(layout.routes[0].points):
        assert x0 == x1


def test_a_constant_and_what_is_computed_from_it_are_next_to_their_reader() -> None:
    # 0..9 a chain; 10 -> 11 -> 9 could start in the first layer.
    layout = laid([*((index, index + 1) for index in range(9)), (10, 11), (11, 9)])
    assert layout.boxes[11].y == layout.boxes[8].y
    assert layout.boxes[10].y == layout.boxes[7].y


def test_readers_of_one_tensor_share_a_trunk() -> None:
    chain = [(index, index + 1) for index in range(9)]
    layout = lay_out([Extent(60, 20)] * 10, [*chain, (0, 4), (0, 6), (0, 9)], ["t"] * 12)
    first, second, third = (route.points for route in layout.routes[-3:])
    trunk = {x for x, _ in third[1:-2]}
    assert len({x for x, _ in second[1:-2]} | trunk | {x for x, _ in first[2:-2]}) == 1


def test_a_long_chain_is_split_into_columns() -> None:
    chain = [(index, index + 1) for index in range(399)]
    strip, columns = laid(chain), laid(chain, aspect=1.6)
    assert strip.height > 50 * strip.width
    assert 1.0 < columns.width / columns.height < 2.5
    xs = [box.x for box in columns.boxes]
    assert xs == sorted(xs)  # columns follow each other to the right
    carried = [route for route in columns.routes if len(route.points) > 3]
    assert len(carried) == len(set(xs)) - 1
    for route in carried:
        assert all(x0 == x1 or y0 == y1 for (x0, y0), (x1, y1) in pairwise(route.points))


def test_lines_between_columns_cross_no_node() -> None:
    chain = [(index, index + 1) for index in range(299)]
    skips = [(index, index + 3 + index % 29) for index in range(0, 260, 5)]
    sides = [(index, 300 + index // 10) for index in range(0, 290, 10)]
    edges = [*chain, *skips, *sides]
    layout = laid(edges, aspect=1.6)
    assert 0.8 < layout.width / layout.height < 3.2
    for edge, route in zip(edges, layout.routes, strict=True):
        others = [box for node, box in enumerate(layout.boxes) if node not in edge]
        for (x0, y0), (x1, y1) in pairwise(route.points):
            piece = Box(min(x0, x1), min(y0, y1), abs(x1 - x0), abs(y1 - y0))
            assert not any(strictly_crossed(piece, box) for box in others)
            assert piece.x >= 0 and piece.x + piece.width <= layout.width
            assert piece.y >= 0 and piece.y + piece.height <= layout.height
    assert not any(overlap(combination, other) for combination, other in combinations(layout.boxes, 2))


def test_a_short_graph_is_not_split() -> None:
    chain = [(index, index + 1) for index in range(12)]
    assert laid(chain, aspect=1.6) == laid(chain)


def test_a_chain_of_ten_thousand_needs_no_recursion() -> None:
    layout = laid([(index, index + 1) for index in range(9_999)])
    assert len({box.y for box in layout.boxes}) == 10_000


def test_many_separate_nodes_fill_a_rectangle() -> None:
    layout = laid([], count=900)
    assert 0.8 < layout.width / layout.height < 4


def test_a_source_with_thousands_of_readers_is_drawn() -> None:
    layout = laid([(0, index) for index in range(1, 3000)])
    assert len({box.y for box in layout.boxes}) == 2


def test_too_many_long_edges_are_drawn_without_routing_and_reported() -> None:
    # n sources at the top, each read n layers later: n * n places would be needed.
    n = 700
    chain = [(index, index + 1) for index in range(n - 1)]
    fans = [(index, n + index) for index in range(n)]
    crossed = [(index, n - 1) for index in range(n - 2)]
    layout = laid([*chain, *fans, *crossed])
    assert any(route.far for route in layout.routes)
    assert not all(route.far for route in layout.routes)
    assert all(len(route.points) == 2 for route in layout.routes if route.far)


def test_a_tensor_with_thousands_of_distant_readers_is_drawn() -> None:
    """One trunk is short, but the ways along it would be millions of points."""
    count = 3000
    chain = [(index, index + 1) for index in range(count - 1)]
    layout = laid([*chain, *((0, index) for index in range(2, count))])
    assert sum(len(route.points) for route in layout.routes) < 10 * count
    assert any(route.far for route in layout.routes)
    assert not any(route.far for route in layout.routes[: count - 1])


def test_an_empty_graph_is_drawn() -> None:
    assert lay_out([], []) == Layout(0.0, 0.0, (), ())


def test_a_self_loop_is_next_to_its_node() -> None:
    layout = laid([(0, 0)])
    (route,) = layout.routes
    assert route == Route(route.points, back=True)
    assert min(x for x, _ in route.points) == layout.boxes[0].x + layout.boxes[0].width


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_setting_is_restored(enabled: bool) -> None:
    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        laid([(0, 1)])
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was else gc.disable)()
