"""Assign nodes to layers so that every edge points to a later layer and edges are short."""

from __future__ import annotations

from collections.abc import Sequence

Edge = tuple[int, int]
_ROUNDS = 12
"""Maximum rounds of moving whole blocks; real models converge after three or four."""


def topological_order(count: int, edges: Sequence[Edge]) -> tuple[list[int], set[int]]:
    """Return the nodes in topological order, and the positions of edges that close a cycle.

    The search is depth-first without recursion and visits nodes in the given order. A self-loop closes a cycle.
    """
    leaving: list[list[int]] = [[] for _ in range(count)]
    for place, (source, _) in enumerate(edges):
        leaving[source].append(place)
    finished: list[int] = []
    back: set[int] = set()
    state = bytearray(count)  # 0 not seen, 1 on the path, 2 finished
    # Later nodes first: nodes that finish first come last, so the order stays close to the given one.
    for start in reversed(range(count)):
        if state[start]:
            continue
        state[start] = 1
        path = [(start, iter(leaving[start]))]
        while path:
            node, rest = path[-1]
            for place in rest:
                target = edges[place][1]
                if state[target] == 1:
                    back.add(place)
                elif not state[target]:
                    state[target] = 1
                    path.append((target, iter(leaving[target])))
                    break
            else:
                state[node] = 2
                finished.append(node)
                path.pop()
    return finished[::-1], back


def assign_layers(order: Sequence[int], edges: Sequence[Edge]) -> list[int]:
    """Return the layer of each node, 0 first. `edges` must point onward in `order`."""
    before: list[list[int]] = [[] for _ in order]
    after: list[list[int]] = [[] for _ in order]
    for source, target in edges:
        before[target].append(source)
        after[source].append(target)
    layer = [0] * len(order)
    for node in order:
        if before[node]:
            layer[node] = 1 + max(layer[one] for one in before[node])
    for node in reversed(order):
        if len(after[node]) > len(before[node]):  # moving it to a later layer shortens more edges than it lengthens
            layer[node] = min(layer[one] for one in after[node]) - 1
    for _ in range(_ROUNDS):
        if not _move_blocks(layer, edges):
            break
    return layer


def _move_blocks(layer: list[int], edges: Sequence[Edge]) -> bool:
    """Move blocks towards their readers if that shortens edges; return False when nothing moved.

    A block is a set of nodes joined by the shortest edges. A constant and the nodes computed from it end up above their
    reader.
    """
    block = _blocks(layer, edges)
    pull = [0] * len(layer)
    room: dict[int, int] = {}
    for source, target in edges:
        mine, other = block[source], block[target]
        if mine != other:
            pull[mine] += 1
            pull[other] -= 1
            slack = layer[target] - layer[source] - 1
            room[mine] = min(room.get(mine, slack), slack)
    # Blocks that move at the same time could collide: only blocks whose readers stay are moved.
    moved = {one: by for one, by in room.items() if pull[one] > 0 and by > 0}
    for source, target in edges:
        if block[source] != block[target] and block[target] in moved:
            moved.pop(block[source], None)
    for node, one in enumerate(block):
        layer[node] += moved.get(one, 0)
    return bool(moved)


def _blocks(layer: Sequence[int], edges: Sequence[Edge]) -> list[int]:
    """Return the block of each node; nodes joined by edges to the next layer share one."""
    parent = list(range(len(layer)))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for source, target in edges:
        if layer[target] - layer[source] == 1:
            parent[root(source)] = root(target)
    return [root(node) for node in range(len(layer))]
