"""The compiled layers of an engine, from what its builder said of them while it built.

A detailed build tells every layer in one line: `Name: ..., LayerType: ..., Inputs: [ { Name: x, Dimensions: [1,3],
Strides: [...], StrideOrder: [...], Datatype: Float, Format: (Linear) ... }], Constants: [...], Outputs: [...],
TacticName: ..., StreamId: 0, Metadata: [ONNX Layer: a][ONNX Layer: b]`. Names are the model's and may hold anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from pydantic import JsonValue

Entry = dict[str, JsonValue]

_TENSOR_END = r"Dimensions: \[[-\d,]*\], "
_BEGIN = re.compile(rf"^Name: (?=.*?, LayerType: \w+, Inputs: \[(?:\]| \{{ Name: .*?, {_TENSOR_END}))", re.M | re.S)
_LAYER = re.compile(
    r"Name: (?P<name>.*?), LayerType: (?P<type>\w+), Inputs: \[(?P<inputs>.*?)\], Constants: \[(?P<constants>.*?)\], "
    r"Outputs: \[(?P<outputs>.*?)\], TacticName: (?P<tactic>[^,]*), StreamId: (?P<stream>-?\d+)(?P<more>.*?), "
    r"Metadata: (?P<metadata>.*)",
    re.DOTALL,
)
_TENSOR = re.compile(
    r"\{ Name: (?P<name>.*?), Dimensions: \[(?P<dims>[-\d,]*)\](?:, Strides: \[(?P<strides>[-\d,]*)\], "
    r"StrideOrder: \[[-\d,]*\])?, Datatype: (?P<dtype>\w+), Format: (?P<format>.*?) \}",
    re.DOTALL,
)
_REST = re.compile(r"\n\s*\n(?:I/O Tensors|Bindings|Engine Metadata):.*", re.DOTALL)


def read_compiled_layers(message: str) -> list[Entry]:
    """Return the layers in the order they run, with the keys of the engine inspector's JSON."""
    text = _REST.sub("", message)
    starts = [found.start() for found in _BEGIN.finditer(text)]
    lines = (text[start:end] for start, end in pairwise([*starts, len(text)]))
    return [entry for entry in map(_entry, lines) if entry is not None]


def _entry(line: str) -> Entry | None:
    found = _LAYER.fullmatch(line.rstrip("\n"))
    if found is None:
        return None
    return {
        "Name": found["name"],
        "LayerType": found["type"],
        "Inputs": list(_tensors(found["inputs"])),
        "Constants": list(_tensors(found["constants"])),
        "Outputs": list(_tensors(found["outputs"])),
        "TacticName": found["tactic"],
        "StreamId": int(found["stream"]),
        "Metadata": found["metadata"],
    }


def _tensors(text: str) -> Iterator[Entry]:
    for found in _TENSOR.finditer(text):
        yield {
            "Name": found["name"],
            "Dimensions": _numbers(found["dims"]),
            "Strides": _numbers(found["strides"] or ""),
            "Datatype": found["dtype"],
            "Format": found["format"],
        }


def _numbers(text: str) -> list[JsonValue]:
    return [int(number) for number in text.split(",") if number]
