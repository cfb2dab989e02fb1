"""The texts that a model knows for an input of strings: the categories of its encoders and the words of its tables."""

from __future__ import annotations

from collections import defaultdict

import onnx
from onnx import TensorProto

_KNOWN = ("cats_strings", "keys_strings", "pool_strings")
"""Attributes of OneHotEncoder, CategoryMapper, LabelEncoder and TfIdfVectorizer."""
_PASSING = frozenset(("Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "StringNormalizer"))
"""Operators whose result has the texts of their first input, or the same in another case."""


def known_texts(graph: onnx.GraphProto) -> dict[str, tuple[str, ...]]:
    """Return input of strings -> the texts that the operators that read it know, without repetition."""
    origins = {
        value.name: value.name for value in graph.input if value.type.tensor_type.elem_type == TensorProto.STRING
    }
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for node in graph.node if origins else ():
        if not node.input or node.input[0] not in origins:
            continue
        origin = origins[node.input[0]]
        if node.op_type in _PASSING and not node.domain:
            origins[node.output[0]] = origin
        for attribute in node.attribute:
            if attribute.name in _KNOWN:
                texts = (item.decode(errors="replace") for item in attribute.strings)
                found[origin].update(dict.fromkeys(texts))
    return {name: tuple(texts) for name, texts in found.items() if texts}
