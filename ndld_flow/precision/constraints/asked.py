"""What precision was asked for, beside the layers that came of it."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ndld_flow.records.precision import PRECISION_KEY
from ndld_flow.records.profile import Layer


def asked_precisions(model: Path) -> Mapping[str, str]:
    """`read_constraints`; most models ask for none, and are not read by onnx to know it."""
    if not _mentions(model, PRECISION_KEY):
        return {}
    from ndld_flow.precision.constraints.constraints import read_constraints

    return read_constraints(model)


def put_beside(layers: Sequence[Layer], asked: Mapping[str, str]) -> tuple[Layer, ...]:
    """The layers, each with what was asked for the nodes it came from."""
    if not asked:
        return tuple(layers)
    return tuple(
        layer.model_copy(update={"asked_precision": join_precisions(asked.get(node, "") for node in layer.onnx_nodes)})
        for layer in layers
    )


def join_precisions(precisions: Iterable[str]) -> str:
    """`fp32`, or `fp32, fp16` where they differ; nodes that nothing was asked for do not count."""
    return ", ".join(dict.fromkeys(filter(None, precisions)))


def _mentions(model: Path, word: str) -> bool:
    try:
        with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return data.find(word.encode()) >= 0
    except ValueError:  # the file is empty
        return False
