"""Helpers that apply operations to a model and check the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort

from ndld_flow.graph.edit.edit_file import Entry, edit_file
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.inputs import InputSpec
from ndld_flow.models.files import load_model
from ndld_flow.records.model_diff import GraphChange
from ndld_flow.steps.edit import Edit
from tests.support import models

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array]


def parse(text: str) -> onnx.ModelProto:
    """A model from ONNX's text form, its header left out: `agraph (float[2] x) => (float[2] y) {...}`."""
    header = "" if text.lstrip().startswith("<") else '<ir_version: 8, opset_import: ["" : 17]>\n'
    return onnx.parser.parse_model(header + text)


def operations_of(entries: list[object]) -> list[Entry]:
    """Operations as a recipe writes them, `[{"rename_nodes": {...}}, ...]`."""
    step = Edit.model_validate({"operations": tuple(entries)})
    return [Entry(f"operations[{i}] {entry.name}", entry.operation) for i, entry in enumerate(step.operations)]


def edit_path(
    source: Path,
    target: Path,
    *entries: object,
    others: Mapping[str, Path] | None = None,
    inputs: Mapping[str, InputSpec] | None = None,
) -> GraphChange:
    """Apply operations (as a recipe writes them, or made in Python) to a model file."""
    listed = [
        Entry(f"operations[{i}]", entry) if isinstance(entry, Operation) else operations_of([entry])[0]
        for i, entry in enumerate(entries)
    ]
    edited = EditedModel(load_model(source), source, inputs=dict(inputs or {}), others=dict(others or {}))
    return edit_file(edited, listed, target)


def edit(model: str | onnx.ModelProto, *entries: object, **others: onnx.ModelProto) -> onnx.ModelProto:
    """The model after operations; `others` are models that operations read by name."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        source = models.save(parse(model) if isinstance(model, str) else model, folder / "source.onnx")
        paths = {key: models.save(proto, folder / f"{key}.onnx") for key, proto in others.items()}
        (folder / "out").mkdir()
        edit_path(source, folder / "out" / "model.onnx", *entries, others=paths)
        return onnx.load(folder / "out" / "model.onnx")


def by(change: Callable[[EditedModel], None]) -> Operation:
    """An operation that does what a function does, for what no operation does on purpose."""

    class Change(Operation):
        def apply(self, edited: EditedModel) -> str:
            change(edited)
            return "changed"

    return Change()


def run(model: onnx.ModelProto | Path, feeds: Feeds, optimized: bool = False) -> dict[str, Array]:
    """Outputs in ONNX Runtime; without its optimizations, so that bits can be compared."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    given = model if isinstance(model, Path) else model.SerializeToString()
    session = ort.InferenceSession(given, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return {name: np.asarray(result) for name, result in zip(names, session.run(None, dict(feeds)), strict=True)}


def same_outputs(before: onnx.ModelProto | Path, after: onnx.ModelProto | Path, feeds: Feeds) -> None:
    """Outputs of the same names and equal to the bit."""
    wanted, result = run(before, feeds), run(after, feeds)
    assert list(wanted) == list(result)
    for name, array in wanted.items():
        np.testing.assert_array_equal(result[name], array, err_msg=name)


def text_of(model: onnx.ModelProto) -> str:
    """The graph in ONNX's text form, for golden comparisons."""
    return onnx.printer.to_text(model.graph).strip()
