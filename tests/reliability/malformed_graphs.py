"""Models that no exporter writes: each has one error, or one part that is far too large."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support import models
from tests.support.models import tensor

Model = onnx.ModelProto
NAMES = (
    "\x1b[31mred\x1b]0;title\x07",
    "<script>alert(1)</script>",
    "two\nlines\r\n",
    "../../outside",
    "a" * 100_000,
    " ",
)


def _model(
    nodes: Sequence[onnx.NodeProto],
    initializers: Sequence[TensorProto] = (),
    functions: Sequence[onnx.FunctionProto] = (),
) -> Model:
    """From `x` to `y`, four floats each."""
    graph = helper.make_graph(nodes, "main", [tensor("x", [4])], [tensor("y", [4])], list(initializers))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, ir_version=8, opset_imports=opsets, functions=list(functions))


def _node(op_type: str, inputs: Sequence[str], outputs: Sequence[str] = ("y",), **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs, outputs, name=f"{op_type}_{outputs[0] if outputs else ''}", **attributes)


def _ints(name: str, *values: int) -> TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def _relu() -> Model:
    return _model([_node("Relu", ["x"])])


def _with_opset(version: int, domain: str = "") -> Model:
    model = _relu()
    del model.opset_import[:]
    model.opset_import.add(domain=domain, version=version)
    return model


def _with_ir(version: int) -> Model:
    model = _relu()
    model.ir_version = version
    return model


def _with_initializer(**fields: Any) -> Model:
    """Return an initializer whose data contradicts its declaration."""
    proto = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4])
    for name, value in fields.items():
        if isinstance(value, list):
            del getattr(proto, name)[:]
            getattr(proto, name).extend(value)
        else:
            setattr(proto, name, value)
    return _model([_node("Add", ["x", "w"])], [proto])


def _branch(name: str, nodes: Sequence[onnx.NodeProto]) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, [], [tensor(f"{name}_y", None)])


def _chain_of_ifs(depth: int) -> Model:
    """If in If in If."""
    body = _branch("b", [_node("Relu", ["x"], ["b_y"])])
    other = _branch("e", [_node("Relu", ["x"], ["e_y"])])
    for level in range(depth):
        name = f"b{level}"
        inner = _node("If", ["c"], [f"{name}_y"], then_branch=body, else_branch=other)
        body = _branch(name, [inner])
    return _model(
        [_node("If", ["c"], then_branch=body, else_branch=other)], [numpy_helper.from_array(np.array(True), "c")]
    )


def _nested_types(depth: int) -> Model:
    model = _relu()
    kind = onnx.TypeProto()
    kind.tensor_type.elem_type = TensorProto.FLOAT
    for _ in range(depth):
        outer = onnx.TypeProto()
        outer.sequence_type.elem_type.CopyFrom(kind)
        kind = outer
    model.graph.input.add(name="s").type.CopyFrom(kind)
    return model


def _function(nodes: Sequence[onnx.NodeProto], name: str = "F") -> onnx.FunctionProto:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return helper.make_function("local", name, ["a"], ["b"], nodes, opsets)


def _calls(name: str, inputs: Sequence[str] = ("x",), outputs: Sequence[str] = ("y",)) -> onnx.NodeProto:
    return helper.make_node(name, inputs, outputs, name=f"call_{name}_{outputs[0]}", domain="local")


def _doubling_functions(levels: int) -> Model:
    """Each calls the next one twice: 2 ** levels nodes when they are inlined."""
    functions = [_function([helper.make_node("Relu", ["a"], ["b"])], "F0")]
    for level in range(1, levels):
        inner = f"F{level - 1}"
        functions.append(_function([_calls(inner, ["a"], ["m"]), _calls(inner, ["m"], ["b"])], f"F{level}"))
    return _model([_calls(f"F{levels - 1}")], functions=functions)


def _loop(times: int) -> Model:
    body = helper.make_graph(
        [_node("Identity", ["go"], ["go_on"]), _node("Add", ["h", "h"], ["h_on"])],
        "body",
        [tensor("i", [], TensorProto.INT64), tensor("go", [], TensorProto.BOOL), tensor("h", [4])],
        [tensor("go_on", [], TensorProto.BOOL), tensor("h_on", [4])],
    )
    count = numpy_helper.from_array(np.array(times, np.int64), "n")
    go = numpy_helper.from_array(np.array(True), "t")
    return _model([_node("Loop", ["n", "t", "x"], body=body)], [count, go])


def _bomb(op_type: str, *operands: TensorProto, **attributes: Any) -> Model:
    """A node that makes far more than it reads, of constants only."""
    names = [operand.name for operand in operands]
    result = _node(op_type, names, ["big"], **attributes)
    return _model([result, _node("ReduceMax", ["big"], ["m"], keepdims=0), _node("Add", ["x", "m"])], operands)


def _bomb_of_input(op_type: str, *operands: TensorProto, **attributes: Any) -> Model:
    """A node that makes far more than it reads, of the input."""
    result = _node(op_type, ["x", *(operand.name for operand in operands)], ["big"], **attributes)
    return _model([result, _node("ReduceMax", ["big"], ["m"], keepdims=0), _node("Add", ["x", "m"])], operands)


def _many_nodes(count: int) -> Model:
    names = ["x", *(f"h{index}" for index in range(count - 1)), "y"]
    return _model([_node("Relu", [item], [other]) for item, other in itertools.pairwise(names)])


def _named(name: str) -> Model:
    """Give everything that can have a name this one."""
    inner = helper.make_node("Relu", [f"{name}i"], [f"{name}o"], name=name, doc_string=name)
    graph = helper.make_graph([inner], name, [tensor(f"{name}i", [name])], [tensor(f"{name}o", [name])])
    graph.doc_string = name
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    model.producer_name = model.domain = name
    model.metadata_props.add(key=name, value=name)
    return model


def _changed(change: Callable[[Model], object], base: Callable[[], Model] = models.cnn_model) -> Model:
    model = base()
    change(model)
    return model


def _with_shape(*dims: int) -> Model:
    model = _relu()
    for value in (*model.graph.input, *model.graph.output):
        value.type.CopyFrom(helper.make_tensor_type_proto(TensorProto.FLOAT, dims))
    return model


def _interface(names: Sequence[str], outputs: Sequence[str]) -> Model:
    model = _relu()
    del model.graph.input[:], model.graph.output[:]
    model.graph.input.extend([tensor(name, [4]) for name in names])
    model.graph.output.extend([tensor(name, [4]) for name in outputs])
    return model


def _attribute(op_type: str, name: str, change: Callable[[onnx.AttributeProto], object], **given: Any) -> Model:
    node = _node(op_type, ["x"], **given)
    attribute = next((attribute for attribute in node.attribute if attribute.name == name), None) or node.attribute.add(
        name=name
    )
    change(attribute)
    return _model([node])


FLOAT_ONE = numpy_helper.from_array(np.ones(1, np.float32), "one")
FLOAT_ONE_W = numpy_helper.from_array(np.ones((1, 1, 1, 1), np.float32), "w")
HUGE = 2**62

WRONG: dict[str, Callable[[], Model]] = {
    "nothing in the graph": lambda: helper.make_model(onnx.GraphProto(name="g")),
    "no graph": lambda: Model(ir_version=8),
    "no opset": lambda: _changed(lambda m: m.ClearField("opset_import")),
    **{f"opset {v}": partial(_with_opset, v) for v in (0, -1, 1, 99, HUGE, -(2**63))},
    "foreign opset only": lambda: _with_opset(1, "com.example"),
    **{f"IR version {v}": partial(_with_ir, v) for v in (-1, 1, 99, HUGE)},
    "opset twice": lambda: _changed(lambda m: m.opset_import.add(version=3)),
    "cycle": lambda: _model([_node("Relu", ["b"], ["a"]), _node("Relu", ["a"], ["b"]), _node("Add", ["x", "b"])]),
    "self loop": lambda: _model([_node("Add", ["x", "y"])]),
    "reversed": lambda: _model([_node("Relu", ["h"]), _node("Relu", ["x"], ["h"])]),
    "dangling input": lambda: _model([_node("Add", ["x", "nowhere"])]),
    "dangling output": lambda: _model([_node("Relu", ["x"], ["other"])]),
    "no outputs of a node": lambda: _model([_node("Relu", ["x"]), _node("Relu", ["x"], [])]),
    "no inputs of a node": lambda: _model([_node("Conv", [])]),
    "empty names": lambda: _model([_node("Add", ["", ""], [""]), _node("Relu", ["x"])]),
    "too many inputs": lambda: _model([_node("Relu", ["x"] * 9)]),
    "too many outputs": lambda: _model([_node("Relu", ["x"], ["y", "z", "q"])]),
    "no such operator": lambda: _model([_node("Frobnicate", ["x"])]),
    "no operator": lambda: _model([_node("", ["x"])]),
    "domain not imported": lambda: _model([helper.make_node("Relu", ["x"], ["y"], domain="elsewhere")]),
    "two makers of one value": lambda: _model([_node("Relu", ["x"]), _node("Abs", ["x"])]),
    "input made by a node": lambda: _model([_node("Relu", ["x"], ["x"])]),
    "initializer made by a node": lambda: _model([_node("Relu", ["x"], ["w"])], [_ints("w", 1)]),
    "two initializers of a name": lambda: _model([_node("Add", ["x", "w"])], [_ints("w", 1), _ints("w", 2)]),
    "initializer without a name": lambda: _model([_node("Relu", ["x"])], [_ints("", 1)]),
    "no inputs": lambda: _interface([], ["y"]),
    "no outputs": lambda: _interface(["x"], []),
    "inputs twice": lambda: _interface(["x", "x"], ["y"]),
    "outputs twice": lambda: _interface(["x"], ["y", "y"]),
    "input without a name": lambda: _interface(["x", ""], ["y"]),
    "output without a name": lambda: _interface(["x"], ["y", ""]),
    "output that nothing makes": lambda: _interface(["x"], ["y", "z"]),
    "output that is an input": lambda: _interface(["x"], ["y", "x"]),
    "input without a type": lambda: _changed(lambda m: m.graph.input[0].ClearField("type")),
    "input of type 0": lambda: _changed(lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 0)),
    "input of type 999": lambda: _changed(lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 999)),
    "huge input": lambda: _with_shape(HUGE),
    "huge product": lambda: _with_shape(2**40, 2**40),
    "input over memory": lambda: _with_shape(2**40),
    "negative input": lambda: _with_shape(-5),
    "empty input": lambda: _with_shape(0),
    "9 dimensions": lambda: _with_shape(*[1] * 9),
    "100 dimensions": lambda: _with_shape(*[1] * 100),
    "raw data too short": lambda: _with_initializer(raw_data=b"abc"),
    "raw data too long": lambda: _with_initializer(raw_data=b"a" * 100),
    "no data": _with_initializer,
    "data twice": lambda: _with_initializer(raw_data=b"a" * 16, float_data=[1.0, 2.0, 3.0, 4.0]),
    "data of another type": lambda: _with_initializer(int64_data=[1, 2, 3, 4]),
    "type 0": lambda: _with_initializer(data_type=0, raw_data=b"a" * 16),
    "type 999": lambda: _with_initializer(data_type=999, raw_data=b"a" * 16),
    "type of text": lambda: _with_initializer(data_type=TensorProto.STRING, raw_data=b"a" * 16),
    "text that is not UTF-8": lambda: _with_initializer(data_type=TensorProto.STRING, string_data=[b"\xff\xfe"] * 4),
    "packed too short": lambda: _with_initializer(data_type=TensorProto.INT4, dims=[9], raw_data=b"a"),
    "negative dims": lambda: _with_initializer(dims=[-4], float_data=[1.0]),
    "dims that overflow": lambda: _with_initializer(dims=[HUGE, HUGE], raw_data=b""),
    "dims of 2^50": lambda: _with_initializer(dims=[2**50], raw_data=b"abcd"),
    "dims of 2^50 and 0": lambda: _with_initializer(dims=[2**50, 0], raw_data=b""),
    "bits over": lambda: _with_initializer(raw_data=b"\xff" * 16),
    "branch of nothing": lambda: _model([_node("If", ["x"], then_branch=onnx.GraphProto())]),
    "If without branches": lambda: _model([_node("If", ["x"])]),
    "Loop without a body": lambda: _model([_node("Loop", ["", "", "x"])]),
    "body with too few inputs": lambda: _model([_node("Loop", ["", "", "x"], body=onnx.GraphProto(name="g"))]),
    "captures what is not there": lambda: _model(
        [_node("If", ["x"], then_branch=_branch("t", [_node("Relu", ["q"], ["t_y"])]), else_branch=_branch("e", []))]
    ),
    "attribute of another type": lambda: _attribute(
        "Softmax", "axis", lambda a: a.CopyFrom(helper.make_attribute("axis", "one"))
    ),
    "attribute without a type": lambda: _attribute("Softmax", "axis", lambda a: setattr(a, "i", 1)),
    "attribute of type 77": lambda: _attribute("Softmax", "axis", lambda a: setattr(a, "s", b"\xff\xfe")),
    "attribute twice": lambda: _changed(
        lambda m: m.graph.node[0].attribute.add().CopyFrom(m.graph.node[0].attribute[0])
    ),
    "reference outside a function": lambda: _attribute(
        "Softmax", "axis", lambda a: setattr(a, "ref_attr_name", "q"), axis=1
    ),
    "axis of 2^62": lambda: _model([_node("Softmax", ["x"], axis=HUGE)]),
    "Cast to 999": lambda: _model([_node("Cast", ["x"], to=999)]),
    "Cast without to": lambda: _model([_node("Cast", ["x"])]),
    "Transpose by nonsense": lambda: _model([_node("Transpose", ["x"], perm=[7, -3, HUGE])]),
    "Reshape to -1 -1": lambda: _model([_node("Reshape", ["x", "s"])], [_ints("s", -1, -1)]),
    "Reshape to 2^62": lambda: _model([_node("Reshape", ["x", "s"])], [_ints("s", HUGE, HUGE)]),
    "Gather beyond": lambda: _model(
        [_node("Gather", ["w", "i"], ["g"]), _node("Cast", ["g"], ["f"], to=1), _node("Add", ["x", "f"])],
        [_ints("w", 1, 2), _ints("i", HUGE)],
    ),
    "division by 0": lambda: _model(
        [_node("Div", ["a", "b"], ["d"]), _node("Cast", ["d"], ["f"], to=1), _node("Add", ["x", "f"])],
        [_ints("a", 1), _ints("b", 0)],
    ),
    "least by -1": lambda: _model(
        [_node("Div", ["a", "b"], ["d"]), _node("Cast", ["d"], ["f"], to=1), _node("Add", ["x", "f"])],
        [_ints("a", -(2**63)), _ints("b", -1)],
    ),
    "modulo 0": lambda: _model(
        [_node("Mod", ["a", "b"], ["d"]), _node("Cast", ["d"], ["f"], to=1), _node("Add", ["x", "f"])],
        [_ints("a", 1), _ints("b", 0)],
    ),
    "Slice of steps 0": lambda: _model(
        [_node("Slice", ["x", "a", "b", "a", "z"])], [_ints("a", 0), _ints("b", 4), _ints("z", 0)]
    ),
    "Split into -1": lambda: _model([_node("Split", ["x", "s"], ["y", "z"])], [_ints("s", -1, 5)]),
    "Conv of nonsense": lambda: _model(
        [_node("Conv", ["x", "w"], kernel_shape=[HUGE, -1], strides=[0, 0], group=0)], [FLOAT_ONE_W]
    ),
    "group 0": lambda: _changed(lambda m: m.graph.node[0].attribute.append(helper.make_attribute("group", 0))),
    "function that calls itself": lambda: _model([_calls("F")], functions=[_function([_calls("F", ["a"], ["b"])])]),
    "functions that call each other": lambda: _model(
        [_calls("F")], functions=[_function([_calls("G", ["a"], ["b"])]), _function([_calls("F", ["a"], ["b"])], "G")]
    ),
    "function twice": lambda: _model([_calls("F")], functions=[_function([_node("Relu", ["a"], ["b"])])] * 2),
    "function with no output": lambda: _model([_calls("F")], functions=[_function([_node("Relu", ["a"], ["q"])])]),
    "function named as an operator": lambda: _changed(
        lambda m: setattr(m.functions[0], "domain", ""), models.func_model
    ),
    "function without its opset": lambda: _changed(
        lambda m: m.functions[0].ClearField("opset_import"), models.func_model
    ),
    "sparse beyond": lambda: _changed(
        lambda m: m.graph.sparse_initializer[0].dims.__setitem__(0, HUGE), models.sparse_model
    ),
    "sparse without values": lambda: _changed(
        lambda m: m.graph.sparse_initializer[0].ClearField("values"), models.sparse_model
    ),
    "sparse without indices": lambda: _changed(
        lambda m: m.graph.sparse_initializer[0].ClearField("indices"), models.sparse_model
    ),
    **{f"named {name[:8]!r}": partial(_named, name) for name in NAMES},
    "map as an input": lambda: _changed(
        lambda m: m.graph.input[0].type.map_type.CopyFrom(onnx.TypeProto.Map(key_type=7))
    ),
    "opaque input": lambda: _changed(lambda m: m.graph.input[0].type.ClearField("tensor_type")),
    "value info of nonsense": lambda: _changed(lambda m: m.graph.value_info.append(tensor("y", [-7, HUGE], 999))),
    "training info": lambda: _changed(lambda m: m.training_info.add().algorithm.CopyFrom(m.graph)),
    "quantization annotation": lambda: _changed(lambda m: m.graph.quantization_annotation.add(tensor_name="nowhere")),
}

LARGE: dict[str, Callable[[], Model]] = {
    "If 20 deep": lambda: _chain_of_ifs(20),
    "types 40 deep": lambda: _nested_types(40),
    "2^40 calls": lambda: _doubling_functions(40),
    "Loop for ever": lambda: _loop(2**62),
    "ConstantOfShape 2^40": lambda: _bomb("ConstantOfShape", _ints("s", 2**40)),
    "ConstantOfShape 2^62": lambda: _bomb("ConstantOfShape", _ints("s", HUGE)),
    "ConstantOfShape negative": lambda: _bomb("ConstantOfShape", _ints("s", -1)),
    "ConstantOfShape that overflows": lambda: _bomb("ConstantOfShape", _ints("s", 2**32, 2**32)),
    "ConstantOfShape of 2 GB": lambda: _bomb("ConstantOfShape", _ints("s", 2**29)),
    "Expand 2^40": lambda: _bomb("Expand", FLOAT_ONE, _ints("s", 2**40)),
    "Tile 2^40": lambda: _bomb("Tile", FLOAT_ONE, _ints("s", 2**40)),
    "Range 2^40": lambda: _bomb(
        "Range", *(numpy_helper.from_array(np.array(v, np.float32), n) for n, v in (("a", 0), ("b", 2.0**40), ("c", 1)))
    ),
    "Pad 2^40": lambda: _bomb("Pad", FLOAT_ONE, _ints("s", 0, 2**40)),
    "OneHot 2^40": lambda: _bomb(
        "OneHot", _ints("i", 0), _ints("d", 2**40), numpy_helper.from_array(np.array([0, 1], np.float32), "v")
    ),
    "Resize 2^40": lambda: _bomb(
        "Resize",
        FLOAT_ONE,
        numpy_helper.from_array(np.array([], np.float32), "roi"),
        numpy_helper.from_array(np.array([2.0**40], np.float32), "scales"),
    ),
    "input Expand 2^40": lambda: _bomb_of_input("Expand", _ints("s", 2**38, 4)),
    "input Tile 2^40": lambda: _bomb_of_input("Tile", _ints("s", 2**38)),
    "input Pad 2^40": lambda: _bomb_of_input("Pad", _ints("s", 0, 2**40)),
    "input Expand overflows": lambda: _bomb_of_input("Expand", _ints("s", 2**61, 4)),
    "chain of doublings": lambda: _model(
        [
            *(
                _node("Concat", [a, a], [b], axis=0)
                for a, b in zip(["one", *(f"c{i}" for i in range(39))], [f"c{i}" for i in range(40)], strict=False)
            ),
            _node("ReduceMax", ["c39"], ["m"], keepdims=0),
            _node("Add", ["x", "m"]),
        ],
        [FLOAT_ONE],
    ),
}


def chain(length: int) -> Model:
    """So many nodes, one after the other."""
    names = ["x", *(f"c{index}" for index in range(length - 1)), "y"]
    pairs = enumerate(itertools.pairwise(names))
    return _model([_node("Abs" if index % 2 else "Relu", [read], [pair]) for index, (read, pair) in pairs])
