"""Round trips of edits through the onnx package's own backend test models: equal outputs, or a clear refusal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.diff.diff_models import diff_models
from ndld_flow.models.files import MAX_OPSET, load_model
from tests.support.backend_models import (
    BackendModel,
    compare_models,
    one_of_each_operator,
    one_of_each_set_of_operators,
)
from tests.support.editing_fixtures import edit_path

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


def externalize_and_inline(source: Path, folder: Path) -> Path:
    outside = folder / "outside.onnx"
    edited(source, outside, {"externalize_weights": {"larger_than": 0, "file": "w.bin", "allow_empty": True}})
    return edited(outside, folder / "inside.onnx", {"inline_weights": {"allow_empty": True}})


OLDER_OPSET = 13
"""Where models go down to; those that are of this one or an older one go down by one."""


def opset_up(source: Path, folder: Path) -> Path:
    return edited(source, folder / "newest.onnx", {"set_opset": {"to": MAX_OPSET}})


def opset_down(source: Path, folder: Path) -> Path:
    opset = load_model(source).opset_imports.get("", 1)
    older = OLDER_OPSET if opset > OLDER_OPSET else max(1, opset - 1)
    return edited(source, folder / "older.onnx", {"set_opset": {"to": older}})


def make_function_and_inline(source: Path, folder: Path) -> Path:
    """The first half of the nodes becomes a local function, and comes back."""
    named = edited(source, folder / "named.onnx", {"rename_nodes": {"select": {"scope": ""}, "to": "n_{index}"}})
    half = [f"n_{index}" for index in range((len(onnx.load(named).graph.node) + 1) // 2)]
    product = edited(named, folder / "function.onnx", {"make_function": {"function": "own::Half", "select": half}})
    assert "Half" in {function.name for function in onnx.load(product).functions}
    return edited(product, folder / "inlined.onnx", {"inline_functions": {}})


def compare_with_itself(source: Path, folder: Path) -> Path:
    diff = diff_models(load_model(source), load_model(source))
    assert diff.is_empty, diff.one_line
    return source


TRIPS: dict[str, Trip] = {
    "no-op": leave_alone,
    "rename all": rename_everything,
    "split and chain": split_and_chain,
    "externalize and inline": externalize_and_inline,
    "opset up": opset_up,
    "opset down": opset_down,
    "make a function and inline it": make_function_and_inline,
    "diff with itself": compare_with_itself,
}
OTHER_KERNELS = ("opset up", "opset down")
"""Trips after which another kernel may run, or none: their results are equal but for the last bits."""
PARTING = ("split and chain", "make a function and inline it")
NEVER_REFUSED = ("no-op", "rename all", "externalize and inline", "diff with itself")


def round_trip(case: BackendModel, trip: Trip, folder: Path) -> str:
    """Return `refused: ...`, or the result of `compare_models`."""
    folder.mkdir()
    source = folder / "source.onnx"
    onnx.save(case.model, source)
    try:
        result = onnx.load(trip(source, folder))
    except RequestError as error:
        return f"refused: {error}"
    return compare_models(case, result)


def refusal_is_just(name: str, case: BackendModel) -> bool:
    """What may be refused at all: parts that cannot stand alone, and operators that the other opset does not have."""
    if name == "opset up":
        return opset_of(case.model) > MAX_OPSET or opset_of(case.model) < 9
    return name not in NEVER_REFUSED


def opset_of(model: onnx.ModelProto) -> int:
    return next((int(opset.version) for opset in model.opset_import if opset.domain == ""), 1)


def cases_of(name: str) -> list[BackendModel]:
    """The first model of each operator; for trips that part a model, half of those of several nodes.

    `bench_round_trips` takes all models.
    """
    if name in PARTING:
        return [case for case in one_of_each_set_of_operators() if len(case.model.graph.node) > 1][::2]
    return list(one_of_each_operator())


@pytest.mark.representatives("no-op-a sample", "make a function and inline it-a sample")
@pytest.mark.filterwarnings("ignore")  # what onnx's cases compute their expected outputs with
@pytest.mark.parametrize(
    ("name", "share"),
    [
        *((name, "a sample") for name in TRIPS),
        # What an opset changes differs by operator; the other edits do the same to all of them.
        *((name, "the rest") for name in OTHER_KERNELS),
        *(pytest.param(name, "the rest", marks=pytest.mark.slow) for name in TRIPS if name not in OTHER_KERNELS),
    ],
)
def test_round_trip(name: str, share: str, tmp_path: Path) -> None:
    cases = [case for index, case in enumerate(cases_of(name)) if (index % 8 == 0) == (share == "a sample")]
    results = {case.name: round_trip(case, TRIPS[name], tmp_path / str(number)) for number, case in enumerate(cases)}
    good = {"equal", "nothing runs it", "random"}
    good |= {"close", "only the source runs"} if name in OTHER_KERNELS else set()
    refused = [case for case in cases if results[case.name].startswith("refused")]
    assert {case: result for case, result in results.items() if result not in good and "refused" not in result} == {}
    assert [(case.name, results[case.name]) for case in refused if not refusal_is_just(name, case)] == []
    assert Counter(results.values())["equal"] > (4 if share == "a sample" else 30)
