"""Fold a graph of hundreds of nodes into blocks that can be read at first sight.

Blocks are the modules of the exporting framework or, where names do not show these, each convolution or matrix product
with the small operators around it.

A block is never on a cycle of blocks, so that the folded graph has the direction of the whole one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter

from ndld_flow.drawing.graph import Family

FEWEST = 60
"""A graph of fewer nodes is readable without blocks."""
_MOST_IN_CHAINS = 3000
"""A graph of more nodes has too many blocks to be read if names do not show its modules."""
_MOST_BLOCKS = 200
"""Blocks of modules: the deepest level of names with at most this many."""
_LARGE = 24
"""Blocks of more nodes than this have blocks themselves."""
_LEAST_GAIN = 0.6
"""Blocks are worth it if there are at most this many for each node."""
_NAMED = 0.8
"""Part of the nodes whose names must show their module."""
HEADS: frozenset[Family] = frozenset({"convolution", "matmul", "control"})
"""Families that start a block; other nodes join the block that they read."""

Edge = tuple[int, int]


def find_blocks(names: Sequence[str], families: Sequence[Family], edges: Sequence[Edge]) -> tuple[int, ...] | None:
    """Return the number of the block of each node, in the order of their first nodes; None if blocks would not help.

    `edges` are (source, target) positions among the nodes.
    """
    count = len(names)
    if count < FEWEST:
        return None
    candidates: list[Sequence[Hashable]] = [level for level in _modules(names) if len(set(level)) <= _MOST_BLOCKS]
    if count <= _MOST_IN_CHAINS:
        candidates.append(_chains(families, edges))
    for numbered in map(_numbered, candidates):
        if 1 < max(numbered) + 1 <= _LEAST_GAIN * count and _is_acyclic(numbered, edges):
            return numbered
    return None


def find_inner_blocks(names: Sequence[str], edges: Sequence[Edge], outer: Sequence[int]) -> tuple[int, ...] | None:
    """Return the blocks inside large blocks: modules of a deeper level. None if names show no such level."""
    blocks = max(outer) + 1
    if len(names) < _LARGE * blocks:
        return None
    for numbered in map(_numbered, _modules(names)):
        if 1.5 * blocks < max(numbered) + 1 <= _LEAST_GAIN * len(names) and _is_acyclic(numbered, edges):
            return numbered
    return None


def block_titles(blocks: Sequence[Sequence[str]]) -> list[str]:
    """Return the module of each block's nodes, without the modules around it; empty if it is that of several blocks."""
    modules = [tuple(_shared(names)) for names in blocks]
    times = Counter(modules)
    return [module[-1] if module and times[module] == 1 else "" for module in modules]


def _shared(names: Sequence[str]) -> list[str]:
    """Return the modules that all these nodes belong to, the outermost first."""
    paths = [_path(name) for name in names]
    shared = 0
    while all(len(path) > shared and path[shared] == paths[0][shared] for path in paths):
        shared += 1
    return paths[0][:shared]


def _modules(names: Sequence[str]) -> Iterator[list[str]]:
    """Yield the modules of all nodes by their names, deepest level first."""
    paths = [_path(name) for name in names]
    if sum(map(bool, paths)) < _NAMED * len(paths):
        return
    for depth in range(min(max(map(len, paths)), 12), 0, -1):
        yield ["/".join(path[:depth]) for path in paths]


def _path(name: str) -> list[str]:
    """Return the modules in a node's name: `/encoder/layer.0/MatMul` and `encoder.layer.0.MatMul` are in `encoder` and
    `layer.0`."""
    text = name if "/" in name else re.sub(r"\.(?!\d+(\.|$))", "/", name)
    return [part for part in text.split("/") if part][:-1]


def _chains(families: Sequence[Family], edges: Sequence[Edge]) -> list[int]:
    """Return the block of each node: that of all nodes that it reads, or its own.

    A node that reads two blocks starts a block, since with it either would be on a cycle with the other.
    """
    read: list[set[int]] = [set() for _ in families]
    for source, target in edges:
        read[target].add(source)
    blocks = list(range(len(families)))
    for node in _in_order(len(families), read):
        around = {blocks[source] for source in read[node]}
        if len(around) == 1 and families[node] not in HEADS and node not in read[node]:
            blocks[node] = around.pop()
    return blocks


def _in_order(count: int, read: Sequence[set[int]]) -> Sequence[int]:
    """Return the nodes so that each follows what it reads; in the given order where there are cycles."""
    try:
        return list(TopologicalSorter(dict(enumerate(read))).static_order())
    except CycleError:
        return range(count)


def _numbered(blocks: Sequence[Hashable]) -> tuple[int, ...]:
    numbers: dict[Hashable, int] = {}
    return tuple([numbers.setdefault(block, len(numbers)) for block in blocks])


def _is_acyclic(blocks: Sequence[int], edges: Sequence[Edge]) -> bool:
    read: dict[int, set[int]] = {}
    for source, target in edges:
        if blocks[source] != blocks[target]:
            read.setdefault(blocks[target], set()).add(blocks[source])
    try:
        TopologicalSorter(read).prepare()
    except CycleError:
        return False
    return True
