"""Quantization of models as people have them: float16, PyTorch's Gemm, sparse, recurrent, shared and transposed
weights, bodies; each computes close to its source, and each layer that is left has a reason."""

from __future__ import annotations

import importlib.util
import logging
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from ndld_flow.base.errors import RequestError
from ndld_flow.models.files import load_model
from ndld_flow.quantize.isolated_layers import IsolatedLayers
from ndld_flow.quantize.settings import SKIPPED
from ndld_flow.quantize.weight_tensors import stand_in
from ndld_flow.records.measurement import is_warning
from ndld_flow.steps.convert_fp16 import ConvertFp16
from ndld_flow.steps.quantize import Quantize
from tests.support.message_files import CheckMessage
from tests.support.models import GraphBuilder, save, tensor
from tests.support.models_run import Ran, run_step

Array = np.ndarray[Any, Any]
STATIC: dict[str, Any] = {"min_intensity": 0, "samples": 8}
MODES: dict[str, dict[str, Any]] = {
    "static": STATIC,
    "dynamic": {"mode": "dynamic"},
    "weight_only": {"mode": "weight_only", "block_size": 16},
}


def weight(name: str, *shape: int, dtype: Any = np.float32) -> onnx.TensorProto:
    """Return random numbers that depend on the name alone."""
    random = np.random.default_rng(zlib.crc32(name.encode()))
    return numpy_helper.from_array((random.standard_normal(shape) * 0.1).astype(dtype), name)


def info(name: str, *shape: int | str, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def write(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    weights: list[onnx.TensorProto],
    **changed: Any,
) -> Path:
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    for sparse in changed.pop("sparse", []):
        graph.sparse_initializer.append(sparse)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return save(helper.make_model(graph, ir_version=changed.pop("ir", 8), opset_imports=opsets), path)


node = helper.make_node


def linear(path: Path) -> Path:
    """Two nn.Linear with one weight, as PyTorch exports them, and with factors."""
    nodes = [
        node("Gemm", ["x", "w", "b"], ["a"], transB=1),
        node("Gemm", ["a", "w", "b"], ["c"], transB=1, alpha=0.5, beta=2.0),
        node("Gemm", ["c", "w"], ["y"]),
    ]
    return write(path, nodes, [info("x", "n", 64)], [info("y", "n", 64)], [weight("w", 64, 64), weight("b", 64)])


def pruned(path: Path) -> Path:
    """A product in which some channels are zero, or almost."""
    weights = numpy_helper.to_array(weight("w", 64, 64)).copy()
    weights[:, 3], weights[:, 5] = 0.0, 1e-40
    initializers = [numpy_helper.from_array(weights, "w")]
    return write(path, [node("MatMul", ["x", "w"], ["y"])], [info("x", "n", 64)], [info("y", "n", 64)], initializers)


def half(path: Path) -> Path:
    """float16 from input to output, with a tensor that an unquantized node reads too."""
    kind = TensorProto.FLOAT16
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Relu", ["a"], ["b"]),
        node("Gemm", ["b", "v", "c"], ["y"], transB=1),
        node("Erf", ["b"], ["z"]),
    ]
    weights = [
        weight("w", 64, 64, dtype=np.float16),
        weight("v", 64, 64, dtype=np.float16),
        weight("c", 64, dtype=np.float16),
    ]
    outputs = [info("y", "n", 64, kind=kind), info("z", "n", 64, kind=kind)]
    return write(path, nodes, [info("x", "n", 64, kind=kind)], outputs, weights)


def sparse(path: Path) -> Path:
    """A sparse weight, half of whose elements are stored, and a sparse summand."""

    def tensor(name: str, count: int, *shape: int) -> onnx.SparseTensorProto:
        random = np.random.default_rng(1)
        places = np.sort(random.choice(int(np.prod(shape)), count, replace=False)).astype(np.int64)
        return helper.make_sparse_tensor(weight(name, count), numpy_helper.from_array(places, "i"), list(shape))

    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Add", ["a", "c"], ["b"]),
        node("MatMul", ["b", "v"], ["y"]),
    ]
    tensors = [tensor("w", 2048, 64, 64), tensor("c", 20, 64)]
    return write(path, nodes, [info("x", "n", 64)], [info("y", "n", 64)], [weight("v", 64, 64)], sparse=tensors)


