"""Sanitizing leaves fewer nodes, equal outputs, and everything that users rely on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.sanitize import pipeline
from ndld_flow.graph.sanitize.pipeline import sanitize_file
from ndld_flow.graph.sanitize.settings import SanitizeSettings
from ndld_flow.models.files import check_model, load_model, summarize_model
from ndld_flow.records.model_diff import GraphChange
from ndld_flow.step import Context
from ndld_flow.steps.sanitize import Sanitize
from ndld_flow.store.kinds import Onnx
from tests.support import models
from tests.support.message_files import CheckMessage

Array = npt.NDArray[Any]
Feed = Mapping[str, Array]
LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
DISABLED, ALL = ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_ALL


def run_model(path: Path, feed: Feed, level: ort.GraphOptimizationLevel = DISABLED) -> list[Array]:
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 4
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return [np.asarray(value) for value in session.run(None, dict(feed))]


def sanitize(source: Path, clean: bool = True, **options: Any) -> tuple[Path, GraphChange]:
    """Sanitize; a wrong rewrite must show, so by default no pass may have been left out."""
    target = source.with_name("sanitized.onnx")
    change = sanitize_file(source, target, SanitizeSettings(**options))
    assert not clean or not [note for note in change.notes if "failed" in note]
    return target, change


def assert_equal(source: Path, target: Path, feed: Feed, tolerance: float = 0.0) -> None:
    """Equal outputs, with ONNX Runtime's optimizations off and on."""
    for level in (DISABLED, ALL):
        for before, after in zip(run_model(source, feed, level), run_model(target, feed, level), strict=True):
            assert before.dtype == after.dtype
            scale = max(1.0, float(np.max(np.abs(before), initial=0))) if before.dtype != bool else 1.0
            np.testing.assert_allclose(
                after, before, rtol=0, atol=tolerance * scale if level == DISABLED else 1e-5 * scale
            )


