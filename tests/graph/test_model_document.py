"""Contents of tensors on the page of a model, within the limits on what is read."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from ndld_flow.drawing.graph import HeldTensor, Reading
from ndld_flow.graph import drawn_graph
from ndld_flow.graph.drawn_graph import ContentsReader, read_document
from ndld_flow.models.nodes import constant_of

LIMIT = 400


def read(*sizes: int) -> list[HeldTensor]:
    """Read float32 tensors with these numbers of elements, in order."""
    reader = ContentsReader(values=True)
    for elements in sizes:
        reader.index_of(ir.tensor(np.ones(elements, np.float32)))
    return reader.found


def test_a_tensor_that_just_fits_is_read_and_the_next_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawn_graph, "_LIMIT_TOGETHER_BYTES", LIMIT)
    fits, beyond = read(LIMIT // 4, 1)
    assert fits.numbers is not None and not fits.unread
    assert beyond.numbers is None and "were read first" in beyond.unread
    assert beyond.dtype == "float32" and beyond.first


def test_smaller_tensors_are_read_after_one_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawn_graph, "_LIMIT_TOGETHER_BYTES", LIMIT)
    read_tensors = [tensor.numbers is not None for tensor in read(50, 51, 50, 1)]
    assert read_tensors == [True, False, True, False]


def test_a_tensor_over_its_own_limit_is_not_one_over_that_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawn_graph, "_LIMIT_TOGETHER_BYTES", LIMIT - 4)
    monkeypatch.setattr(drawn_graph, "DEFAULT_LIMIT_BYTES", LIMIT)
    at_limit, over = read(LIMIT // 4, LIMIT // 4 + 1)
    assert "were read first" in at_limit.unread
    assert "were read first" not in over.unread  # `tensor_statistics` decides on its own limit


def test_strings_do_not_count_towards_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawn_graph, "_LIMIT_TOGETHER_BYTES", LIMIT)
    reader = ContentsReader(values=True)
    reader.index_of(ir.StringTensor(np.array([b"x" * 300], dtype=object)))
    reader.index_of(ir.tensor(np.ones(LIMIT // 4, np.float32)))
    assert reader.found[0].unread and reader.found[1].numbers is not None


@pytest.mark.parametrize("values", [True, False])
def test_dtypes_are_spelled_as_in_numpy(values: bool) -> None:
    reader = ContentsReader(values)
    array = np.ones(3, ml_dtypes.float8_e4m3fn)
    tensor = ir.Tensor(array, dtype=ir.DataType.FLOAT8E4M3FN)
    assert reader.index_of(tensor) == reader.index_of(tensor) == 0
    assert [held.dtype for held in reader.found] == ["float8_e4m3fn"]


def test_only_a_model_with_a_version_shows_one(tmp_path: Path) -> None:
    for version, shown in ((0, ""), (7, "7")):
        graph = "g (float[1] x) => (float[1] y) { y = Relu(x) }"
        model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {graph}')
        model.model_version = version
        onnx.save(model, tmp_path / "model.onnx")
        assert dict(read_document(tmp_path / "model.onnx", Reading()).facts).get("Version", "") == shown


def test_one_string_is_a_scalar_and_several_are_a_vector() -> None:
    nodes = [ir.node("Constant", [], {"value_string": "a"}), ir.node("Constant", [], {"value_strings": ["a", "b"]})]
    tensors = [constant_of(node) for node in nodes]
    assert [tuple(tensor.shape) for tensor in tensors if tensor is not None] == [(), (2,)]
