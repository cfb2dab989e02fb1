"""Round trips of edits through the onnx package's own backend test models: equal outputs, or a clear refusal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from ndld_flow.errors import RequestError
from tests.backend_models import BackendModel, equal_values, one_of_each_operator, run_model
from tests.editing_fixtures import edit_path

Trip = Callable[[Path, Path], Path]
"""Edits the model at a path, inside a folder; returns where the result lies."""


def leave_alone(source: Path, folder: Path) -> Path:
    return edited(source, folder / "same.onnx", {"rename_nodes": {"select": "no such", "to": "x", "allow_empty": True}})


def edited(source: Path, target: Path, *operations: object, **others: Path) -> Path:
    edit_path(source, target, *operations, others=others)
    return target


def rename_everything(source: Path, folder: Path) -> Path:
    return edited(
        source,
        folder / "renamed.onnx",
        {"rename_nodes": {"select": "*", "to": "n_{index}", "allow_empty": True}},
        {"rename_tensors": {"select": "*", "to": "t_{index}", "keep_io": True, "allow_empty": True}},
    )


def split_and_chain(source: Path, folder: Path) -> Path:
    """The second half of the nodes is cut off, made a model of its own, and put back."""
    named = edited(source, folder / "named.onnx", {"rename_nodes": {"select": {"scope": ""}, "to": "n_{index}"}})
    graph = onnx.load(named).graph
    outputs = [value.name for value in graph.output]
    behind = [node.name for node in graph.node][len(graph.node) // 2 :]
    tail = edited(named, folder / "tail.onnx", {"extract": {"select": behind}})
    if len(behind) == len(graph.node):
        return edited(tail, folder / "whole.onnx", {"extract": {"outputs": outputs}})
    head = edited(named, folder / "head.onnx", {"cut": {"select": behind}})
    chain = {"append_model": {"model": "tail", "keep_outputs": True}}
    return edited(head, folder / "whole.onnx", chain, {"extract": {"outputs": outputs}}, tail=tail)


def externalise_and_inline(source: Path, folder: Path) -> Path:
    outside = folder / "outside.onnx"
    edited(source, outside, {"externalise_weights": {"larger_than": 0, "file": "w.bin", "allow_empty": True}})
    return edited(outside, folder / "inside.onnx", {"inline_weights": {"allow_empty": True}})


TRIPS: dict[str, Trip] = {
    "no-op": leave_alone,
    "rename all": rename_everything,
    "split and chain": split_and_chain,
    "externalise and inline": externalise_and_inline,
}
RANDOM = {f"::{word}" for word in ("Bernoulli", "RandomNormalLike", "RandomUniformLike", "Multinomial")}
"""Operators that give other values each time."""


def round_trip(case: BackendModel, trip: Trip, folder: Path) -> str:
    """What became of it: `equal`, `refused: ...`, `valid` where nothing can run it, else what is wrong."""
    folder.mkdir()
    source = folder / "source.onnx"
    onnx.save(case.model, source)
    wanted = None if case.operators & RANDOM else run_model(case.model, case.feeds)
    try:
        result = onnx.load(trip(source, folder))
    except RequestError as error:
        return f"refused: {error}"
    found = run_model(result, case.feeds)
    if wanted is None:
        return "valid"
    return "equal" if found is not None and equal_values(wanted, found) else "differs"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TRIPS)
def test_one_model_of_each_operator(name: str, tmp_path: Path) -> None:
    results = {
        case.name: round_trip(case, TRIPS[name], tmp_path / str(number))
        for number, case in enumerate(one_of_each_operator())
    }
    assert len(results) > 250
    wrong = {case: result for case, result in results.items() if result == "differs"}
    assert wrong == {}
    if name in ("no-op", "rename all"):
        refused = {case: result for case, result in results.items() if result.startswith("refused")}
        assert refused == {}
