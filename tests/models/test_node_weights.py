"""The weights of a model by the operators that read them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from ndld_flow.models.node_weights import quantized_share, weight_bytes_by_operator


def save(text: str, path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}'), path)
    return path


@pytest.mark.parametrize("place", ["initializer", "Constant"])
def test_weights_of_constants_count_as_those_of_initializers(place: str, tmp_path: Path) -> None:
    path = save(
        "g (float[2, 4] x) => (float[2, 3] y) { w = Constant<value: tensor>() y = MatMul(x, w) }".replace(
            "<value: tensor>", "<value_float: float = 0.0>"
        ),
        tmp_path / "model.onnx",
    )
    model = onnx.load(path)
    weight = onnx.numpy_helper.from_array(np.ones((4, 3), np.float32), "w")
    (constant, product) = model.graph.node
    model.graph.ClearField("node")
    if place == "initializer":
        model.graph.initializer.append(weight)
        model.graph.node.extend([product])
    else:
        constant.ClearField("attribute")
        constant.attribute.append(onnx.helper.make_attribute("value", weight))
        model.graph.node.extend([constant, product])
    onnx.save(model, path)
    assert weight_bytes_by_operator(path) == {"MatMul": 48}


def test_a_table_of_bytes_that_is_looked_up_is_no_quantized_weight(tmp_path: Path) -> None:
    """Such as letters of a vocabulary in a model of floats."""
    table = save(
        "g (int64[2] x) => (uint8[2] y) <uint8[4] letters = {1, 2, 3, 4}> { y = Gather(letters, x) }",
        tmp_path / "table.onnx",
    )
    assert quantized_share(table) == 0
    small = save(
        "g (float[1] x) => (float[4] y) <int8[4] w = {1, 2, 3, 4}, float s = {0.5}>"
        " { d = DequantizeLinear(w, s) y = Mul(d, x) }",
        tmp_path / "small.onnx",
    )
    assert quantized_share(small) == pytest.approx(0.8)
    embedded = save(
        "g (int64[2] x) => (float[2] y) <uint8[4] w = {1, 2, 3, 4}, float s = {0.5}>"
        " { g = Gather(w, x) y = DequantizeLinear(g, s) }",
        tmp_path / "embedded.onnx",
    )
    assert quantized_share(embedded) == pytest.approx(0.8), "a table of words is dequantized after its lookup"
