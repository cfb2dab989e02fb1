"""Files that no exporter writes, or only one: errors that name the place instead of a crash or all memory."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, parser

from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.graph.sanitize.pipeline import sanitize_file
from ndld_flow.graph.sanitize.settings import SanitizeSettings
from ndld_flow.models import shape_inference
from ndld_flow.models.files import load_model
from ndld_flow.models.shape_inference import light_proto, propagates_little_data
from ndld_flow.samples.value_files import open_array
from tests.support.command_line import ndld_flow


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def text_model(text: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {text}')


CYCLES = {
    "two": "(float[3] x) => (float[3] b) { a = Add(x, b) b = Relu(a) }",
    "itself": "(float[3] x) => (float[3] a) { a = Add(x, a) }",
    "through a body": """(float[3] x, bool c) => (float[3] b) {
        a = If(c) <then_branch = t () => (float[3] p) { p = Relu(b) },
                     else_branch = e () => (float[3] q) { q = Relu(x) }>
        b = Relu(a)
    }""",
}


@pytest.mark.parametrize("name", CYCLES)
def test_nodes_in_a_cycle_are_an_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cycle"):
        load_model(saved(text_model(CYCLES[name]), tmp_path))


def test_nodes_in_another_order_are_none(tmp_path: Path) -> None:
    model = text_model("(float[3] x) => (float[3] b) { b = Relu(a) a = Add(x, x) }")
    assert len(load_model(saved(model, tmp_path)).graph) == 2


@pytest.mark.parametrize(("key", "value"), [("offset", "-4"), ("offset", "a"), ("length", "-16"), ("length", "1e9")])
def test_external_data_at_no_position_is_an_error(key: str, value: str, tmp_path: Path) -> None:
    model = text_model("(float[4] x) => (float[4] y) { y = Add(x, w) }")
    tensor = TensorProto(name="w", data_type=1, dims=[4], data_location=TensorProto.EXTERNAL)
    for name, text in {"location": "w.bin", "offset": "0", "length": "16", key: value}.items():
        tensor.external_data.add(key=name, value=text)
    model.graph.initializer.append(tensor)
    (tmp_path / "w.bin").write_bytes(bytes(64))
    with pytest.raises(ModelError, match="'w'") as caught:
        load_model(saved(model, tmp_path))
    assert value in str(caught.value)


def test_a_sequence_of_maps_keeps_its_type(tmp_path: Path) -> None:
    """The default of skl2onnx for classifiers, which onnx_ir cannot read."""
    scores = helper.make_node("ZipMap", ["p"], ["probabilities"], domain="ai.onnx.ml", classlabels_int64s=[0, 1])
    of_class = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(1, None))
    output = helper.make_value_info("probabilities", helper.make_sequence_type_proto(of_class))
    graph = helper.make_graph([scores], "g", [helper.make_tensor_value_info("p", 1, ["N", 2])], [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("ai.onnx.ml", 3)], ir_version=8)
    path = saved(model, tmp_path)
    sanitized = tmp_path / "sanitized.onnx"
    sanitize_file(path, sanitized, SanitizeSettings())
    assert onnx.load(sanitized).graph.output[0].type == output.type
    (tmp_path / "recipe.yaml").write_text(
        "model: model.onnx\n"
        "steps: {agree: {step: check_accuracy, candidate: source}, "
        "speed: {step: profile, runs: 1, passes: 2, duration: 0, stable: 0, warmup: 0}}\n"
    )
    assert ndld_flow("run", "recipe.yaml", cwd=tmp_path).returncode == 0


def sparse(elements: int) -> onnx.ModelProto:
    model = text_model("(int64[1] i) => (int64[1] y) { y = Gather(w, i) }")
    values = helper.make_tensor("w", TensorProto.INT64, [1], [1])
    positions = helper.make_tensor("", TensorProto.INT64, [1], [5])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, positions, [elements]))
    return model


def dense(elements: int) -> onnx.ModelProto:
    model = text_model("(int64[1] i) => (float[1] y) { y = Gather(w, i) }")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(elements, np.float32), "w"))
    return model


def declared(elements: int) -> onnx.ModelProto:
    return text_model(f"(float[{elements}] w, int64[1] i) => (float[1] y) {{ y = Gather(w, i) }}")


@pytest.mark.parametrize("make", [sparse, dense, declared])
def test_vectors_without_values_limit_data_propagation(make: Callable[[int], onnx.ModelProto], tmp_path: Path) -> None:
    """onnx keeps a message for each element of a vector of known length."""
    for elements, little in ((2**23, False), (2**18, True)):
        proto = light_proto(load_model(saved(make(elements), tmp_path)))
        assert propagates_little_data(proto.graph) == little


def vector(nodes: str, size: int = 2**27) -> str:
    """Return a model of a few bytes that computes on a vector of this size."""
    return (
        f"(int64[1] i) => (int64[1] y) <int64[1] size = {{{size}}}, int64 count = {{{size}}}, int64 zero = {{0}}, "
        f"int64 one = {{1}}, int64[1] item = {{7}}, int64[2] ends = {{0, {size}}}> {{ {nodes} y = Gather(v, i) }}"
    )


@pytest.mark.parametrize(
    "nodes",
    [
        "v = ConstantOfShape <value = int64[1] {0}> (size)",
        "s = Concat <axis = 0> (size) v = ConstantOfShape <value = int64[1] {0}> (s)",
        "v = Expand(item, size)",
        "v = Tile(item, size)",
        "v = Range(zero, count, one)",
        "v = Pad(item, ends)",
    ],
)
def test_vectors_that_a_node_makes_limit_data_propagation(
    nodes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of 100 bytes took gigabytes."""
    assert shape_inference.propagates_little_data(text_model(vector(nodes, size=100)).graph)
    # The limit of memory is for what this does not find: where it hits, C++ may end the process.
    assert not shape_inference.propagates_little_data(text_model(vector(nodes)).graph)
    monkeypatch.setattr(shape_inference, "_PROPAGATION_BYTES", 64 << 20)
    before, limits = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, resource.getrlimit(resource.RLIMIT_AS)
    model = load_model(saved(text_model(vector(nodes)), tmp_path))
    shape_inference.infer_shapes(model, strict=True)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000
    assert model.graph.outputs[0].shape == ir.Shape([1])
    assert resource.getrlimit(resource.RLIMIT_AS) == limits


@pytest.mark.parametrize("shape", ["(True, 3)", "(3, False)", "(-1, 3)"])
def test_a_shape_without_numbers_is_an_error(shape: str, tmp_path: Path) -> None:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    path = tmp_path / "x.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(12))
    with pytest.raises(RequestError):
        open_array(path, "x")