def random_floats(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def feed_of(name: str) -> dict[str, Array]:
    ids = np.random.default_rng(0).integers(0, models.TFM_VOCABULARY, (3, 7))
    mask = np.ones((3, 7), np.int64)
    mask[0, 4:] = 0
    return {
        "cnn": {"x": random_floats(2, 3, 16, 16)},
        "tfm": {"ids": ids, "mask": mask},
        "ctrl": {"x": random_floats(3, 4)},
        "func": {"x": random_floats(3, 8)},
        "ext": {"x": random_floats(3, 256)},
        "sparse": {"x": random_floats(3, 4)},
    }[name]


# The fewest nodes of polygraphy, onnxslim, onnxscript.optimizer, onnx_ir's passes and ONNX Runtime's basic level on
# the same models, from tests/benchmarks/bench_sanitize.py (November 2026).
FEWEST = {"cnn": 14, "tfm": 183, "ctrl": 11, "func": 11, "ext": 6, "sparse": 2}


@pytest.mark.representatives("tfm", "ctrl")
@pytest.mark.parametrize("name", FEWEST)
def test_no_other_tool_leaves_fewer_nodes_and_outputs_are_equal(tmp_path: Path, name: str) -> None:
    source = getattr(models, f"make_{name}")(tmp_path / "source.onnx")
    target, change = sanitize(source)
    assert change.after.node_count <= FEWEST[name]
    assert_equal(source, target, feed_of(name), tolerance=2e-6)


@pytest.mark.representatives("cnn", "sparse")
@pytest.mark.parametrize("name", FEWEST)
def test_without_fusions_outputs_are_bitwise_equal(tmp_path: Path, name: str) -> None:
    source = getattr(models, f"make_{name}")(tmp_path / "source.onnx")
    target, _ = sanitize(source, fuse=False)
    for before, after in zip(run_model(source, feed_of(name)), run_model(target, feed_of(name)), strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(
    ("name", "fewest", "feed"),
    [
        pytest.param("det", 326, {"x": (1, 3, 320, 320)}, marks=pytest.mark.thorough),
        pytest.param("rec", 393, {"x": (1, 3, 48, 320)}, marks=pytest.mark.thorough),
        ("silero", 116, {"input": (1, 512), "state": (2, 1, 128)}),
    ],
)
def test_real_models_are_sanitized(
    tmp_path: Path, sample_model: Callable[[str], Path], name: str, fewest: int, feed: dict[str, tuple[int, ...]]
) -> None:
    source, target = sample_model(name), tmp_path / "model.onnx"
    change = sanitize_file(source, target, SanitizeSettings())
    assert change.after.node_count <= fewest
    values = {key: np.random.default_rng(0).random(shape).astype(np.float32) for key, shape in feed.items()}
    for rate in [8000, 16000] if name == "silero" else [None]:
        extra = {} if rate is None else {"sr": np.array(rate), "input": values["input"][:, : rate * 512 // 16000]}
        assert_equal(source, target, {**values, **extra}, tolerance=2e-6)


@pytest.mark.parametrize(
    ("name", "fewest"),
    [
        *(pytest.param(*item, marks=pytest.mark.thorough) for item in (("resnet50", 123), ("shufflenet", 154))),
        ("squeezenet", 65),
    ],
)
def test_light_models_are_sanitized(tmp_path: Path, name: str, fewest: int) -> None:
    source, target = LIGHT / f"light_{name}.onnx", tmp_path / "model.onnx"
    generated = SanitizeSettings(fold_size_threshold=2**26)  # their weights are ConstantOfShapes
    assert sanitize_file(source, target, generated).after.node_count <= fewest
    feed = {onnx.load(target).graph.input[0].name: random_floats(1, 3, 224, 224)}
    before, after = run_model(source, feed)[0], run_model(target, feed)[0]
    np.testing.assert_allclose(after, before, atol=1e-6)


@pytest.mark.representatives("cnn", "func")
@pytest.mark.parametrize("name", FEWEST)
def test_names_metadata_and_interface_are_kept(tmp_path: Path, name: str) -> None:
    source = getattr(models, f"make_{name}")(tmp_path / "source.onnx")
    target, _ = sanitize(source, inline_functions=name == "func")
    before, after = onnx.load(source), onnx.load(target)
    check_model(target, full_check=name != "sparse")
    assert list(after.graph.input) == list(before.graph.input)
    assert list(after.graph.output) == list(before.graph.output)
    assert {o.domain: o.version for o in after.opset_import}[""] == 17
    assert all(node.domain in ("", models.FUNCTION_DOMAIN) for node in all_nodes(after))
    names = [node.name for node in all_nodes(after)]
    assert len(set(names)) == len(names)
    assert "" not in names


def all_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    result, graphs = [], [model.graph]
    while graphs:
        graph = graphs.pop()
        result += list(graph.node)
        graphs += [a.g for n in graph.node for a in n.attribute if a.type == onnx.AttributeProto.GRAPH]
    return result


def test_remaining_nodes_and_tensors_keep_their_names(tmp_path: Path) -> None:
    source = models.make_cnn(tmp_path / "source.onnx")
    target, _ = sanitize(source)
    before = {node.name: node.op_type for node in onnx.load(source).graph.node}
    after = onnx.load(target).graph.node
    kept = [node.name for node in after if before.get(node.name) == node.op_type]
    assert len(kept) >= len(after) - 1  # the Gemm is new, and is called as the MatMul it was
    made_before = intermediate_values(source)
    made_after = intermediate_values(target)
    shared = set(made_before) & set(made_after)
    assert len(shared) >= len(after) - 1
    for name in shared:
        np.testing.assert_allclose(made_after[name], made_before[name], atol=1e-5, err_msg=name)


def intermediate_values(path: Path) -> dict[str, Array]:
    model = onnx.shape_inference.infer_shapes(onnx.load(path))
    names = [name for node in model.graph.node for name in node.output]
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip(names, session.run(names, feed_of("cnn")), strict=True))


def test_functions_are_inlined_on_request(tmp_path: Path) -> None:
    source = models.make_func(tmp_path / "source.onnx")
    target, change = sanitize(source, inline_functions=True)
    assert change.after.nodes_by_type == {"Gemm": 3, "LeakyRelu": 2}
    assert not onnx.load(target).functions
    assert_equal(source, target, feed_of("func"), tolerance=2e-6)


def test_input_shapes_make_shape_computations_constant(tmp_path: Path) -> None:
    source = models.make_tfm(tmp_path / "source.onnx")
    target, change = sanitize(source, input_shapes={"ids": (3, 7)})
    assert "Shape" not in change.after.nodes_by_type
    dims = [[d.dim_value for d in v.type.tensor_type.shape.dim] for v in onnx.load(target).graph.input]
    assert dims == [[3, 7], [3, 7]]  # `mask` has the same named dimensions
    assert_equal(source, target, feed_of("tfm"), tolerance=2e-6)


@pytest.mark.parametrize(
    "shapes",
    [
        {"idz": (1, 2)},
        {"ids": (1, 2, 3)},
        {"ids": (1, 2), "mask": (1, 3)},
    ],
)
def test_impossible_input_shapes_are_reported(
    tmp_path: Path, shapes: dict[str, tuple[int, ...]], check_message: CheckMessage
) -> None:
    with pytest.raises(RequestError) as caught:
        sanitize(models.make_tfm(tmp_path / "source.onnx"), input_shapes=shapes)
    check_message(caught.value)


def one_graph(  # noqa: PLR0917
    tmp_path: Path,
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    initializers: Mapping[str, Array] | None = None,
    opset: int = 17,
    extra_opsets: tuple[str, ...] = (),
) -> Path:
    tensors = [numpy_helper.from_array(array, name) for name, array in (initializers or {}).items()]
    graph = helper.make_graph(nodes, "main", inputs, outputs, tensors)
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in extra_opsets)]
    return models.save(
        helper.make_model(graph, ir_version=8 if opset < 21 else 10, opset_imports=opsets), tmp_path / "source.onnx"
    )


def types_after(source: Path, **options: Any) -> dict[str, int]:
    return sanitize(source, **options)[1].after.nodes_by_type


F = np.float32
X = models.tensor("x", [2, 4])
Y = models.tensor("y", [2, 4])


def test_random_operators_are_neither_folded_nor_merged(tmp_path: Path) -> None:
    nodes = [helper.make_node("RandomNormal", [], [name], shape=[2, 4]) for name in ("a", "b")]
    nodes += [helper.make_node("Add", ["a", "b"], ["c"]), helper.make_node("Add", ["x", "c"], ["y"])]
    assert types_after(one_graph(tmp_path, nodes, [X], [Y])) == {"Add": 2, "RandomNormal": 2}


def test_quantized_weights_stay_quantized(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["w", "s", "z"], ["q"], name="q"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], name="dq"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d2"], name="dq2"),
        helper.make_node("MatMul", ["x", "d"], ["h"], name="m"),
        helper.make_node("MatMul", ["h", "d2"], ["y"], name="m2"),
    ]
    weights: dict[str, Array] = {"w": random_floats(4, 4), "s": np.array(0.1, F), "z": np.array(0, np.int8)}
    source = one_graph(tmp_path, nodes, [X], [Y], weights)
    assert types_after(source) == {"DequantizeLinear": 2, "MatMul": 2, "QuantizeLinear": 1}


