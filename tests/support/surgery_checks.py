"""Operations carried out on small models, and what the models compute before and after."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort

from ndld_flow.graph.edit.edit_file import Entry, edit_file
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.models.files import load_model

Array = npt.NDArray[Any]


def operate(model: onnx.ModelProto, *operations: Operation) -> tuple[onnx.ModelProto, list[str]]:
    """The model after the operations, checked as the step does it, and the notes."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "source.onnx", Path(folder) / "target.onnx"
        onnx.save(model, source)
        edited = EditedModel(model=load_model(source), path=source)
        entries = [Entry(f"operations[{index}]", operation) for index, operation in enumerate(operations)]
        change = edit_file(edited, entries, target)
        onnx.checker.check_model(target, full_check=True)
        return onnx.load(target), list(change.notes)


def parsed(text: str, **weights: Array) -> onnx.ModelProto:
    """A model from ONNX's own text; weights become initializers."""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    return model


def outputs_of(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """Return the outputs of ONNX Runtime without graph optimizations."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def assert_same(before: list[Array], after: list[Array], tolerance: float = 0.0) -> None:
    """Outputs are equal to the bit, or within a tolerance."""
    assert len(before) == len(after)
    for item, other in zip(before, after, strict=True):
        assert item.shape == other.shape
        assert item.dtype == other.dtype
        if tolerance:
            np.testing.assert_allclose(item, other, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(item, other)


def op_types(model: onnx.ModelProto) -> list[str]:
    """Operators of the main graph, in order."""
    return [node.op_type for node in model.graph.node]


def numbers(*shape: int, seed: int = 0, dtype: type[np.generic] = np.float32) -> Array:
    """Normally distributed numbers, the same each time."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)
