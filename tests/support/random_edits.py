"""Random models with all that a graph may have, and random operations on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from hypothesis import strategies as st
from onnx import TensorProto, helper

from ndld_flow.graph.edit.catalogue import find_operation, operation_names
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.models.files import load_model
from ndld_flow.models.nodes import node_label, values_of
from tests.support.models import GraphBuilder, sparse_model, tensor
from tests.support.random_graphs import RandomGraph

Pick = Callable[[Sequence[Any]], Any]
"""Takes one of several."""
FUNCTION = helper.make_function(
    "my",
    "Leaky",
    ["a"],
    ["b"],
    [
        helper.make_node("LeakyRelu", ["a"], ["inner"], name="leaky"),
        helper.make_node("Neg", ["inner"], ["b"], name="back"),
    ],
    [helper.make_opsetid("", 17)],
    ["slope"],
)
FUNCTION.node[0].attribute.append(
    onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
)
MORE = ("Loop", "Call", "Clip", "Gemm", "Dropout", "Reshape", "Transpose", "Erf", "CallIf")


class RandomModel(RandomGraph):
    """A random graph that may have loops, calls of functions, inputs left out and constants of all forms."""

    def _loop(self, b: GraphBuilder, op_type: str, h: str) -> str:
        body = GraphBuilder(prefix=f"body_{len(b.nodes)}_")
        went = body.op("Add", f"carried_{len(b.nodes)}", self.pick())
        go = body.op("Identity", f"go_{len(b.nodes)}")
        inputs = [
            tensor(f"i_{len(b.nodes)}", [], TensorProto.INT64),
            tensor(f"go_{len(b.nodes)}", [], TensorProto.BOOL),
            tensor(f"carried_{len(b.nodes)}", [2, 4]),
        ]
        outputs = [tensor(go, [], TensorProto.BOOL), tensor(went, [2, 4])]
        graph = helper.make_graph(body.nodes, "body", inputs, outputs, body.initializers)
        return b.op("Loop", b.const(2, np.int64), b.const(True), h, body=graph)

    def _call(self, b: GraphBuilder, op_type: str, h: str) -> str:
        return b.op("Leaky", h, domain="my", slope=0.5)

    def _callif(self, b: GraphBuilder, op_type: str, h: str) -> str:
        bodies = {}
        for name in ("then_branch", "else_branch"):
            body = GraphBuilder(prefix=f"{name}_{len(b.nodes)}_")
            out = body.op("Leaky", body.op("Mul", h, body.weight(4, scale=1.0)), domain="my", slope=0.1)
            bodies[name] = helper.make_graph(body.nodes, name, [], [tensor(out, None)], body.initializers)
        return b.op("If", b.const(self.data.draw(st.booleans())), **bodies)

    def _clip(self, b: GraphBuilder, op_type: str, h: str) -> str:
        return b.op("Clip", h, "", b.floats(0.5))

    def _gemm(self, b: GraphBuilder, op_type: str, h: str) -> str:
        return b.op("Gemm", h, b.weight(4, 4, scale=0.5), b.weight(4))

    def _dropout(self, b: GraphBuilder, op_type: str, h: str) -> str:
        return b.op("Dropout", h)

    def _reshape(self, b: GraphBuilder, op_type: str, h: str) -> str:
        return b.op("Reshape", b.op("Reshape", h, b.ints(-1)), b.ints(2, 4))

    def _transpose(self, b: GraphBuilder, op_type: str, h: str) -> str:
        return b.op("Transpose", b.op("Transpose", h, perm=[1, 0]), perm=[1, 0])

    def _erf(self, b: GraphBuilder, op_type: str, h: str) -> str:
        return b.op("Erf", h)

    def model(self) -> onnx.ModelProto:
        model = super().model()
        if any(node.domain for node in nodes_of(model.graph)):
            model.functions.append(FUNCTION)
            model.opset_import.append(helper.make_opsetid("my", 1))
        return model


def nodes_of(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The graph's nodes, and those of its subgraphs."""
    return [*graph.node, *(node for body in bodies_of(graph) for node in nodes_of(body))]