def recurrent(path: Path) -> Path:
    """Two LSTM with one weight, a GRU, and a projection."""
    axes = numpy_helper.from_array(np.array([1]), "axes")
    nodes = [
        node("LSTM", ["x", "w", "r"], ["a"], hidden_size=16, name="first"),
        node("Squeeze", ["a", "axes"], ["b"]),
        node("LSTM", ["b", "w", "r"], ["c"], hidden_size=16, name="second"),
        node("Squeeze", ["c", "axes"], ["d"]),
        node("GRU", ["d", "gw", "gr"], ["e"], hidden_size=16, name="gated"),
        node("Squeeze", ["e", "axes"], ["f"]),
        node("MatMul", ["f", "p"], ["y"]),
    ]
    weights = [
        weight("w", 1, 64, 16),
        weight("r", 1, 64, 16),
        weight("gw", 1, 48, 16),
        weight("gr", 1, 48, 16),
        weight("p", 16, 64),
        axes,
    ]
    return write(path, nodes, [info("x", 5, 2, 16)], [info("y", 5, 2, 64)], weights)


def bodies(path: Path) -> Path:
    """One weight read in a Loop, in both branches of an If, and outside."""
    body_nodes = [node("MatMul", ["s", "w"], ["t"]), node("Tanh", ["t"], ["u"]), node("Identity", ["c"], ["d"])]
    state = [info("i", kind=TensorProto.INT64), info("c", kind=TensorProto.BOOL), info("s", 4, 64)]
    body = helper.make_graph(body_nodes, "body", state, [info("d", kind=TensorProto.BOOL), info("u", 4, 64)])
    then = helper.make_graph([node("MatMul", ["l", "w"], ["o"])], "then", [], [info("o", 4, 64)])
    other = [node("Constant", [], ["k"], value=weight("k", 64, 64)), node("MatMul", ["l", "k"], ["p"])]
    branch = helper.make_graph(other, "else", [], [info("p", 4, 64)])
    nodes = [
        node("Loop", ["three", "true", "x"], ["l"], body=body),
        node("If", ["true"], ["m"], then_branch=then, else_branch=branch),
        node("MatMul", ["m", "w"], ["y"]),
    ]
    weights = [
        weight("w", 64, 64),
        numpy_helper.from_array(np.array(3), "three"),
        numpy_helper.from_array(np.array(True), "true"),
    ]
    return write(path, nodes, [info("x", 4, 64)], [info("y", 4, 64)], weights)


def shared(path: Path) -> Path:
    """One weight that a sum reads too, and that is an output: it must stay as it is there."""
    nodes = [node("MatMul", ["x", "w"], ["a"]), node("Add", ["a", "w"], ["y"])]
    outputs = [info("y", 64, 64), info("w", 64, 64)]
    return write(path, nodes, [info("x", 64, 64)], outputs, [weight("w", 64, 64)])


def tied(path: Path) -> Path:
    """A transposed embedding as the output layer."""
    nodes = [
        node("Gather", ["w", "ids"], ["e"]),
        node("Transpose", ["w"], ["t"], perm=[1, 0]),
        node("MatMul", ["e", "t"], ["y"]),
    ]
    ids = info("ids", "n", kind=TensorProto.INT64)
    return write(path, nodes, [ids], [info("y", "n", 100)], [weight("w", 100, 64)])


def attention(path: Path) -> Path:
    """Products of weights and of activations; the weights are in Constant nodes."""
    nodes = [
        node("Constant", [], ["q"], value=weight("q", 64, 64)),
        node("Constant", [], ["k"], value=weight("k", 64, 64)),
        node("MatMul", ["x", "q"], ["a"]),
        node("MatMul", ["x", "k"], ["b"]),
        node("Transpose", ["b"], ["c"], perm=[0, 2, 1]),
        node("MatMul", ["a", "c"], ["d"], name="scores"),
        node("Softmax", ["d"], ["e"]),
        node("MatMul", ["e", "x"], ["y"], name="values"),
    ]
    return write(path, nodes, [info("x", "n", 8, 64)], [info("y", "n", 8, 64)], [])


