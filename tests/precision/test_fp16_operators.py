"""convert_fp16 on ONNX's own test models: one of every operator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from ndld_flow.models.files import MAX_IR_VERSION
from tests.support.fp16_checks import convert, session


def one_of_each() -> Iterator[onnx.ModelProto]:
    """The first test model of each operator (and of each function's expansion) that the checker takes."""
    from onnx.backend.test.case.node import collect_testcases

    seen: set[frozenset[str]] = set()
    for case in collect_testcases(None):
        model = case.model
        if model is None:
            continue
        operators = frozenset(f"{node.domain}::{node.op_type}" for node in model.graph.node)
        if operators in seen or any(o.domain == "" and o.version < 7 for o in model.opset_import):
            continue
        seen.add(operators)
        model.ir_version = min(model.ir_version, MAX_IR_VERSION)
        yield model


def loads(path: Path) -> bool:
    """Return whether ONNX Runtime supports the model."""
    try:
        session(path)
    except Exception:
        return False
    return True


@pytest.mark.filterwarnings("ignore")  # what onnx's cases compute their expected outputs with
def test_every_operator_of_onnx_is_converted(tmp_path: Path) -> None:
    """The step itself checks its result with strict shape inference and raises when that is broken."""
    refused, models = [], list(one_of_each())
    assert len(models) > 200
    for number, model in enumerate(models):
        folder = tmp_path / str(number)
        folder.mkdir()
        path, _ = convert(model, folder, '{"keep_io": false}')
        if loads(folder / "source.onnx") and not loads(path):
            refused.append(model.graph.name)
    assert refused == []
