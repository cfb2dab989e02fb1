"""Helpers that run convert_fp16 and check its result."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest

from ndld_flow.step import Context, Result
from ndld_flow.steps.convert_fp16 import ConvertFp16
from ndld_flow.store.kinds import Onnx
from tests.support import models

Array = npt.NDArray[Any]
Feeds = dict[str, Array]
LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
RANDOM = np.random.default_rng(0)


def normal(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def convert(model: onnx.ModelProto | Path, folder: Path, settings_json: str = "{}") -> tuple[Path, Result]:
    """Run the step on a model; return the path of the written model and the result of the step."""
    if isinstance(model, onnx.ModelProto):
        model = models.save(model, folder / "source.onnx")
    out = folder / "out"
    out.mkdir()
    log = logging.getLogger("test.convert_fp16")
    context = Context("half", {}, {}, folder, log, lambda done, total, what: None, folder)
    result = ConvertFp16.model_validate_json(settings_json).run(Onnx(model, "source", ""), out, context)
    return out / "model.onnx", result


def session(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    # Fusing would undo roundings between nodes that are there on other devices.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def run(path: Path, feeds: Feeds) -> dict[str, Array]:
    """Outputs in fp32, with the feeds turned into what the model's inputs want."""
    result = session(path)
    fed_from_outside = (*result.get_inputs(), *result.get_overridable_initializers())
    halves = {i.name for i in fed_from_outside if "float16" in i.type}
    fed = {name: array.astype(np.float16) if name in halves else array for name, array in feeds.items()}
    results = result.run(None, fed)
    return {o.name: np.asarray(r) for o, r in zip(result.get_outputs(), results, strict=True)}


def agree(source: Path, converted: Path, feeds: Feeds, tolerance: float) -> None:
    """Same output names; values within the tolerance of fp32, absolutely and relatively."""
    exact, half = run(source, feeds), run(converted, feeds)
    assert list(exact) == list(half)
    for name, array in exact.items():
        np.testing.assert_allclose(half[name].astype(array.dtype), array, rtol=tolerance, atol=tolerance)


def check(path: Path, strict: bool = True) -> onnx.ModelProto:
    """ONNX's checker with shape inference, and no node name twice; the model without external data."""
    onnx.checker.check_model(path, full_check=strict)
    model = onnx.load(path, load_external_data=False)
    names = Counter(node.name for node in all_nodes(model.graph) if node.name)
    assert [name for name, count in names.items() if count > 1] == []
    return model


def parse_strongly_typed(path: Path) -> None:
    """TensorRT-RTX takes the model as a strongly typed network, which checks every type in it; skips without it."""
    trt = pytest.importorskip("tensorrt_rtx", reason="the extra [rtx] is not installed")
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))  # outlives its parser
    parser = trt.OnnxParser(network, logger)
    assert parser.parse_from_file(str(path)), parser.get_error(0).desc()


def all_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        nodes.append(node)
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                nodes += all_nodes(attribute.g)
    return nodes


def count(model: onnx.ModelProto, op_type: str) -> int:
    return sum(node.op_type == op_type for node in all_nodes(model.graph))


def kinds(values: Iterable[onnx.ValueInfoProto]) -> list[int]:
    return [value.type.tensor_type.elem_type for value in values]


def has_half(converted: onnx.ModelProto) -> bool:
    return b"\x08\x0a" in converted.SerializeToString()  # elem_type 10 of some tensor type
