"""The leaves of tree ensembles that samples reach.

A copy of each ensemble has one output for each tree, whose value is the number of a leaf: the runtime walks the trees.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from ndld_flow.accuracy.power.classic_faults import DOMAIN, values_of
from ndld_flow.models.nodes import UniqueNames

_MOST_LEAVES = 2**24
"""Float32 counts so far."""


@dataclass
class Forest:
    """An ensemble of trees."""

    node: str
    found: str
    """The tensor that holds the numbers of the leaves."""
    leaves: int
    reached: set[float] = field(default_factory=set)


def find_leaves(model: ir.Model, names: UniqueNames) -> tuple[Forest, ...]:
    """Add copies of the ensembles of the main graph that compute the leaves which they reach."""
    return tuple(forest for node in list(model.graph) for forest in _forest(node, names))


def _forest(node: ir.Node, names: UniqueNames) -> Iterator[Forest]:
    if node.domain != DOMAIN or node.inputs[0] is None or node.inputs[0].dtype != ir.DataType.FLOAT:
        return
    if node.op_type == "TreeEnsemble":
        op_type, leaves, numbered = node.op_type, *_numbered_leaves(node)
    elif node.op_type in ("TreeEnsembleClassifier", "TreeEnsembleRegressor"):
        op_type, leaves, numbered = "TreeEnsembleRegressor", *_numbered_ends(node)
    else:
        return
    if 0 < leaves < _MOST_LEAVES:
        kept = [attribute for name, attribute in node.attributes.items() if name not in numbered and _is_of_nodes(name)]
        added = [ir.convenience.convert_attribute(name, value) for name, value in numbered.items()]
        name = names.node(f"{node.name}_leaves")
        copied = ir.Node(DOMAIN, op_type, [node.inputs[0]], [*kept, *added], num_outputs=1, name=name)
        copied.outputs[0].name, copied.outputs[0].type = names.value(name), ir.TensorType(ir.DataType.FLOAT)
        node.append(copied)
        yield Forest(str(node.name or node.outputs[0].name), copied.outputs[0].name, leaves)


def _is_of_nodes(name: str) -> bool:
    return name.startswith(("nodes_", "tree_roots", "membership_values"))


def _numbered_ends(node: ir.Node) -> tuple[int, dict[str, Any]]:
    """Return the number of leaves of an ensemble of nodes, and attributes that make each a target of its tree."""
    places = zip(
        node.attributes.get_ints("nodes_treeids", ()),
        node.attributes.get_ints("nodes_nodeids", ()),
        node.attributes.get_strings("nodes_modes", ()),
        strict=True,
    )
    ends = [(tree, place) for tree, place, mode in places if mode == "LEAF"]
    trees = {tree: number for number, tree in enumerate(dict.fromkeys(tree for tree, _ in ends))}
    return len(ends), {
        "n_targets": len(trees),
        "target_treeids": [tree for tree, _ in ends],
        "target_nodeids": [place for _, place in ends],
        "target_ids": [trees[tree] for tree, _ in ends],
        "target_weights": [float(number) for number in range(len(ends))],
    }


def _numbered_leaves(node: ir.Node) -> tuple[int, dict[str, Any]]:
    """Return the number of leaves of a `TreeEnsemble`, and attributes that make each a target of its tree."""
    ints = node.attributes.get_ints
    ways = [(ints(f"nodes_{way}nodeids", ()), ints(f"nodes_{way}leafs", ())) for way in ("true", "false")]
    leaves, roots = len(values_of(node.attributes["leaf_weights"])), ints("tree_roots", ())
    trees = [0] * leaves
    for tree, root in enumerate(roots):
        waiting, known = [root], set[int]()
        while waiting:
            place = waiting.pop()
            known.add(place)
            for targets, are_leaves in ways:
                if are_leaves[place]:
                    trees[targets[place]] = tree
                elif targets[place] not in known:
                    waiting.append(targets[place])
    numbers = ir.tensor(np.arange(leaves, dtype=np.float32))
    return leaves, {"n_targets": len(roots), "leaf_targetids": trees, "leaf_weights": numbers}