def test_results_above_the_threshold_are_not_folded(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("ConstantOfShape", ["n"], ["big"]),
        helper.make_node("Tile", ["small", "n2"], ["tiled"]),
        helper.make_node("Slice", ["big", "start", "end"], ["s"]),
        helper.make_node("Add", ["tiled", "s"], ["t"]),
        helper.make_node("Add", ["x", "t"], ["y"]),
    ]
    constants: dict[str, Array] = {
        "n": np.array([10**6], np.int64), "n2": np.array([4], np.int64), "small": np.ones(1, F),
        "start": np.array([0], np.int64), "end": np.array([4], np.int64),
    }  # fmt: skip
    source = one_graph(tmp_path, nodes, [X], [Y], constants)
    assert types_after(source, fold_size_threshold=10**5) == {"Add": 2, "ConstantOfShape": 1, "Slice": 1}
    assert types_after(source, fold_size_threshold=10**7) == {"Add": 1}


def test_a_hostile_size_is_not_allocated(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("ConstantOfShape", ["n"], ["big"]),
        helper.make_node("Expand", ["one", "n"], ["bigger"]),
        helper.make_node("ReduceSum", ["big"], ["s"], keepdims=0),
        helper.make_node("ReduceSum", ["bigger"], ["t"], keepdims=0),
        helper.make_node("Add", ["s", "t"], ["st"]),
        helper.make_node("Add", ["x", "st"], ["y"]),
    ]
    constants: dict[str, Array] = {"n": np.array([2**40, 2**20], np.int64), "one": np.ones(1, F)}
    after = types_after(one_graph(tmp_path, nodes, [X], [Y], constants))
    assert after == {"Add": 2, "ReduceSum": 2, "ConstantOfShape": 1, "Expand": 1}


def test_an_unknown_operator_does_not_prevent_other_folding(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Special", ["c"], ["s"], domain="custom"),
        helper.make_node("Add", ["c", "c"], ["d"]),
        helper.make_node("Mul", ["d", "s"], ["e"]),
        helper.make_node("Identity", ["x"], ["i"]),
        helper.make_node("Add", ["i", "e"], ["y"]),
    ]
    source = one_graph(tmp_path, nodes, [X], [Y], {"c": np.ones(4, F)}, extra_opsets=("custom",))
    assert types_after(source) == {"Add": 1, "Mul": 1, "custom::Special": 1}


