"""The contract of runtimes: what every one of them owes to the code that opens, runs, measures and closes it.

A function for each part; all of them take a request, so that a runtime of a package can be checked too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ndld_flow.accuracy.inside.capture import capture
from ndld_flow.base.errors import ModelError, NdldFlowError
from ndld_flow.models.tensors import Array
from ndld_flow.runtimes.protocol import SessionRequest, Timing
from ndld_flow.runtimes.registry import Runtime

PASSES = 2
NODES = ("product", "sum", "rectified", "largest")
WEIGHTS = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
BIAS = np.array([0.5, -0.5, 0.25, -0.25], np.float32)


def write_model(folder: Path) -> Path:
    """Write a model of four nodes with a dynamic batch, an output of numbers and one of indices."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"], name="product"),
        helper.make_node("Add", ["product", "b"], ["sum"], name="sum"),
        helper.make_node("Relu", ["sum"], ["y"], name="rectified"),
        helper.make_node("ArgMax", ["sum"], ["index"], name="largest", axis=1, keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "contract",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4]),
            helper.make_tensor_value_info("index", TensorProto.INT64, ["batch"]),
        ],
        [numpy_helper.from_array(WEIGHTS, "w"), numpy_helper.from_array(BIAS, "b")],
    )
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def feeds(batch: int) -> dict[str, Array]:
    """Return inputs whose sums have a clear largest element."""
    return {"x": np.linspace(-2, 3, 3 * batch, dtype=np.float32).reshape(batch, 3)}


def expected(given: Mapping[str, Array]) -> dict[str, Array]:
    sums = given["x"] @ WEIGHTS + BIAS
    return {"y": np.maximum(sums, 0), "index": np.argmax(sums, 1)}


def run(request: SessionRequest, model: Path, given: Mapping[str, Array]) -> dict[str, Any]:
    session = request.open(model)
    binding = session.bind(given)
    binding.run()
    outputs = binding.outputs()
    session.close()
    return outputs


def check_description(request: SessionRequest, model: Path) -> None:
    """An open model has the names, types and sizes of its inputs and outputs, and the devices that run it."""
    session = request.open(model)
    facts = session.describe()
    assert [(spec.name, spec.dtype) for spec in facts.inputs] == [("x", "float32")]
    assert [(spec.name, spec.dtype) for spec in facts.outputs] == [("y", "float32"), ("index", "int64")]
    [declared] = facts.inputs
    assert declared.shape is not None
    assert [size if isinstance(size, int) else None for size in declared.shape] == [None, 3]
    assert facts.devices
    assert all(facts.devices)
    assert session.load_ms > 0
    assert isinstance(session.log, str)
    assert int(facts.facts.get("concurrent_inferences", 1)) == 1
    assert list(request.notes(facts, copied=False)) is not None
    session.close()
    session.close()  # nothing forbids a second one


def check_outputs(request: SessionRequest, model: Path) -> None:
    """Outputs are right for several sizes, of the declared types, and equal to the last bit in every pass."""
    session = request.open(model)
    for batch in (2, 5):
        given = feeds(batch)
        binding = session.bind(given)
        binding.run()
        first = {name: np.array(value) for name, value in binding.outputs().items()}
        for name, wanted in expected(given).items():
            assert first[name].dtype == wanted.dtype, name
            np.testing.assert_allclose(first[name], wanted, rtol=2e-2, atol=2e-2)  # it may compute in bf16
        assert binding.output_shapes() == {name: (value.dtype.name, value.shape) for name, value in first.items()}
        binding.run()
        assert {name: value.tobytes() for name, value in binding.outputs().items() if value is not None} == {
            name: value.tobytes() for name, value in first.items()
        }
        if not binding.can_copy:
            assert binding.copy_in() is None
            assert binding.copy_out() is None
        assert binding.device_times() is not None
    assert run(request, model, given)["y"].tobytes() == first["y"].tobytes()  # another session too
    session.close()


def check_refusals(request: SessionRequest, model: Path, folder: Path) -> None:
    """What it cannot run is one of our errors, which names the file or the input."""
    with pytest.raises(ModelError, match="gone"):
        request.open(folder / "gone.onnx")
    damaged = folder / "damaged.onnx"
    damaged.write_bytes(b"no model" * 20)
    with pytest.raises(ModelError, match="damaged"):
        request.open(damaged)
    session = request.open(model)
    for wrong in ({}, {"x": np.zeros((2, 7), np.float32)}):
        with pytest.raises(NdldFlowError, match="x"):
            session.bind(wrong).run()
    session.close()


def check_request(runtime: Runtime, request: SessionRequest) -> None:
    """A measuring process reads the same request from JSON, and profiles know the runtime's names and versions."""
    written = json.loads(json.dumps(request.to_json(), default=str))
    assert runtime.read_request(written) == request
    names = request.names()
    assert names.backend in runtime.settings().backends()
    assert names.library
    assert names.crash_advice
    assert not names.crash_advice.endswith(".")
    assert request.traits(("CPUExecutionProvider",)).on_gpu is not None


def check_layers(request: SessionRequest, model: Path, folder: Path) -> None:
    """Layers have unique names, nodes of the model, and a time of every recorded pass; or there are none."""
    plan = request.plan_recording(model, PASSES)
    recorded = request.record_layers(model, feeds(2), plan, folder, lambda done, total: None)
    if recorded is None:
        return
    found = request.read_layers(model, [recorded], plan, [Timing(latency_ms=[1.0])])
    assert found.layers
    assert not recorded.exists()
    assert len({layer.name for layer in found.layers}) == len(found.layers)
    assert [layer.index for layer in found.layers] == list(range(len(found.layers)))
    assert {name for layer in found.layers for name in layer.onnx_nodes} <= set(NODES)
    passes = sum(found.layer_runs)
    assert passes == len(found.pass_ms) >= 1
    assert all(len(layer.samples_ms) == passes for layer in found.layers)
    assert all(sample >= 0 for layer in found.layers for sample in layer.samples_ms)


def check_inside(request: SessionRequest, model: Path, folder: Path) -> None:
    """Tensors inside of a model are read by their names, also where its weights are in another file."""
    given = feeds(3)
    proto = onnx.load(model)
    large = folder / "large"
    large.mkdir()
    onnx.save(proto, large / "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    for path in (model, large / "model.onnx"):
        [values] = capture(path, ["product", "sum"], [given], request, folder)
        np.testing.assert_allclose(values["product"], given["x"] @ WEIGHTS, rtol=2e-2, atol=2e-2)
        np.testing.assert_allclose(values["sum"], given["x"] @ WEIGHTS + BIAS, rtol=2e-2, atol=2e-2)
    assert sorted(file.name for file in large.iterdir()) == ["model.onnx", "weights.bin"]
    proto.graph.node[0].op_type = "NoSuchOperator"
    with pytest.raises(ModelError, match="NoSuchOperator") as refused:
        request.open_changed(path, proto.SerializeToString())
    assert str(path) in str(refused.value)
