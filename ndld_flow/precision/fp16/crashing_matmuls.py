"""MatMuls that ONNX Runtime cannot optimize in fp16."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from ndld_flow.models.op_signatures import is_op
from ndld_flow.models.type_groups import is_constant

_PASSED = ("Cast", "Concat", "Div", "Dropout", "Identity", "Mul")
"""Operators past which ONNX Runtime moves a Transpose before it fuses it with a MatMul."""
_FARTHEST = 16


def crashing_matmuls(model: ir.Model) -> dict[ir.Node, str]:
    """Return the nodes that must stay in fp32 so that ONNX Runtime loads the model -> why.

    Releases 1.27 to 1.32 end with a segmentation fault where the first axis is moved behind the other batch axes
    before a MatMul by a weight. The MatMul alone in fp32 is not enough: the fusion also looks through Casts.
    """
    return {
        node: "ONNX Runtime crashes when it fuses this Transpose and MatMul in fp16"
        for matmul in model.graph.all_nodes()
        if is_op(matmul, "MatMul") and _by_weight(matmul)
        for chain in _chains(matmul.inputs[0], None, (matmul,))
        for node in chain
    }


def _by_weight(matmul: ir.Node) -> bool:
    weight = matmul.inputs[1]
    return weight is not None and is_constant(weight) and (weight.shape is None or len(weight.shape) == 2)


def _chains(
    value: ir.Value | None, perm: tuple[int, ...] | None, behind: tuple[ir.Node, ...]
) -> Iterator[tuple[ir.Node, ...]]:
    """Yield the nodes from each such Transpose to a reader; `perm` is that of the Transposes between them."""
    node = None if value is None else value.producer()
    if node is None or len(behind) > _FARTHEST:
        return
    chain = (*behind, node)
    if is_op(node, "Transpose") and "perm" in node.attributes:
        own = tuple(node.attributes["perm"].as_ints())
        if perm is not None and len(perm) != len(own):
            return
        perm = own if perm is None else tuple(own[axis] for axis in perm)
        # The first axis moves behind the other batch axes, or behind all.
        rank = len(perm)
        if rank > 2 and tuple(perm) in ((*range(1, rank - 1), 0, rank - 1), (*range(1, rank), 0)):
            yield chain
    elif not is_op(node, *_PASSED):
        return
    for source in node.inputs:
        yield from _chains(source, perm, chain)