def test_a_node_that_cannot_be_evaluated_does_not_stop_its_neighbours(tmp_path: Path) -> None:
    nodes = [
        # No kernel for bfloat16, and a division by zero that only running finds.
        helper.make_node("Cast", ["c"], ["b"], to=TensorProto.BFLOAT16),
        helper.make_node("Sin", ["b"], ["bs"]),
        helper.make_node("Cast", ["bs"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["c", "c"], ["d"]),
        helper.make_node("Mul", ["x", "d"], ["xd"]),
        helper.make_node("Add", ["xd", "f"], ["y"]),
    ]
    after = types_after(one_graph(tmp_path, nodes, [X], [Y], {"c": np.ones(4, F)}, opset=22), fuse=False)
    assert after["Add"] == 1
    assert after["Mul"] == 1


def test_a_constant_output_stays_an_output(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Add", ["c", "c"], ["d"], name="sum"),
        helper.make_node("Identity", ["d"], ["y"], name="same"),
        helper.make_node("Identity", ["x"], ["z"], name="through"),
    ]
    outputs = [models.tensor("y", [4]), models.tensor("z", [2, 4])]
    source = one_graph(tmp_path, nodes, [X], outputs, {"c": np.ones(4, F)})
    target, _ = sanitize(source)
    assert_equal(source, target, {"x": random_floats(2, 4)})


def test_a_constant_output_without_a_constant_form_in_its_opset_is_kept(tmp_path: Path) -> None:
    nodes = [helper.make_node("Not", ["c"], ["d"], name="no"), helper.make_node("Not", ["d"], ["y"], name="yes")]
    source = one_graph(
        tmp_path, nodes, [], [models.tensor("y", [2], TensorProto.BOOL)], {"c": np.array([True, False])}, opset=7
    )
    target, change = sanitize(source)
    assert change.after.nodes_by_type == {"Not": 1}
    assert_equal(source, target, {})


def test_an_input_with_a_default_is_not_a_constant(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["c", "c"], ["d"]), helper.make_node("Add", ["x", "d"], ["y"])]
    inputs = [X, models.tensor("c", [4])]
    source = one_graph(tmp_path, nodes, inputs, [Y], {"c": np.ones(4, F)})
    target, change = sanitize(source)
    assert change.after.nodes_by_type == {"Add": 2}
    assert_equal(source, target, {"x": random_floats(2, 4), "c": np.full(4, 5, F)})


def test_a_tensor_read_twice_is_not_fused_away(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("Mul", ["c", "k"], ["m"], name="mul"),
        helper.make_node("Add", ["m", "c"], ["y"], name="add"),
    ]
    image = models.tensor("x", [1, 2, 5, 5])
    weights = {"w": random_floats(3, 2, 1, 1), "k": random_floats(1, 3, 1, 1)}
    source = one_graph(tmp_path, nodes, [image], [models.tensor("y", [1, 3, 5, 5])], weights)
    target, change = sanitize(source)
    assert change.after.nodes_by_type == {"Add": 1, "Conv": 1, "Mul": 1}
    assert_equal(source, target, {"x": random_floats(1, 2, 5, 5)})


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose"])
def test_channels_are_scaled_by_their_own_factor(tmp_path: Path, op_type: str, group: int) -> None:
    shape = (6, 4 // group, 3, 3) if op_type == "Conv" else (4, 6 // group, 3, 3)
    nodes = [
        helper.make_node(op_type, ["x", "w"], ["c"], name="conv", group=group),
        helper.make_node("BatchNormalization", ["c", "g", "b", "m", "v"], ["n"], name="bn"),
        helper.make_node("Div", ["n", "k"], ["d"], name="div"),
        helper.make_node("Sub", ["d", "k"], ["y"], name="sub"),
    ]
    weights = {name: random_floats(6) + i for i, name in enumerate("gbm")}
    weights |= {"w": random_floats(*shape), "v": np.abs(random_floats(6)), "k": random_floats(6, 1, 1) + F(3)}
    source = one_graph(tmp_path, nodes, [models.tensor("x", [1, 4, 7, 7])], [models.tensor("y", None)], weights)
    target, change = sanitize(source)
    assert change.after.nodes_by_type == {op_type: 1}
    assert_equal(source, target, {"x": random_floats(1, 4, 7, 7)}, tolerance=2e-6)


def test_a_constant_that_broadcasts_the_tensor_is_not_a_no_op(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Add", ["x", "zeros"], ["a"], name="widens"),
        helper.make_node("Mul", ["a", "one"], ["y"], name="nothing"),
    ]
    source = one_graph(
        tmp_path,
        nodes,
        [models.tensor("x", [4])],
        [models.tensor("y", [1, 4])],
        {"zeros": np.zeros((1, 1), F), "one": np.ones(1, F)},
    )
    target, change = sanitize(source)
    assert change.after.nodes_by_type == {"Add": 1}
    assert_equal(source, target, {"x": random_floats(4)})


def test_a_lossy_cast_is_kept(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT32),
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["f"], ["y"], to=TensorProto.FLOAT),
    ]
    source = one_graph(tmp_path, nodes, [X], [Y])
    target, change = sanitize(source)
    assert change.after.nodes_by_type == {"Cast": 2}
    assert_equal(source, target, {"x": random_floats(2, 4) * 10})


