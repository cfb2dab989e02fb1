"""The encoder all-MiniLM-L6-v2 as exporters write it, from its trained weights: BERT, the mean over words, the norm."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WORDS = 32
"""Length of the input."""
_SIZE, _HEADS, _LAYERS = 384, 12, 6
Array = np.ndarray[Any, Any]


def write_minilm(weights: Path, path: Path) -> None:
    """Write the model for one text of `WORDS` words."""
    graph = _Graph(_read_safetensors(weights))
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, (1, WORDS)) for name in ("input_ids", "attention_mask")
    ]
    output = graph.encode()
    graph.nodes[-1].output[0] = "sentence_embedding"
    assert output == graph.nodes[-1].name
    embedding = helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, (1, _SIZE))
    proto = helper.make_graph(graph.nodes, "minilm", inputs, [embedding], graph.initializers)
    onnx.save(helper.make_model(proto, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def _read_safetensors(path: Path) -> dict[str, Array]:
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    return {
        name: np.frombuffer(raw, np.float32, int(np.prod(item["shape"])), 8 + length + item["data_offsets"][0]).reshape(
            item["shape"]
        )
        for name, item in header.items()
        if name != "__metadata__" and item["dtype"] == "F32"
    }


class _Graph:
    """Nodes that are added one after the other; each is named as its output."""

    def __init__(self, trained: dict[str, Array]) -> None:
        self.trained = trained
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def constant(self, value: Array, name: str = "") -> str:
        name = name or f"constant_{len(self.initializers)}"
        if not any(initializer.name == name for initializer in self.initializers):
            self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def number(self, value: float) -> str:
        return self.constant(np.array(value, np.float32), f"number_{value}")

    def shape(self, *sizes: int) -> str:
        return self.constant(np.array(sizes, np.int64))

    def linear(self, x: str, name: str) -> str:
        product = self.add("MatMul", x, self.constant(self.trained[f"{name}.weight"].T, f"{name}.weight"))
        return self.add("Add", self.constant(self.trained[f"{name}.bias"], f"{name}.bias"), product)

    def norm(self, x: str, name: str) -> str:
        parts = [self.constant(self.trained[f"{name}.{part}"], f"{name}.{part}") for part in ("weight", "bias")]
        return self.add("LayerNormalization", x, *parts, axis=-1, epsilon=1e-12)

    def encode(self) -> str:
        embeddings = "embeddings"
        words = self.constant(self.trained[f"{embeddings}.word_embeddings.weight"], "word_embeddings")
        fixed = self.trained[f"{embeddings}.position_embeddings.weight"][:WORDS]
        fixed = fixed + self.trained[f"{embeddings}.token_type_embeddings.weight"][0]
        x = self.add("Add", self.add("Gather", words, "input_ids"), self.constant(fixed[None]))
        x = self.norm(x, f"{embeddings}.LayerNorm")
        kept = self.add("Cast", "attention_mask", to=TensorProto.FLOAT)
        wide = self.add("Unsqueeze", kept, self.shape(1, 2))
        hidden = self.add("Mul", self.add("Sub", self.number(1.0), wide), self.number(-10000.0))
        for number in range(_LAYERS):
            x = self._block(x, hidden, f"encoder.layer.{number}")
        columns = self.add("Unsqueeze", kept, self.shape(2))
        total = self.add("ReduceSum", self.add("Mul", x, columns), self.shape(1), keepdims=0)
        mean = self.add("Div", total, self.add("ReduceSum", columns, self.shape(1), keepdims=0))
        return self.add("Div", mean, self.add("ReduceL2", mean, axes=[1], keepdims=1))

    def _block(self, x: str, hidden: str, name: str) -> str:
        query, key, value = self._heads(x, f"{name}.attention.self")
        scores = self.add("MatMul", query, self.add("Transpose", key, perm=[0, 1, 3, 2]))
        scaled = self.add("Div", scores, self.number(float(np.sqrt(_SIZE / _HEADS))))
        weights = self.add("Softmax", self.add("Add", scaled, hidden), axis=-1)
        mixed = self.add("Transpose", self.add("MatMul", weights, value), perm=[0, 2, 1, 3])
        joined = self.linear(self.add("Reshape", mixed, self.shape(1, WORDS, _SIZE)), f"{name}.attention.output.dense")
        x = self.norm(self.add("Add", joined, x), f"{name}.attention.output.LayerNorm")
        inner = self.linear(x, f"{name}.intermediate.dense")
        erf = self.add("Erf", self.add("Div", inner, self.number(float(np.sqrt(2.0)))))
        gelu = self.add("Mul", self.add("Mul", inner, self.add("Add", erf, self.number(1.0))), self.number(0.5))
        return self.norm(self.add("Add", self.linear(gelu, f"{name}.output.dense"), x), f"{name}.output.LayerNorm")

    def _heads(self, x: str, name: str) -> Iterator[str]:
        for part in ("query", "key", "value"):
            split = self.add("Reshape", self.linear(x, f"{name}.{part}"), self.shape(1, WORDS, _HEADS, _SIZE // _HEADS))
            yield self.add("Transpose", split, perm=[0, 2, 1, 3])
