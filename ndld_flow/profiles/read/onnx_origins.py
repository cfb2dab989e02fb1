"""Find the ONNX nodes that a TensorRT layer was built from.

With detailed profiling verbosity the engine lists them: `[ONNX Layer: Conv_0]`, separated by the characters 1e and 1f.
Otherwise a layer's name is composed of node names: `Conv_0 + Relu_1`, `PWN(Sigmoid_3, Mul_4)`, `A || B`, and
`{ForeignNode[first...last]}`, which names the first and the last node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_METADATA = re.compile(r"\[ONNX Layer: (.*?)\](?=[\x1e\x1f\s,;]*(?:\[|\Z))", re.DOTALL)
_FOREIGN = re.compile(r"\{ForeignNode\[(.*?)\]\}", re.DOTALL)
_POINTWISE = re.compile(r"PWN\(|\)")
_JOINS = re.compile(r" \+ |, | \|\| ")
_OWN = re.compile(
    r"\(Unnamed Layer|\{ForeignNode|__my[el]|"
    r"(?:un)?squeeze_(?:before|after|node)_|reshape_(?:before|after)_|copied_|onnx::|shuffle_between_|"
    r"(?:Host|Shape|Device)\w*To\w+|[^^]*\^bb\^"
)
"""Prefixes of names that TensorRT or an exporter generates; no node's name starts with them."""
_WEIGHT = re.compile(r".*\.(?:weight|bias)(?:_scale|_zero_point)?", re.DOTALL)
"""Quantised weights appear in a layer's name next to its nodes."""
_COPY = "Reformatting CopyNode "
_MYELIN_END = re.compile(r"_myl\d+_\d+\Z")
"""Suffix by which Myelin numbers its kernels."""
_MAX_NODES = 2_000


def nodes_of_metadata(metadata: str) -> tuple[str, ...]:
    """Return the nodes listed in an engine's metadata, each once."""
    return _each_once(found[1] for found in _METADATA.finditer(metadata))


def nodes_of_name(name: str) -> tuple[str, ...]:
    """Return the nodes that a layer's name is composed of; none for layers that TensorRT inserted."""
    if name.startswith(_COPY):
        return ()
    return _each_once(_parts(_MYELIN_END.sub("", name)))


def _parts(name: str) -> Iterator[str]:
    for foreign in _FOREIGN.finditer(name):
        yield from foreign[1].split("...", 1)
    rest = _POINTWISE.sub(" + ", _FOREIGN.sub("", name)) if "PWN(" in name else _FOREIGN.sub("", name)
    yield from _JOINS.split(rest)


def _each_once(names: Iterator[str]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for name in names:
        plain = name.strip(" +,\x1e\x1f")
        if plain and not (_OWN.match(plain) or _WEIGHT.fullmatch(plain)) and len(found) < _MAX_NODES:
            found[plain] = None
    return tuple(found)
