"""Graphs of hundreds of nodes folded into blocks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ndld_flow.drawing.engine_graph import FEWEST, block_titles, find_blocks, find_inner_blocks
from ndld_flow.drawing.graph import Family

CHAIN: tuple[Family, ...] = ("convolution", "normalization", "activation", "elementwise")


def line(count: int) -> list[tuple[int, int]]:
    return [(node, node + 1) for node in range(count - 1)]


def is_acyclic(blocks: Sequence[int], edges: Sequence[tuple[int, int]]) -> bool:
    """Remove blocks that read no other, until none is left or each of them reads one."""
    left = set(blocks)
    pairs = {(blocks[a], blocks[b]) for a, b in edges if blocks[a] != blocks[b]}
    while free := left - {b for a, b in pairs if a in left and b in left}:
        left -= free
    return not left


def test_small_operators_join_the_convolution_that_they_follow() -> None:
    blocks = find_blocks([""] * 80, CHAIN * 20, line(80))
    assert blocks == tuple(node // 4 for node in range(80))


def test_a_node_that_reads_two_blocks_starts_one() -> None:
    families = [*CHAIN * 20, *(("elementwise", "activation") * 10)]
    edges = [*line(80), *((80 + 2 * k, 81 + 2 * k) for k in range(10)), *((8 * k + 3, 80 + 2 * k) for k in range(10))]
    edges += [(8 * k + 7, 80 + 2 * k) for k in range(10)]
    blocks = find_blocks([""] * 100, families, edges)
    assert blocks is not None
    assert blocks[80] not in blocks[:80] and blocks[81] == blocks[80]


def test_modules_in_names_are_blocks() -> None:
    names = [f"/encoder/layer.{node // 8}/attention/MatMul_{node}" for node in range(96)]
    blocks = find_blocks(names, ["matmul"] * 96, line(96))
    assert blocks == tuple(node // 8 for node in range(96))
    assert block_titles([names[:8], ["/a/x"]]) == ["attention", "a"]
    assert block_titles([["/a/b/x", "/a/c/y"], ["x", "/a/c/y"]]) == ["a", ""]
    assert block_titles([["p2o.Conv.0"], ["p2o.Conv.1", "p2o.Relu.1"], ["/a/c/y"]]) == ["", "", "c"]
    assert block_titles([["/a/mlp/x"], ["/b/mlp/x"]]) == ["mlp", "mlp"]


def test_modules_on_a_cycle_are_no_blocks() -> None:
    """A module that is called twice, with another between, would read what it writes."""
    names = [f"/{'ab'[node // 24 % 2]}/Relu_{node}" for node in range(96)]
    blocks = find_blocks(names, CHAIN * 24, line(96))
    assert blocks == tuple(node // 4 for node in range(96)), "their operators are folded instead"


def test_small_graphs_and_those_that_cannot_be_folded_have_no_blocks() -> None:
    assert find_blocks([""] * (FEWEST - 1), ["convolution"] * (FEWEST - 1), []) is None
    assert find_blocks([""] * 80, ["convolution"] * 80, line(80)) is None
    assert find_blocks([""] * 80, ["elementwise"] * 80, line(80)) is None, "one block says nothing"
    assert find_blocks([""] * 4000, CHAIN * 1000, line(4000)) is None


def test_a_graph_with_cycles_is_not_folded_wrongly() -> None:
    edges = [*line(80), (79, 0), (5, 5)]
    blocks = find_blocks([""] * 80, CHAIN * 20, edges)
    assert blocks is None or is_acyclic(blocks, edges)


@given(st.data())
def test_blocks_of_any_graph_are_acyclic(data: st.DataObject) -> None:
    count = data.draw(st.integers(FEWEST, 90))
    sources = data.draw(st.lists(st.integers(0, count - 2), max_size=150))
    edges = [(source, data.draw(st.integers(source + 1, min(source + 6, count - 1)))) for source in sources]
    families = data.draw(st.lists(st.sampled_from(CHAIN), min_size=count, max_size=count))
    blocks = find_blocks([""] * count, families, edges)
    if blocks is not None:
        assert is_acyclic(blocks, edges)
        assert [blocks.index(number) for number in range(max(blocks) + 1)] == sorted(
            blocks.index(number) for number in range(max(blocks) + 1)
        )


def decoder(layers: int, joint: str = "/") -> list[str]:
    """Return the names of the nodes of a decoder, seven modules of seven nodes in each layer."""
    parts = [f"part{part}{joint}op{index}" for part in range(7) for index in range(7)]
    return [
        f"{joint if joint == '/' else ''}model{joint}layers.{layer}{joint}{part}"
        for layer in range(layers)
        for part in parts
    ]


@pytest.mark.parametrize("joint", ["/", "."])
def test_thousands_of_named_nodes_have_blocks_in_blocks(joint: str) -> None:
    names = decoder(160, joint)
    edges = line(len(names))
    outer = find_blocks(names, ["matmul"] * len(names), edges)
    assert outer == tuple(node // 49 for node in range(len(names)))
    assert block_titles([names[49:98]]) == ["layers.1"]
    assert find_inner_blocks(names, edges, outer) == tuple(node // 7 for node in range(len(names)))


def test_small_blocks_have_none_inside() -> None:
    names = [f"/layers.{node // 20}/part{node // 5 % 4}/op{node}" for node in range(2000)]
    outer = find_blocks(names, ["matmul"] * 2000, line(2000))
    assert outer is not None
    assert find_inner_blocks(names, line(2000), outer) is None