@pytest.mark.parametrize(("training", "is_kept"), [("false", False), ("true", True), ("mode", True), ("", False)])
def test_dropout_is_removed_where_it_is_not_training(tmp_path: Path, training: str, is_kept: bool) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]> g (float[4] x, bool mode) => (float[4] y)
        <float ratio = {{0.5}}, bool true = {{1}}, bool false = {{0}}> {{
            r = Relu (x)  d = Dropout (r, ratio{training and ", " + training})  y = Exp (d)
        }}"""
    )
    target, _ = sanitize(models.save(model, tmp_path / "source.onnx"))
    assert ("Dropout" in [node.op_type for node in onnx.load(target).graph.node]) == is_kept


def test_transposes_merge_in_the_right_order(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 2, 0]),
        helper.make_node("Transpose", ["t"], ["y"], perm=[0, 2, 1]),
    ]
    source = one_graph(tmp_path, nodes, [models.tensor("x", [2, 3, 4])], [models.tensor("y", [3, 2, 4])])
    target, change = sanitize(source)
    assert change.after.nodes_by_type == {"Transpose": 1}
    assert_equal(source, target, {"x": random_floats(2, 3, 4)})


def test_a_zero_in_a_reshape_copies_from_its_own_input(tmp_path: Path) -> None:
    nodes = [helper.make_node("Reshape", ["x", "a"], ["r"]), helper.make_node("Reshape", ["r", "b"], ["y"])]
    constants = {"a": np.array([4, 6], np.int64), "b": np.array([0, 3, 2], np.int64)}
    source = one_graph(tmp_path, nodes, [models.tensor("x", [2, 12])], [models.tensor("y", [4, 3, 2])], constants)
    target, _ = sanitize(source)
    assert_equal(source, target, {"x": random_floats(2, 12)})


def test_wrong_value_info_does_not_lead_to_wrong_folding(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Shape", ["r"], ["s"]),
        helper.make_node("Cast", ["s"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Neg", ["f"], ["y"]),
    ]
    source = one_graph(tmp_path, nodes, [models.tensor("x", ["n", 4])], [models.tensor("y", [2])])
    proto = onnx.load(source)
    proto.graph.value_info.append(models.tensor("r", [1, 4]))
    onnx.save(proto, source)
    target, _ = sanitize(source)
    # ONNX Runtime's own folding believes the note and computes -1 here.
    np.testing.assert_array_equal(run_model(target, {"x": random_floats(3, 4)}, ALL)[0], [-3, -4])


def test_names_are_made_unique(tmp_path: Path) -> None:
    def branch(name: str, op_type: str) -> onnx.GraphProto:
        nodes = [helper.make_node(op_type, ["x"], ["h"], name="same"), helper.make_node("Neg", ["h"], ["out"], name="")]
        return helper.make_graph(nodes, name, [], [models.tensor("out", [2, 4])])

    nodes = [
        helper.make_node(
            "If", ["c"], ["i"], name="same", then_branch=branch("t", "Abs"), else_branch=branch("e", "Exp")
        ),
        helper.make_node(
            "If", ["d"], ["j"], name="same", then_branch=branch("t2", "Abs"), else_branch=branch("e2", "Exp")
        ),
        helper.make_node("Add", ["i", "j"], ["y"], name="same"),
    ]
    flag = models.tensor("d", [], TensorProto.BOOL)
    source = one_graph(tmp_path, nodes, [X, flag], [Y], {"c": np.array(True)})
    target, change = sanitize(source)
    names = [node.name for node in all_nodes(onnx.load(target))]
    tensors = [name for node in all_nodes(onnx.load(target)) for name in node.output]
    assert change.after.nodes_by_type == {"Neg": 3, "Abs": 2, "Add": 1, "Exp": 1, "If": 1}
    assert len(set(names)) == len(names)
    assert len(set(tensors)) == len(tensors)
    # The source does not even load: ONNX Runtime refuses two nodes of one name.
    x = random_floats(2, 4)
    result = run_model(target, {"x": x, "d": np.array(False)})[0]
    np.testing.assert_allclose(result, -np.abs(x) - np.exp(x), rtol=1e-6)


def test_external_weights_stay_on_disk(tmp_path: Path) -> None:
    source = models.make_ext(tmp_path / "source.onnx")
    target, _ = sanitize(source)
    assert target.stat().st_size < 2000
    assert target.with_name("sanitized.onnx.data").read_bytes() == (tmp_path / "source.onnx.bin").read_bytes()


def test_a_failing_pass_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(pipeline, "fuse_affine", fail)
    monkeypatch.setattr(pipeline, "fold_constants", fail)
    source = models.make_cnn(tmp_path / "source.onnx")
    target, change = sanitize(source, clean=False)
    assert [r.levelno for r in caplog.records] == [logging.WARNING] * 2
    assert any("fuse affine" in note for note in change.notes)
    assert change.after.node_count < change.before.node_count
    assert_equal(source, target, feed_of("cnn"), tolerance=2e-6)


def test_an_invalid_result_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_model(edits: Any) -> None:
        edits.model.graph[0].op_type = "NoSuchOperator"

    monkeypatch.setattr(pipeline, "share_equal_nodes", break_model)
    source = models.make_cnn(tmp_path / "source.onnx")
    target, change = sanitize(source, clean=False)
    assert change.after == change.before
    assert_equal(source, target, feed_of("cnn"))


def test_a_model_that_strict_inference_rejects_is_still_sanitized(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Add", ["a", "b"], ["z"], name="impossible"),  # 3 and 4 elements; nobody reads the sum
        helper.make_node("Neg", ["z"], ["also"], name="kept"),
        helper.make_node("Identity", ["x"], ["i"], name="same"),
        helper.make_node("Relu", ["i"], ["y"], name="relu"),
    ]
    weights = {"a": np.zeros(3, F), "b": np.zeros(4, F)}
    source = one_graph(tmp_path, nodes, [X], [Y, models.tensor("also", [4])], weights)
    assert sanitize(source)[1].after.nodes_by_type == {"Add": 1, "Neg": 1, "Relu": 1}


def test_an_unknown_operator_stays_and_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nodes = [helper.make_node("NoSuchOperator", ["x"], ["i"]), helper.make_node("Identity", ["i"], ["y"])]
    _, change = sanitize(one_graph(tmp_path, nodes, [X], [Y]))
    assert change.after.nodes_by_type == {"NoSuchOperator": 1}
    assert "ONNX has no operator" in caplog.text


@pytest.mark.representatives("fuse", "remove_unused")
@pytest.mark.parametrize("off", ["fold_constants", "remove_unused", "deduplicate", "simplify", "fuse"])
def test_each_part_can_be_switched_off(tmp_path: Path, off: str) -> None:
    source = models.make_cnn(tmp_path / "source.onnx")
    everything = sanitize(source)[1].after.node_count
    target, change = sanitize(source, **{off: False})
    assert change.after.node_count >= everything
    assert_equal(source, target, feed_of("cnn"), tolerance=2e-6)


def test_the_step_reports_what_it_did(tmp_path: Path) -> None:
    source = models.make_cnn(tmp_path / "source.onnx")
    out = tmp_path / "out"
    out.mkdir()
    step = Sanitize.model_validate_json(
        '{"fold_size_threshold": "64 MiB", "passes": 1, "input_shapes": {"x": [1, 3, 16, 16]}}'
    )
    log = logging.getLogger("test")
    context = Context("clean", {}, {}, tmp_path, log, lambda *_: None, tmp_path)
    result = step.run(Onnx(source, "source", ""), out, context)
    assert result.change is not None
    assert result.summary.startswith(f"38 -> {result.change.after.node_count} nodes, ")
    assert result.metrics["nodes"] == result.change.after.node_count
    assert summarize_model(load_model(out / "model.onnx")) == result.change.after
    assert result.change.notes


UNARY = ["Relu", "Neg", "Identity", "Dropout", "Abs", "Tanh"]
BINARY = ["Add", "Sub", "Mul", "Max"]
SHAPES = [
    "Reshape",
    "Transpose",
    "Unsqueeze",
    "Squeeze",
    "Flatten",
    "ShapeReshape",
    "Slice",
    "Concat",
    "Cast",
    "Expand",
]


class RandomGraph(models.GraphBuilder):
    """A graph drawn step by step: every tensor has 24 elements, so that shapes can be mixed freely."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.live: dict[str, tuple[int, ...]] = {"x": (2, 3, 4)}

    def keep(self, name: str, shape: tuple[int, ...]) -> None:
        self.live[name] = shape

    def grow(self, kind: str, first: str, second: str) -> None:
        shape = self.live[first]
        if kind in UNARY:
            self.keep(self.op(kind, first), shape)
        elif kind in BINARY:
            other = second if self.live[second] == shape else self._constant(second, shape)
            self.keep(self.op(kind, first, other), shape)
        else:
            getattr(self, f"grow_{kind.lower()}")(first, shape)

    def _constant(self, hint: str, shape: tuple[int, ...]) -> str:
        value = [0.0, 1.0, 2.0, -0.5][len(hint) % 4]
        return self.floats(value) if len(hint) % 3 else self.floats(np.full(shape, value))

    def grow_reshape(self, name: str, shape: tuple[int, ...]) -> None:
        choice = len(self.nodes) % 6
        if choice == 5:  # 0 copies the input's dimension
            self.keep(self.op("Reshape", name, self.ints(0, -1)), (shape[0], 24 // shape[0]))
            return
        target = [(24,), (4, 6), (2, 3, 4), (2, 12), (6, 1, 4)][choice]
        self.keep(self.op("Reshape", name, self.ints(*target)), target)

    def grow_transpose(self, name: str, shape: tuple[int, ...]) -> None:
        perm = [int(p) for p in np.random.default_rng(len(self.nodes)).permutation(len(shape))]
        self.keep(self.op("Transpose", name, perm=perm), tuple(shape[p] for p in perm))

    def grow_unsqueeze(self, name: str, shape: tuple[int, ...]) -> None:
        axis = len(self.nodes) % (len(shape) + 1)
        if len(shape) < 5:
            self.keep(self.op("Unsqueeze", name, self.ints(axis)), (*shape[:axis], 1, *shape[axis:]))

    def grow_squeeze(self, name: str, shape: tuple[int, ...]) -> None:
        if 1 in shape:
            axis = shape.index(1)
            self.keep(self.op("Squeeze", name, self.ints(axis)), (*shape[:axis], *shape[axis + 1 :]))

    def grow_flatten(self, name: str, shape: tuple[int, ...]) -> None:
        self.keep(self.op("Flatten", name, axis=1), (shape[0], 24 // shape[0]))

    def grow_shapereshape(self, name: str, shape: tuple[int, ...]) -> None:
        """Add the nodes that exporters write for x.view(x.shape[0], -1)."""
        first = self.op("Gather", self.op("Shape", name), self.const(0, np.int64))
        target = self.op("Concat", self.op("Unsqueeze", first, self.ints(0)), self.ints(-1), axis=0)
        self.keep(self.op("Reshape", name, target), (shape[0], 24 // shape[0]))

    def grow_slice(self, name: str, shape: tuple[int, ...]) -> None:
        self.keep(self.op("Slice", name, self.ints(0), self.ints(2**62), self.ints(len(shape) - 1)), shape)

    def grow_concat(self, name: str, shape: tuple[int, ...]) -> None:
        self.keep(self.op("Concat", name, axis=0), shape)

    def grow_cast(self, name: str, shape: tuple[int, ...]) -> None:
        wide = self.op("Cast", name, to=TensorProto.DOUBLE)
        self.keep(self.op("Cast", wide, to=TensorProto.FLOAT), shape)

    def grow_expand(self, name: str, shape: tuple[int, ...]) -> None:
        self.keep(self.op("Expand", name, self.op("Shape", name)), shape)


steps_of_a_graph = st.lists(
    st.tuples(st.sampled_from(UNARY + BINARY + SHAPES), st.integers(0, 10**6), st.integers(0, 10**6)),
    min_size=1,
    max_size=14,
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps_of_a_graph, dynamic=st.booleans(), outputs=st.integers(1, 3))
def test_any_small_graph_keeps_its_outputs(
    tmp_path: Path, steps: list[tuple[str, int, int]], dynamic: bool, outputs: int
) -> None:
    graph = RandomGraph(0)
    for kind, first, second in steps:
        names = list(graph.live)
        graph.grow(kind, names[first % len(names)], names[second % len(names)])
    result = [name for name in graph.live if name != "x"][-outputs:]
    if not result:
        return
    infos = [models.tensor(name, ["n" if dynamic else 2, 3, 4] if name == "x" else None) for name in ("x", *result)]
    source = models.save(graph.model(infos[:1], infos[1:]), tmp_path / "source.onnx")
    target, change = sanitize(source)
    assert change.after.node_count <= change.before.node_count
    feed = {"x": random_floats(2, 3, 4)}
    for before, after in zip(run_model(source, feed), run_model(target, feed), strict=True):
        np.testing.assert_array_equal(after, before)


def _int8_weights() -> tuple[list[onnx.NodeProto], dict[str, Array]]:
    nodes = [
        helper.make_node("Cast", ["q"], ["f"], to=TensorProto.FLOAT, name="widen"),
        helper.make_node("Mul", ["f", "s"], ["w"], name="scale"),
        helper.make_node("MatMul", ["x", "w"], ["y"], name="product"),
    ]
    return nodes, {"q": np.ones((4, 2**16), np.int8), "s": np.full(1, 0.5, F)}


def _tied() -> tuple[list[onnx.NodeProto], dict[str, Array]]:
    nodes = [
        helper.make_node("ArgMax", ["x"], ["i"], axis=1, keepdims=0),
        helper.make_node("Gather", ["table", "i"], ["e"]),
        helper.make_node("Transpose", ["table"], ["head"], perm=[1, 0]),
        helper.make_node("Add", ["x", "e"], ["h"]),
        helper.make_node("MatMul", ["h", "head"], ["y"]),
    ]
    return nodes, {"table": random_floats(2**15, 4)}


def _expanded() -> tuple[list[onnx.NodeProto], dict[str, Array]]:
    nodes = [
        helper.make_node("Expand", ["row", "shape"], ["mask"]),
        helper.make_node("Mul", ["mask", "s"], ["scaled"]),
        helper.make_node("MatMul", ["x", "scaled"], ["y"]),
    ]
    return nodes, {"row": random_floats(1, 2**15), "shape": np.array([4, 2**15]), "s": np.full(1, 0.5, F)}


def _shared_conv() -> tuple[list[onnx.NodeProto], dict[str, Array]]:
    """The heads of EfficientDet: one Conv for all levels, and a BatchNormalization for each."""
    nodes = [helper.make_node("Unsqueeze", ["x", "axes"], ["image"])]
    for level in ("a", "b"):
        bn = [f"{level}_{name}" for name in ("gamma", "beta", "mean", "variance")]
        nodes.append(helper.make_node("Conv", ["image", "kernel"], [f"{level}_conv"], name=level))
        nodes.append(helper.make_node("BatchNormalization", [f"{level}_conv", *bn], [f"{level}_bn"]))
    nodes.append(helper.make_node("Sub", ["a_bn", "b_bn"], ["y"]))
    weights = {"kernel": random_floats(2**14, 2, 1, 1), "axes": np.array([0, 3])}
    numbers = {
        f"{level}_{name}": np.full(2**14, 2 + (level == "b"), F)
        for level in "ab"
        for name in ("gamma", "beta", "mean", "variance")
    }
    return nodes, weights | numbers


@pytest.mark.parametrize("case", [_int8_weights, _tied, _expanded])
def test_a_model_does_not_grow(
    case: Callable[[], tuple[list[onnx.NodeProto], dict[str, Array]]], tmp_path: Path
) -> None:
    nodes, weights = case()
    source = one_graph(tmp_path, nodes, [X], [models.tensor("y", None)], weights)
    target, change = sanitize(source)
    assert change.after.initializer_bytes <= change.before.initializer_bytes
    assert any(note.startswith("not folded: ") for note in change.notes)
    assert_equal(source, target, {"x": random_floats(2, 4)})
    _, grown = sanitize(source, fold_size_threshold=2**26)
    assert grown.after.initializer_bytes > 2 * 64 * 2**10 + change.before.initializer_bytes
    assert not any(note.startswith("not folded") for note in grown.notes)


def test_a_chain_that_frees_what_it_adds_is_folded(tmp_path: Path) -> None:
    """The Cast alone would double the model."""
    nodes = [
        helper.make_node("Cast", ["half"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Slice", ["f", "start", "end"], ["part"]),
        helper.make_node("MatMul", ["x", "part"], ["y"]),
    ]
    weights: dict[str, Array] = {
        "half": random_floats(8, 2**15).astype(np.float16), "start": np.array([0]), "end": np.array([4])
    }  # fmt: skip
    source = one_graph(tmp_path, nodes, [X], [models.tensor("y", None)], weights)
    target, change = sanitize(source)
    assert [node.op_type for node in onnx.load(target).graph.node] == ["MatMul"]
    assert change.after.initializer_bytes <= change.before.initializer_bytes
    assert_equal(source, target, {"x": random_floats(2, 4)})


def test_weights_that_a_dropped_branch_reads_are_folded_or_removed(tmp_path: Path) -> None:
    """As in silero VAD: LSTM weights that another branch reads too. Its nodes are no readers once it is dropped."""
    weights = {"w": random_floats(2**15, 4), "unread": random_floats(2**15, 1), "yes": np.array(True)}
    kept = [
        helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "t"], ["kept"]),
    ]
    dropped = [
        helper.make_node("ArgMax", ["x"], ["i"], axis=1, keepdims=0),
        helper.make_node("Gather", ["w", "i"], ["row"]),
        helper.make_node("Gather", ["unread", "i"], ["number"]),
        helper.make_node("Concat", ["row", "number"], ["dropped"], axis=-1),
    ]
    then_branch, else_branch = (
        helper.make_graph(nodes, name, [], [models.tensor(name, None)])
        for name, nodes in (("kept", kept), ("dropped", dropped))
    )
    choice = helper.make_node("If", ["yes"], ["y"], then_branch=then_branch, else_branch=else_branch)
    source = one_graph(tmp_path, [choice], [X], [models.tensor("y", None)], weights)
    target, change = sanitize(source)
    assert [node.op_type for node in onnx.load(target).graph.node] == ["MatMul"]
    assert change.after.initializer_bytes == weights["w"].nbytes
    assert_equal(source, target, {"x": random_floats(2, 4)})


def test_nodes_whose_size_depends_on_computed_values_are_folded(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["numbers"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("NonZero", ["f"], ["indices"]),
        helper.make_node("Gather", ["x", "indices"], ["y"], axis=1),
    ]
    source = one_graph(tmp_path, nodes, [X], [models.tensor("y", None)], {"numbers": np.array([0, 5, 0, 7])})
    target, _ = sanitize(source)
    assert [node.op_type for node in onnx.load(target).graph.node] == ["Gather"]
    assert_equal(source, target, {"x": random_floats(2, 4)})


def test_the_kernel_of_several_convolutions_is_not_copied(tmp_path: Path) -> None:
    nodes, weights = _shared_conv()
    source = one_graph(tmp_path, nodes, [X], [models.tensor("y", None)], weights)
    target, change = sanitize(source)
    assert change.after.initializer_bytes <= change.before.initializer_bytes
    assert_equal(source, target, {"x": random_floats(2, 4)})


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4])
def test_constants_of_few_bits_are_folded(dtype: Any, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
        helper.make_node("Cast", ["t"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "f"], ["y"]),
    ]
    values = np.arange(-8, 8).reshape(4, 4).astype(dtype)
    source = one_graph(tmp_path, nodes, [X], [Y], {"w": values}, opset=21)
    target, _ = sanitize(source)
    model = onnx.load(target)
    assert [node.op_type for node in model.graph.node] == ["MatMul"]
    [weight] = [numpy_helper.to_array(w) for w in model.graph.initializer if w.name == model.graph.node[0].input[1]]
    np.testing.assert_array_equal(weight, values.astype(np.float32).T)