def named_as_the_quantizer_does(path: Path) -> Path:
    """Tensors that have the names which the quantizer gives to its own."""
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Mul", ["a", "w_scale"], ["b"]),
        node("Add", ["b", "x_quantized"], ["y"]),
    ]
    weights = [weight("w", 64, 64), weight("w_scale", 64), weight("x_quantized", 64)]
    return write(path, nodes, [info("x", "n", 64)], [info("y", "n", 64)], weights)


def shared_bias(path: Path) -> Path:
    """A bias of two layers; the quantizer numbers its copies, and takes the name of a tensor."""
    nodes = [
        node("Gemm", ["x", "w", "b"], ["a"], transB=1),
        node("Tanh", ["a"], ["b0"]),
        node("Abs", ["b0"], ["b1"]),
        node("Sub", ["b0", "b1"], ["b2"]),
        node("Gemm", ["b2", "v", "b"], ["y"], transB=1),
    ]
    weights = [weight("w", 64, 64), weight("v", 64, 64), weight("b", 64)]
    return write(path, nodes, [info("x", "n", 64)], [info("y", "n", 64)], weights)


def odd_biases(path: Path) -> Path:
    """A scalar, a row and a matrix as what Gemm adds."""
    nodes = [
        node("Gemm", ["x", "w", "one"], ["a"], transB=1),
        node("Gemm", ["a", "v", "row"], ["b"]),
        node("Gemm", ["b", "v", "rows"], ["y"]),
    ]
    weights = [
        weight("w", 32, 64),
        weight("v", 32, 32),
        weight("one", 1),
        weight("row", 1, 32),
        weight("rows", 4, 32),
    ]
    return write(path, nodes, [info("x", 4, 64)], [info("y", 4, 32)], weights)


def old(path: Path) -> Path:
    """IR version 3, whose weights had to be inputs."""
    inputs = [info("x", "n", 64), info("w", 64, 64)]
    return write(path, [node("MatMul", ["x", "w"], ["y"])], inputs, [info("y", "n", 64)], [weight("w", 64, 64)], ir=3)


KINDS: dict[str, Callable[[Path], Path]] = {
    item.__name__: item
    for item in (
        linear,
        half,
        sparse,
        recurrent,
        bodies,
        shared,
        tied,
        attention,
        named_as_the_quantizer_does,
        shared_bias,
        odd_biases,
        old,
    )
}


def feeds(path: Path) -> dict[str, Array]:
    random = np.random.default_rng(5)
    result: dict[str, Array] = {}
    for item in session(path).get_inputs():
        shape = [size if isinstance(size, int) else 4 for size in item.shape]
        if item.type == "tensor(int64)":
            result[item.name] = random.integers(0, 100, shape)
        else:
            result[item.name] = random.uniform(-1, 1, shape).astype(np.float16 if "16" in item.type else np.float32)
    return result


