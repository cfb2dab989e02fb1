"""Tensors of double precision."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from ndld_flow.graph.lint.check import Check, Subject
from ndld_flow.records.inspection import Finding

_DOUBLE = onnx.TensorProto.DOUBLE


class Float64(Check):
    """float64 in inputs, outputs, initializers and Casts: slow everywhere, unsupported by TensorRT."""

    order = 120

    def find(self, subject: Subject) -> Iterator[Finding]:
        graph = subject.proto.graph
        for value in (*graph.input, *graph.output):
            if value.type.tensor_type.elem_type == _DOUBLE:
                yield self.finding(f"{value.name!r} is float64, which TensorRT does not support")
        for body in subject.graphs():
            for tensor in body.initializer:
                if tensor.data_type == _DOUBLE:
                    yield self.finding(f"initializer {tensor.name!r} is float64")
            for node in body.node:
                if node.op_type == "Cast" and any(a.name == "to" and a.i == _DOUBLE for a in node.attribute):
                    yield self.finding("casts to float64", node)
