"""Normalizations that overflow fp16."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from ndld_flow.graph.lint.check import Check, Subject
from ndld_flow.models.element_types import infer_types, tensor_of
from ndld_flow.models.op_signatures import is_op
from ndld_flow.models.type_groups import constant_tensor
from ndld_flow.records.inspection import Finding

_HALF = tensor_of(ir.DataType.FLOAT16)


class Fp16Squares(Check):
    """Means of squares in fp16, as in LayerNormalization: values from 256 on overflow."""

    order = 150
    needs_model = True

    def find(self, subject: Subject) -> Iterator[Finding]:
        assert subject.model is not None
        types = infer_types(subject.model)
        for node in subject.model.graph.all_nodes():
            source = node.inputs[0] if node.inputs else None
            if source is None or types.get(source) != _HALF:
                continue
            square = source.producer()
            if is_op(node, "ReduceMean", "ReduceSum") and square is not None and _is_square(square):
                message = "it averages squares in fp16, which overflow from values of 256 on"
                yield self.finding_at(f"{message}; keep them in fp32", square.name or "", square.op_type)
            stash = node.attributes.get("stash_type")
            if is_op(node, "LayerNormalization") and stash is not None and stash.value == ir.DataType.FLOAT16:
                message = "it computes the variance in fp16 (`stash_type`), which overflows from values of 256 on"
                yield self.finding_at(message, node.name or "", node.op_type)


def _is_square(node: ir.Node) -> bool:
    if is_op(node, "Mul"):
        return node.inputs[0] is node.inputs[1]
    exponent = constant_tensor(node.inputs[1]) if is_op(node, "Pow") else None
    return exponent is not None and exponent.size == 1 and float(exponent.numpy().reshape(-1)[0]) == 2