def bodies_of(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    return [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]


def take_names_away(model: onnx.ModelProto) -> None:
    for node in nodes_of(model.graph):
        node.name = ""


def give_strange_names(model: onnx.ModelProto) -> None:
    """Names that are patterns, templates or text of other kinds."""
    tensors = {name for node in nodes_of(model.graph) for name in node.output} - {"y"}
    strange = {name: f"[{index}] */{{name}}:\u00e9 'q\\" for index, name in enumerate(sorted(tensors))}
    for index, node in enumerate(nodes_of(model.graph)):
        node.name = f"/{{index}}*/ {index}"
        for names in (node.input, node.output):
            names[:] = [strange.get(name, name) for name in names]
    for body in bodies_of(model.graph):
        for value in body.output:
            value.name = strange.get(value.name, value.name)


def make_weights_inputs(model: onnx.ModelProto) -> None:
    """List weights as inputs, as old exporters do."""
    weights = model.graph.initializer
    model.graph.input.extend(tensor(weight.name, list(weight.dims), weight.data_type) for weight in weights)


def make_batch_free(model: onnx.ModelProto) -> None:
    for value in (*model.graph.input[:1], *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"


def leave_alone(model: onnx.ModelProto) -> None:
    """Return the model unchanged."""


FORMS = (leave_alone, take_names_away, give_strange_names, make_weights_inputs, make_batch_free)


def other_models() -> dict[str, onnx.ModelProto]:
    """Models to join with."""
    b = GraphBuilder(7)
    b.op("Add", b.op("Relu", "x"), b.weight(4), outputs=1)
    b.nodes[-1].output[0] = "y"
    small = b.model([tensor("x", [2, 4])], [tensor("y", [2, 4])], opset=18)
    return {"small": small, "sparse": sparse_model()}


@dataclass(frozen=True)
class Choices:
    """Names for an operation: those in the model, and sometimes unknown ones."""

    edited: EditedModel
    pick: Pick

    @classmethod
    def of(cls, path: Path, pick: Pick) -> Choices:
        return cls(EditedModel(load_model(path), path), pick)

    def flag(self) -> bool:
        return bool(self.pick((False, True)))

    def number(self, low: int, high: int) -> int:
        return int(self.pick(range(low, high + 1)))

    def numbers(self) -> list[int]:
        return [self.number(0, 4) for _ in range(self.number(0, 3))]

    def known(self, names: Iterable[str | None]) -> str:
        """One of these; one time of many what is not there."""
        return str(self.pick([*filter(None, names)] * 4 + ["nowhere"]))

    def scope(self) -> str:
        return str(self.pick(["", "", *self.edited.scopes()]))

    def body(self) -> str:
        return self.known(scope for scope in self.edited.scopes() if "/" in scope)

    def value(self, scope: str = "") -> str:
        return self.known(value.name for value in values_of(self.edited.graph(scope)))

    def truth(self) -> str:
        return self.known(value.name for value in values_of(self.edited.model.graph) if value.dtype == ir.DataType.BOOL)

    def any_value(self) -> str:
        return self.value(self.scope())

    def weight(self) -> str:
        return str(self.pick([*self.edited.model.graph.initializers, "*"]))

    def input(self) -> str:
        return self.known(value.name for value in self.edited.model.graph.inputs)

    def output(self) -> str:
        return self.known(value.name for value in self.edited.model.graph.outputs)

    def nodes(self) -> list[ir.Node]:
        return [node for graph in self.edited.graphs() for node in graph]

    def node(self, *op_types: str) -> str:
        return self.known(node_label(node) for node in self.nodes() if not op_types or node.op_type in op_types)

    def function(self) -> str:
        return self.known("::".join(key[:2]) for key in self.edited.model.functions)

    def select(self) -> object:
        kind = self.pick(("name", "names", "op_type", "output", "after", "before", "near", "between", "scope"))
        if kind == "names":
            return [self.node() for _ in range(self.number(1, 4))]
        if kind == "op_type":
            return {"op_type": self.known(sorted({node.op_type for node in self.nodes()}))}
        if kind == "between":
            return {"between": [self.value(), self.value()]}
        choose = {"name": self.node, "output": self.any_value, "scope": self.scope}.get(kind, self.value)
        return {kind: choose()}


def attribute_setting(c: Choices) -> object:
    """Return a numeric attribute of a node, set or unset."""
    numbers = ("axis", "alpha", "beta", "epsilon", "slope", "keepdims", "transB")
    settings = [(node_label(node), name) for node in c.nodes() for name in node.attributes if name in numbers]
    node, name = c.pick(
        [*settings, (c.node("Softmax"), "axis"), (c.node("Gemm"), "alpha"), (c.node(), c.pick(numbers))]
    )
    whole = name in ("axis", "keepdims", "transB")
    return {"select": node, "attributes": {name: c.number(-2, 1) if whole else c.pick((0.5, 1.0))}}


def attribute_deletion(c: Choices) -> object:
    having = [(node_label(node), name) for node in c.nodes() for name in node.attributes]
    node, name = c.pick([*having, ("nowhere", "axis")])
    return {"select": node, "attributes": [name]}


def insertion(c: Choices) -> object:
    new = {"op_type": c.pick(("Relu", "Transpose", "Identity", "Flatten")), "domain": c.pick(("", "ai.onnx"))}
    if c.flag():
        return {**new, "before": c.select(), "input": c.number(0, 2)}
    scope = c.scope()
    return {**new, "after": c.value(scope), "scope": scope} | ({"readers": c.select()} if c.flag() else {})


def addition(c: Choices) -> object:
    scope = c.scope()
    op_type, count = c.pick((("Relu", 1), ("Add", 2), ("Transpose", 1), ("Concat", 3), ("Split", 1), ("Gelu", 1)))
    attributes = {"axis": c.number(-2, 1)} if op_type in ("Concat", "Split") else {}
    inputs = [c.value(scope) for _ in range(count)]
    return {"op_type": op_type, "inputs": inputs, "attributes": attributes, "scope": scope}


def call(c: Choices) -> object:
    scope = c.scope()
    return {"function": c.function(), "inputs": [c.value(scope)], "scope": scope}


def wrapping(c: Choices) -> object:
    otherwise = {c.value(): c.value()} if c.flag() else {}
    return {"select": c.select(), "condition": c.truth(), "otherwise": otherwise}


def body_text(c: Choices) -> str:
    inner = c.value()
    texts = (f'b () => (out) {{ out = Neg("{inner}") }}', "b (i, g, h) => (o, p) { o = Identity(g) p = Relu(h) }")
    return str(c.pick(texts))


EMPTY_IS_FINE = {"allow_empty": True}
OPERATIONS: dict[str, Callable[[Choices], object]] = {
    "add_initializer": lambda c: {
        "name": c.pick(("new_weight", c.any_value())),
        "value": [1.0, 2.0, 3.0, 4.0],
        "dtype": c.pick(("float32", "float16")),
        "scope": c.scope(),
        "connect": [f"{c.node()}.{c.number(0, 2)}"] if c.flag() else [],
    },
    "add_inputs": lambda c: {
        "inputs": {c.pick(("new_input", c.any_value())): {"dtype": "float32", "shape": c.numbers()}}
    },
    "add_node": addition,
    "add_outputs": lambda c: {"select": [c.value()]},
    "add_postprocessing": lambda c: {"output": c.output(), "activation": "softmax", "top_k": c.number(1, 4)},
    "add_sparse_initializer": lambda c: {
        "name": c.pick(("new_sparse", c.value())),
        "values": [1.5, 2.5],
        "indices": [0, 5],
        "shape": [2, 4],
        "connect": [f"{c.node('Add', 'Mul', 'MatMul')}.1"] if c.flag() else [],
    },
    "append_model": lambda c: {"model": c.pick(("small", "sparse", "itself")), "keep_outputs": c.flag()},
    "apply_rules": lambda c: {"rules": "*", **EMPTY_IS_FINE},
    "call_function": call,
    "connect": lambda c: {"select": c.select(), "input": c.number(0, 2), "tensor": c.any_value()},
    "constants_to_initializers": lambda c: EMPTY_IS_FINE,
    "convert_dtype": lambda c: {
        "select": {"name": c.weight(), "constants": c.flag()},
        "to": c.pick(("float16", "float64", "int32")),
        "casts": c.flag(),
    },
    "assert": lambda c: {"outputs": c.pick((1, 2)), "only_op_types": c.pick(([], "*"))},
    "copy_nodes": lambda c: {"select": c.select()},
    "cut": lambda c: {"select": c.select()},
    "decompose": lambda c: {"select": {"op_type": c.pick(("LayerNormalization", "Clip", "Softmax", "Leaky"))}},
    "remove_attributes": attribute_deletion,
    "remove_functions": lambda c: {"select": c.function()},
    "disconnect": lambda c: {"select": c.node("Clip", "Gemm", "LayerNormalization"), "input": c.number(1, 2)},
    "remove_initializer_inputs": lambda c: EMPTY_IS_FINE,
    "remove_shapes": lambda c: {},
    "externalize_weights": lambda c: {"larger_than": 0, **EMPTY_IS_FINE},
    "extract": lambda c: {"select": c.select()} if c.flag() else {"outputs": [c.value()]},
    "extract_function": lambda c: {"function": c.function()},
    "extract_subgraph": lambda c: {"scope": c.body()},
    "free_dims": lambda c: {"axes": {0: c.pick(("batch", None))}},
    "fuse_gemm": lambda c: EMPTY_IS_FINE,
    "generate_initializers": lambda c: {"select": c.weight(), "kind": c.pick(("normal", "ones"))},
    "import_model": lambda c: {
        "model": c.pick(("small", "sparse", "itself")),
        "connect": {"x": c.value()},
        "as_function": c.pick((None, "own::Imported")),
    },
    "infer_shapes": lambda c: {"strict": c.flag()},
    "initializers_to_constants": lambda c: {"select": c.weight(), **EMPTY_IS_FINE},
    "initializers_to_inputs": lambda c: {"select": c.weight(), "keep_values": True},
    "inline_branch": lambda c: {"select": c.node("If"), "branch": c.pick(("then_branch", "else_branch"))},
    "inline_functions": lambda c: {"keep_unused": c.flag(), **EMPTY_IS_FINE},
    "inline_weights": lambda c: EMPTY_IS_FINE,
    "insert_node": insertion,
    "make_batch_dynamic": lambda c: {},
    "make_dense": lambda c: {"select": "*", **EMPTY_IS_FINE},
    "make_function": lambda c: {
        "select": c.select(),
        "function": c.pick(("own::Part", "my::Leaky")),
        "inside": c.flag(),
    },
    "make_sparse": lambda c: {"select": c.weight(), "zeros": 0.0, **EMPTY_IS_FINE},
    "merge_model": lambda c: {"model": c.pick(("small", "sparse", "itself")), "share_inputs": c.pick((["x"], []))},
    "name_all": lambda c: {"c_identifiers": c.flag()},
    "reorder": lambda c: {"inputs": [c.input(), "*"], "outputs": [c.output(), "*"]},
    "prepend_model": lambda c: {"model": c.pick(("small", "sparse", "itself")), "keep_outputs": c.flag()},
    "remove_initializers": lambda c: {"select": c.weight(), "force": c.flag(), **EMPTY_IS_FINE},
    "remove_inputs": lambda c: {"select": c.input(), "replace_by": c.pick((None, 1.5))},
    "remove_nodes": lambda c: {"select": c.select(), "bridge": c.flag()},
    "replace_nodes": lambda c: {"select": c.select(), "op_type": c.pick(("Identity", "Neg"))},
    "remove_noops": lambda c: {},
    "remove_outputs": lambda c: {"select": [c.output()]},
    "rename_dims": lambda c: {"names": {"batch": c.pick(("n", "x"))}},
    "rename_functions": lambda c: {"select": c.function(), "to": "renamed::{name}"},
    "rename_nodes": lambda c: {"select": c.select(), "to": c.pick(("a", "n_{index}", "{name}"))},
    "rename_tensors": lambda c: {
        "select": c.pick(("*", c.any_value())),
        "to": c.pick(("t", "t_{index}", c.any_value())),
        "keep_io": c.flag(),
    },
    "replace_erf": lambda c: {"by": c.pick(("tanh", "polynomial")), **EMPTY_IS_FINE},
    "replace_op": lambda c: {"select": c.select(), "op_type": c.pick(("Relu", "Add", "Softmax", "Identity"))},
    "set_subgraph": lambda c: {
        "scope": c.body(),
        **c.pick(({"text": body_text(c)}, {"copy_of": c.body()})),
    },
    "reset_attributes": lambda c: {"select": c.select(), "attributes": "*"},
    "rewire": lambda c: {"tensor": c.value(), "read": c.value(), "outputs": c.flag()},
    "rewrite": lambda c: {
        "pattern": c.pick(("(x) => (y) { y = Relu(x) }", "(a, b) => (y) { y = Add(a, b) }", "(a) => (y) {y = Neg(a)}")),
        "replacement": c.pick(("(a) => (y) { t = Neg(a) y = Sigmoid(t) }", "(x) => (y) { y = Tanh(x) }")),
        **EMPTY_IS_FINE,
    },
    "set_attributes": attribute_setting,
    "set_dtypes": lambda c: {"dtypes": {c.pick((c.input(), c.output())): "float16"}, "cast": c.flag()},
    "set_function_attributes": lambda c: {"function": c.function(), "attributes": {"slope": 0.25}},
    "set_initializer": lambda c: {"name": c.weight(), "value": c.pick((0.5, [1, 2, 3, 4])), "reshape": c.flag()},
    "set_ir_version": lambda c: {"to": c.number(3, 11)},
    "set_metadata": lambda c: {"select": c.select(), "metadata": {"owner": "me"}},
    "set_opset": lambda c: {"to": c.number(11, 24)},
    "set_shapes": lambda c: c.pick(
        ({"all": c.number(1, 4)}, {"shapes": {c.input(): c.pick((c.numbers(), ["n", 4], [2, None]))}})
    ),
    "share_initializers": lambda c: {},
    "wrap_in_if": wrapping,
}
"""Operation -> its settings, of what the choices offer."""


def _keeps_outputs(word: str) -> bool:
    operation = find_operation(word)
    return operation is not None and operation.keeps_outputs


NOT_TO_THE_BIT = {"fuse_transformer", "replace_erf"}
NEW_SHAPES = {"free_dims", "make_batch_dynamic"}
"""They keep numbers, but not the shapes that are declared."""
LEFT_OUT = {
    "add_nms": "wants a detector",
    "add_preprocessing": "wants images",
    "change_layout": "wants 4 dimensions",
    "fuse_transformer": "finds its patterns in transformers only",
    "import_weights": "wants a file of weights",
    "loop_to_lstm": "finds Loops that are LSTMs only; has random bodies of its own",
    "run_python": "does anything",
}
"""Operations that are no use here."""
KEEPS_NUMBERS = {
    word for word in operation_names() if _keeps_outputs(word)
} - NOT_TO_THE_BIT - LEFT_OUT.keys() | NEW_SHAPES
"""Operations after which every output that keeps its name is what it was, up to the last bits."""
