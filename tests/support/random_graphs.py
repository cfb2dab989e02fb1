"""Random graphs grown from Hypothesis's choices."""

from __future__ import annotations

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tests.support.models import GraphBuilder, rename_output, tensor

UNARY = ("Relu", "Tanh", "Sigmoid", "Neg", "Identity", "Abs", "Softmax", "LayerNormalization")
OTHER = ("Add", "Mul", "Max", "Concat", "Greater", "Cast", "CastInt", "Split", "If", "MatMul", "Where", "CumSum")


class RandomGraph:
    """A graph of [2, 4] floats grown from Hypothesis's choices."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.builder = GraphBuilder(0)
        self.floats = ["x"]

    def pick(self) -> str:
        return self.data.draw(st.sampled_from(self.floats))

    def grow(self, op_type: str) -> None:
        b, h = self.builder, self.pick()
        self.floats.append(getattr(self, f"_{op_type.lower()}", self._plain)(b, op_type, h))

    def _plain(self, b: GraphBuilder, op_type: str, h: str) -> str:
        if op_type in UNARY:
            return b.op(op_type, h)
        other = self.pick() if self.data.draw(st.booleans()) else b.weight(2, 4, scale=1.0)
        return b.op(op_type, h, other)

    def _layernormalization(self, b: GraphBuilder, op_type: str, h: str) -> str:
        return b.op(op_type, h, b.weight(4, scale=1.0), b.weight(4))

    def _concat(self, b: GraphBuilder, op_type: str, h: str) -> str:
        return b.op("Slice", b.op("Concat", h, self.pick(), axis=0), b.ints(1), b.ints(3), b.ints(0))

    def _greater(self, b: GraphBuilder, op_type: str, h: str) -> str:
        # Compared with what no value comes near, so that rounding cannot turn the answer.
        return b.op("Cast", b.op("Greater", h, b.floats(1e4)), to=TensorProto.FLOAT)

    def _cast(self, b: GraphBuilder, op_type: str, h: str) -> str:
        return b.op("Cast", h, to=TensorProto.FLOAT)

    def _castint(self, b: GraphBuilder, op_type: str, h: str) -> str:
        return b.op("Cast", b.op("Shape", h), to=TensorProto.FLOAT) and b.op(
            "Add", h, b.op("ReduceSum", b.op("Cast", b.op("Shape", h), to=TensorProto.FLOAT), keepdims=0)
        )

    def _split(self, b: GraphBuilder, op_type: str, h: str) -> str:
        first = b.op("Split", h, b.ints(1, 3), outputs=2, axis=1)
        return b.op("Concat", f"{first}1", first, axis=1)

    def _matmul(self, b: GraphBuilder, op_type: str, h: str) -> str:
        return b.op("MatMul", h, b.weight(4, 4, scale=0.5))

    def _where(self, b: GraphBuilder, op_type: str, h: str) -> str:
        return b.op("Where", b.const([True, False, True, False]), h, self.pick())

    def _cumsum(self, b: GraphBuilder, op_type: str, h: str) -> str:
        return b.op("CumSum", h, b.const(0, np.int64))

    def _if(self, b: GraphBuilder, op_type: str, h: str) -> str:
        number = len(b.nodes)
        branches = {}
        for name, inner in (("then_branch", "Tanh"), ("else_branch", "Neg")):
            body = GraphBuilder(prefix=f"{name}_{number}_")
            out = body.op("Add", body.op(inner, h), self.pick())
            branches[name] = helper.make_graph(body.nodes, name, [], [tensor(out, None)])
        return b.op("If", b.const(self.data.draw(st.booleans())), **branches)

    def model(self) -> onnx.ModelProto:
        rename_output(self.builder, self.builder.op("Tanh", self.floats[-1]), "y")
        outputs = [tensor("y", [2, 4])]
        return self.builder.model([tensor("x", [2, 4])], outputs)