def session(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def error(source: Path, candidate: Path) -> float:
    """Return the relative RMS error of the worst output."""
    given = feeds(source)
    pairs = zip(session(source).run(None, given), session(candidate).run(None, given), strict=True)
    squares = [np.mean((a.astype(np.float64) - b) ** 2) / np.mean(a.astype(np.float64) ** 2) for a, b in pairs]
    return float(np.sqrt(max(squares)))


def quantize(source: Path, folder: Path, settings: dict[str, Any]) -> Ran:
    given = {
        name: {"shape": list(values.shape), "range": [0, 100] if values.dtype == np.int64 else [-1.0, 1.0]}
        for name, values in feeds(source).items()
    }
    return run_step(Quantize, source, folder, settings, given)


def notes_of(step: Ran) -> tuple[str, ...]:
    assert step.result.change is not None
    return step.result.change.notes


@pytest.mark.representatives("tied-dynamic", "bodies-static", "shared-dynamic")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_each_mode_computes_close_to_its_source(kind: str, mode: str, tmp_path: Path) -> None:
    source = KINDS[kind](tmp_path / "m.onnx")
    step = quantize(source, tmp_path / "q", MODES[mode])
    written = step.out / "model.onnx"
    assert error(source, written) < 0.05
    assert step.result.metrics["layers"] > 0
    before, after = (session(path).get_outputs() for path in (source, written))
    assert [(item.name, item.type) for item in before] == [(item.name, item.type) for item in after]
    sizes = [path.stat().st_size for path in (source, written)]
    warned = [note for note in notes_of(step) if "not smaller" in note]
    assert bool(warned) == (sizes[1] >= sizes[0])


@pytest.mark.parametrize("mode", MODES)
def test_quantization_after_conversion_to_fp16(mode: str, tmp_path: Path) -> None:
    """The order that people use: half the weights, then quantize what profits."""
    source = attention(tmp_path / "m.onnx")
    converted = run_step(ConvertFp16, source, tmp_path / "h", {"keep_io": False}).out / "model.onnx"
    step = quantize(converted, tmp_path / "q", MODES[mode])
    assert error(converted, step.out / "model.onnx") < 0.05
    assert (step.out / "model.onnx").stat().st_size < source.stat().st_size


def reasons(step: Ran) -> dict[str, str]:
    """Return the names that a note lists -> its reason."""
    notes = [note for note in notes_of(step) if " not quantized (" in note]
    return {note.rpartition(": ")[2]: note.partition("(")[2].partition(")")[0] for note in notes}


@pytest.mark.parametrize(
    ("kind", "settings", "expected"),
    [
        (attention, {"mode": "dynamic"}, {"MatMul scores, MatMul values": "no constant weight"}),
        (recurrent, {"mode": "dynamic"}, {"GRU gated": "operator"}),
        (bodies, STATIC, {"MatMul MatMul_t, MatMul MatMul_p, MatMul MatMul_o": "body"}),
        (linear, {"mode": "dynamic", "exclude": {"nodes": ["Gemm_c"]}}, {"Gemm Gemm_c": "excluded"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_each_layer_that_is_left_has_a_reason(
    kind: Any, settings: dict[str, Any], expected: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    source = kind(tmp_path / "m.onnx")
    if "exclude" in settings:
        model = onnx.load(source)
        for item in model.graph.node:
            item.name = f"Gemm_{item.output[0]}"
        onnx.save(model, source)
    step = quantize(source, tmp_path / "q", settings)
    assert {names: reason for names, reason in reasons(step).items() if reason != "operator" or names in expected} == (
        expected
    )
    logged = "\n".join(caplog.messages)
    for names, reason in expected.items():
        assert reason in SKIPPED
        for name in names.split(", "):
            assert f"not quantized: {name}: {reason}" in logged


def test_layers_that_are_quantized_already_are_kept(tmp_path: Path, check_message: CheckMessage) -> None:
    """Quantizing a second time leaves the first result as it is."""
    source = attention(tmp_path / "m.onnx")
    first = quantize(source, tmp_path / "q", MODES["weight_only"]).out / "model.onnx"
    with pytest.raises(RequestError) as caught:
        quantize(first, tmp_path / "r", MODES["weight_only"])
    check_message(caught.value)
    again = quantize(first, tmp_path / "s", {**MODES["weight_only"], "allow_empty": True})
    kept = [sorted(node.op_type for node in onnx.load(path).graph.node) for path in (first, again.out / "model.onnx")]
    assert kept[0] == kept[1]
    assert kept[0].count("MatMulNBits") == 2


def test_a_weight_that_callers_may_replace_is_kept(tmp_path: Path, check_message: CheckMessage) -> None:
    inputs = [info("x", "n", 64), info("w", 64, 64)]
    nodes = [node("MatMul", ["x", "w"], ["y"])]
    source = write(tmp_path / "m.onnx", nodes, inputs, [info("y", "n", 64)], [weight("w", 64, 64)])
    with pytest.raises(RequestError) as caught:
        quantize(source, tmp_path / "q", MODES["dynamic"])
    check_message(caught.value)


def test_one_random_sample_gives_warnings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = linear(tmp_path / "m.onnx")
    quantize(source, tmp_path / "q", {"min_intensity": 0})
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert all(is_warning(text) for text in warned), "the first screen of a report shows them"
    assert any("those of generated values" in text for text in warned)
    assert any("calibrated on 1 sample, " in text for text in warned)


def test_equal_samples_give_a_warning_and_enough_real_ones_do_not(tmp_path: Path) -> None:
    source = linear(tmp_path / "m.onnx")
    values = np.random.default_rng(1).uniform(-1, 1, (8, 1, 64)).astype(np.float32)
    for name, array in (("real", values), ("equal", np.repeat(values[:1], 8, axis=0))):
        np.save(tmp_path / f"{name}.npy", array.reshape(8, 64))
        given = {"x": {"shape": [1, 64], "data": str(tmp_path / f"{name}.npy")}}
        step = run_step(Quantize, source, tmp_path / name, {"min_intensity": 0}, given)
        notes = " ".join(notes_of(step))
        assert ("8 samples are equal" in notes) == (name == "equal")
        assert "generated values" not in notes
        assert ("set `data` to representative" in notes) == (name == "equal")


@pytest.mark.parametrize(
    ("shape", "axis"), [((6, 5), 1), ((6, 5), 0), ((4, 3, 2, 2), 0), ((4, 3, 2, 2), 1), ((7,), None), ((3, 5), None)]
)
def test_a_stand_in_has_the_extremes_of_each_channel(shape: tuple[int, ...], axis: int | None, tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.onnx",
        [node("Identity", ["w"], ["y"])],
        [],
        [info("y", *shape)],
        [weight("w", *shape)],
    )
    tensor = load_model(path).graph.initializers["w"].const_value
    assert tensor is not None
    small = stand_in(tensor, axis, "w").numpy()
    values = tensor.numpy()
    rest = tuple(index for index in range(len(shape)) if index != axis)
    for extreme in (np.min, np.max):
        np.testing.assert_array_equal(extreme(small, axis=rest), extreme(values, axis=rest))
    assert small.ndim == values.ndim


def test_a_model_on_disk_stays_there(tmp_path: Path) -> None:
    """External data in, external data out, and the same numbers as inline."""
    inline = linear(tmp_path / "m.onnx")
    folder = tmp_path / "outside"
    folder.mkdir()
    model = onnx.load(inline)
    onnx.save(model, folder / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    for mode, settings in MODES.items():
        steps = [
            quantize(path, tmp_path / f"{path.parent.name}-{mode}", settings) for path in (inline, folder / "m.onnx")
        ]
        written = [step.out / "model.onnx" for step in steps]
        assert (written[1].parent / "model.onnx.data").stat().st_size > 0
        assert written[1].stat().st_size < 8192
        given = feeds(inline)
        np.testing.assert_array_equal(*(session(path).run(None, given)[0] for path in written))


@pytest.mark.representatives("True-int8-64", "True-int8-16", "False-int8-32")
@pytest.mark.parametrize("size", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("bits", ["int4", "int8"])
@pytest.mark.parametrize("transposed", [False, True])
def test_blocks_are_those_of_onnxruntimes_own_tool(
    size: int, bits: str, transposed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Piece by piece as in one: 300 rows end in the middle of a block."""
    monkeypatch.setattr("ndld_flow.quantize.weight_only._PIECE_ELEMENTS", 2000)
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    values = (np.random.default_rng(3).standard_normal((300, 40)) * 0.1).astype(np.float32)
    stored = numpy_helper.from_array(values.T.copy() if transposed else values, "w")
    nodes = [node("Gemm", ["x", "w"], ["y"], transB=1)] if transposed else [node("MatMul", ["x", "w"], ["y"])]
    source = write(tmp_path / "m.onnx", nodes, [info("x", "n", 300)], [info("y", "n", 40)], [stored])
    plain = write(
        tmp_path / "plain.onnx",
        [node("MatMul", ["x", "w"], ["y"])],
        [info("x", "n", 300)],
        [info("y", "n", 40)],
        [numpy_helper.from_array(values, "w")],
    )
    tool = MatMulNBitsQuantizer(onnx.load(plain), bits=4 if bits == "int4" else 8, block_size=size)
    tool.process()
    theirs = [numpy_helper.to_array(initializer) for initializer in tool.model.model.graph.initializer]
    step = quantize(source, tmp_path / "q", {"mode": "weight_only", "weights": bits, "block_size": size})
    graph = onnx.load(step.out / "model.onnx").graph
    ours = {initializer.name: numpy_helper.to_array(initializer) for initializer in graph.initializer}
    (read,) = graph.node
    for name, array in zip(read.input[1:], theirs, strict=True):
        np.testing.assert_array_equal(ours[name].ravel(), array.ravel())


def test_hqq_needs_pytorch(tmp_path: Path) -> None:
    settings = {"mode": "weight_only", "weights": "int4", "algorithm": "hqq", "block_size": 16}
    step = Quantize.model_validate(settings)
    if importlib.util.find_spec("torch") is None:
        assert "pip install torch" in step.foresee().lacks[0]
        return
    source = attention(tmp_path / "m.onnx")
    assert error(source, quantize(source, tmp_path / "q", settings).out / "model.onnx") < 0.2
    assert "torch" in step.library_versions()


@pytest.mark.representatives("attention-{'mode': 'dynamic'}", "linear-{'min_intensity': 0, 'samples': 8}")
@pytest.mark.parametrize("settings", [STATIC, {**STATIC, "weights": "int4"}, {"mode": "dynamic"}], ids=str)
@pytest.mark.parametrize("kind", [linear, attention, tied, odd_biases, pruned])
def test_weights_are_those_that_the_quantizer_computes_itself(
    kind: Any, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From stand-ins, and in pieces of a few numbers, the same integers and scales as from whole weights."""
    source = kind(tmp_path / "m.onnx")
    pieces = tmp_path / "pieces"
    with monkeypatch.context() as patch:
        patch.setattr("ndld_flow.quantize.weight_tensors._PIECE_ELEMENTS", 50)
        quantize(source, pieces, settings)
    role = IsolatedLayers._role
    monkeypatch.setattr(IsolatedLayers, "_role", lambda *asked: replace(role(*asked), by_extremes=False))
    quantize(source, tmp_path / "whole", settings)
    models = [onnx.load(folder / "out/model.onnx") for folder in (pieces, tmp_path / "whole")]
    weights = [
        {
            initializer.name: numpy_helper.to_array(initializer)
            for initializer in model.graph.initializer
            if initializer.name.endswith(("_quantized", "_scale", "_zero_point"))
        }
        for model in models
    ]
    assert weights[0] and weights[0].keys() == weights[1].keys()
    for name, array in weights[0].items():
        np.testing.assert_array_equal(array, weights[1][name], err_msg=name)


@pytest.mark.parametrize("activation", ["Relu", "Clip"])
def test_bodies_read_what_an_absorbed_activation_computes(tmp_path: Path, activation: str) -> None:
    """The quantizer absorbs a Relu into the rounding of a Conv; the body of an If must not read the Conv's output."""
    b = GraphBuilder(1)
    h = b.op("Conv", "x", b.weight(8, 8, 1, 1), kernel_shape=[1, 1])
    bounds = [b.floats(np.float32(0)), b.floats(np.float32(1e6))] if activation == "Clip" else []
    h = b.op(activation, h, *bounds)
    h2 = b.op("Conv", h, b.weight(8, 8, 1, 1), kernel_shape=[1, 1])
    then = helper.make_graph(
        [helper.make_node("Neg", [h], ["negative"])], "then", [], [helper.make_tensor_value_info("negative", 1, None)]
    )
    other = helper.make_graph(
        [helper.make_node("Identity", [h2], ["same"])], "else", [], [helper.make_tensor_value_info("same", 1, None)]
    )
    for body in (then, other):
        body.output[0].type.tensor_type.ClearField("shape")
    b.op("If", b.initializer(np.array(True)), then_branch=then, else_branch=other)
    b.nodes[-1].output[0] = "y"
    shape = (1, 8, 6, 6)
    source = save(b.model([tensor("x", [*shape])], [tensor("y", [*shape])]), tmp_path / "model.onnx")
    given = {"x": {"shape": shape, "range": [-1.0, 1.0]}}
    run_step(Quantize, source, tmp_path / "small", {"min_intensity": 0, "samples": 4}, given)
    x = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    exact, rounded = (
        np.asarray(ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0])
        for path in (source, tmp_path / "small/out/model.onnx")
    )
    assert exact.max() <= 0
    assert rounded.max() <= 0
    assert np.abs(rounded - exact).max() < 0.05 * np.abs(exact).max()


def make_language_model(path: Path, width: int = 64, dtype: Any = np.float32) -> Path:
    """An embedding table that the last layer reads too, transposed, as tied language models do."""
    words = 50
    table = np.random.default_rng(0).normal(0, 0.5, (words, width)).astype(dtype)
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"], name="embed", axis=0),
        helper.make_node("Transpose", ["table"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["rows", "turned"], ["logits"], name="head"),
    ]
    outputs = [helper.make_tensor_value_info("logits", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), None)]
    outputs[0].type.tensor_type.shape.SetInParent()
    for size in ("n", "s", words):
        outputs[0].type.tensor_type.shape.dim.add(**{"dim_value" if isinstance(size, int) else "dim_param": size})
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", "s"])
    graph = helper.make_graph(nodes, "main", [ids], outputs, [numpy_helper.from_array(table, "table")])
    return save(helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 18)]), path)


@pytest.mark.representatives("int8-0.01-False-float16", "int4-0.15-False-float32")
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("weights", "tolerance"), [("int4", 0.15), ("int8", 0.01)])
def test_embedding_tables_are_quantized_in_blocks(
    tmp_path: Path, weights: str, tolerance: float, symmetric: bool, dtype: Any
) -> None:
    source = make_language_model(tmp_path / "model.onnx", dtype=dtype)
    settings = {"mode": "weight_only", "weights": weights, "symmetric": symmetric, "op_types": ["Gather", "MatMul"]}
    ran = run_step(Quantize, source, tmp_path / "small", settings, {})
    small = tmp_path / "small/out/model.onnx"
    model = onnx.load(small)
    assert {node.op_type for node in model.graph.node} == {"GatherBlockQuantized", "MatMulNBits"}
    assert "table" not in {tensor.name for tensor in model.graph.initializer}  # nothing reads it in floats
    if weights == "int8" and dtype is np.float16:  # as large as the table, twice
        assert ran.result.change is not None
        assert "each of them: table" in " ".join(ran.result.change.notes)
    else:
        assert small.stat().st_size < 0.75 * source.stat().st_size
    assert ran.result.metrics["quantized"] == 2
    ids = {"ids": np.array([[0, 7, 49], [3, 3, 1]])}
    exact, rounded = (
        np.asarray(ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, ids)[0], np.float64)
        for path in (source, small)
    )
    assert exact.shape == rounded.shape == (2, 3, 50)
    assert np.sqrt(((rounded - exact) ** 2).mean() / (exact**2).mean()) < tolerance


@pytest.mark.parametrize(("changes", "reason"), [({"width": 40}, "weight shape"), ({"axis": 1}, "attributes")])
def test_tables_that_blocks_do_not_fit_are_left(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    source = make_language_model(tmp_path / "model.onnx", width=changes.get("width", 64))
    if "axis" in changes:
        model = onnx.load(source)
        model.graph.node[0].attribute[0].i = 1
        del model.graph.node[1:]
        model.graph.output[0].name = "rows"
        onnx.save(model, source)
    settings = {"mode": "weight_only", "weights": "int4", "op_types": ["Gather"], "allow_empty": True}
    ran = run_step(Quantize, source, tmp_path / "small", settings, {})
    assert ran.result.change is not None
    assert f"not quantized ({reason})" in " ".join(ran.result.change.notes)
