"""Models whose weights are missing, too short or removed: what needs no weights works, and everything else refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ndld_flow.base.errors import MissingDataError, ModelError, RequestError
from ndld_flow.drawing.graph import Reading
from ndld_flow.graph.diff.diff_models import diff_models
from ndld_flow.graph.drawn_graph import read_document, read_graph
from ndld_flow.graph.edit.settings import TensorSelect
from ndld_flow.graph.inspect_model import Query, export_tensor, inspect_model
from ndld_flow.models.external_files import external_files
from ndld_flow.models.files import load_model, load_structure
from tests.support.command_line import ndld_flow
from tests.support.message_files import CheckMessage
from tests.support.models import GraphBuilder, make_ext, rename_output, save, tensor


def small(path: Path) -> Path:
    """A model with a float weight, a scalar exponent and a shape as initializers."""
    b = GraphBuilder()
    h = b.op("MatMul", "x", b.weight(16, 16))
    h = b.op("Pow", h, b.initializer(np.array(2.0, np.float32)))
    rename_output(b, b.op("Reshape", h, b.initializer(np.array([-1, 4], np.int64))), "y")
    return save(b.model([tensor("x", ["n", 16])], [tensor("y", [None, 4])]), path)


def externalize(path: Path) -> Path:
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="small.data", size_threshold=0)
    return path.with_name("small.data")


def remove_file(path: Path) -> None:
    externalize(path).unlink()


def shorten_file(path: Path) -> None:
    data = externalize(path)
    data.write_bytes(data.read_bytes()[:7])


def empty_file(path: Path) -> None:
    externalize(path).write_bytes(b"")


def declare_nothing(path: Path) -> None:
    externalize(path)
    proto = onnx.load(path, load_external_data=False)
    for entry in (entry for item in proto.graph.initializer for entry in item.external_data if entry.key == "length"):
        entry.value = "0"
    save(proto, path)


def strip(path: Path) -> None:
    proto = onnx.load(path)
    for item in proto.graph.initializer:
        item.ClearField("raw_data")
    save(proto, path)


def empty(path: Path) -> None:
    """Remove data as Polygraphy's `surgeon weight-strip` does."""
    proto = onnx.load(path)
    for item in proto.graph.initializer:
        item.raw_data = b""
    save(proto, path)


FORMS: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "no file": (remove_file, "small.data is missing", r"'small.data' is missing. Copy the data file into .* together"),
    "a short file": (
        shorten_file,
        "small.data is too short",
        r"the file has only 7. It is truncated: copy or",
    ),
    "an empty file": (empty_file, "small.data is too short", r"the file has only 0. It is truncated: copy or"),
    "length 0": (declare_nothing, "small.data is too short", r"the model declares 0 bytes. It is truncated"),
    "stripped": (strip, "its data were removed", r"'w_0': its data were removed. Use the model that still has its"),
    "emptied": (empty, "its data were removed", r"'w_0': its data were removed. Use the model that still has its"),
}
"""Change of the model, the reason that is shown, and the message of a step."""


@pytest.mark.representatives("no file", "stripped")
@pytest.mark.parametrize("form", FORMS)
def test_what_needs_no_weights_shows_them_as_unknown(tmp_path: Path, form: str) -> None:
    change, reason, message = FORMS[form]
    path = small(tmp_path / "model.onnx")
    change(path)
    with pytest.raises(MissingDataError, match=message):
        load_model(path)
    summary = inspect_model(path, Query()).summary
    assert summary is not None
    assert summary.weights_by_dtype["float32"].size_bytes == 16 * 16 * 4 + 4
    assert {why: group.count for why, group in summary.without_data.items()} == {reason: 3}
    [weight] = inspect_model(path, Query(tensor="w_0")).tensors or ()
    assert (weight.shape, weight.size_bytes, weight.no_data) == ((16, 16), 1024, reason)
    assert (weight.numbers, weight.unread, weight.first) == (None, f"unknown: {reason}", ())
    drawn = read_graph(path, Reading(values=True))
    assert f"3 weights without data ({reason})" in drawn.subtitle
    details = {node.label: node.details for node in drawn.nodes}
    assert (details["Pow"], details["Reshape"]) == (("to the unknown",), ("to unknown",))
    document = read_document(path, Reading(values=True))
    assert {held.unread for held in document.held} == {f"unknown: {reason}"}
    with pytest.raises(MissingDataError, match=message):
        export_tensor(path, "w_0", tmp_path / "w.npy")


def test_statistics_of_weights_that_are_there_are_shown(tmp_path: Path) -> None:
    """A copy that ended early has the first weights."""
    path = make_ext(tmp_path / "model.onnx")
    data = tmp_path / external_files(path)[0]
    data.write_bytes(data.read_bytes()[: data.stat().st_size // 2])
    tensors = inspect_model(path, Query(initializers=TensorSelect(name=("*",)), statistics=True)).tensors or ()
    known, unknown = [item for item in tensors if not item.no_data], [item for item in tensors if item.no_data]
    assert known
    assert unknown
    assert all(item.numbers is not None for item in known)
    assert all(item.numbers is None for item in unknown)
    [file] = (inspect_model(path, Query()).summary or pytest.fail()).files
    assert file.size_bytes == data.stat().st_size


def test_unknown_values_are_not_equal(tmp_path: Path) -> None:
    whole, stripped = small(tmp_path / "whole.onnx"), small(tmp_path / "stripped.onnx")
    strip(stripped)
    for pair in ((whole, stripped), (stripped, whole), (stripped, stripped)):
        diff = diff_models(*map(load_structure, pair))
        assert not diff.is_empty
        assert diff.one_line == "3 weights with unknown values"
    assert ndld_flow("diff", "whole.onnx", "stripped.onnx", "--exit-code", cwd=tmp_path).returncode == 1
    assert ndld_flow("diff", "whole.onnx", "stripped.onnx", cwd=tmp_path).returncode == 0
    assert ndld_flow("diff", "whole.onnx", "whole.onnx", "--exit-code", cwd=tmp_path).returncode == 0
    assert diff_models(load_structure(whole), load_structure(stripped), compare_values=False).is_empty


def test_renamed_weights_without_data_are_matched_by_their_readers(tmp_path: Path) -> None:
    whole, other = small(tmp_path / "whole.onnx"), small(tmp_path / "other.onnx")
    strip(other)
    proto = onnx.load(other)
    proto.graph.initializer[0].name = proto.graph.node[0].input[1] = "kernel"
    save(proto, other)
    diff = diff_models(load_structure(whole), load_structure(other))
    assert re.fullmatch("1 weight renamed, 3 .*unknown.*", diff.one_line)


def test_a_constant_without_data_inside_a_subgraph_is_unknown(tmp_path: Path) -> None:
    value = numpy_helper.from_array(np.ones(300, np.float32), "value")
    value.ClearField("raw_data")
    value.data_location = TensorProto.EXTERNAL
    value.external_data.add(key="location", value="gone.data")
    body = helper.make_graph([helper.make_node("Constant", [], ["k"], value=value)], "b", [], [tensor("k", [300])])
    node = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    graph = helper.make_graph([node], "main", [tensor("c", [], TensorProto.BOOL)], [tensor("y", [300])])
    path = save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx"
    )
    summary = inspect_model(path, Query()).summary
    assert summary is not None
    assert summary.without_data["gone.data is missing"].count == 2
    assert [(file.location, file.size_bytes) for file in summary.files] == [("gone.data", None)]
    assert "2 weights without data (gone.data" in read_graph(path, Reading()).subtitle


def test_terminal_and_json_state_what_has_no_data(tmp_path: Path, check_message: CheckMessage) -> None:
    remove_file(small(tmp_path / "model.onnx"))
    printed = ndld_flow("inspect", "model.onnx", cwd=tmp_path).stdout
    assert "(sizes by their shapes)" in printed
    assert "small.data is missing" in printed
    shown = ndld_flow("inspect", "model.onnx", "--tensor", "w_0", cwd=tmp_path).stdout
    assert "values   unknown: small.data" in shown
    inspection = json.loads(ndld_flow("inspect", "model.onnx", "--json", cwd=tmp_path).stdout)
    assert inspection["summary"]["without_data"]
    refused = ndld_flow("profile", "model.onnx", cwd=tmp_path)
    assert refused.returncode == 2
    check_message(refused.stderr)


def test_locations_outside_the_folder_are_refused_for_structure_too(
    tmp_path: Path, check_message: CheckMessage
) -> None:
    path = small(tmp_path / "model.onnx")
    externalize(path)
    proto = onnx.load(path, load_external_data=False)
    for location in ("/etc/hostname", "../small.data"):
        proto.graph.initializer[0].external_data[0].value = location
        save(proto, path)
        with pytest.raises(ModelError) as caught:
            inspect_model(path, Query())
        check_message(caught.value)


def test_a_damaged_length_is_not_missing_data(tmp_path: Path, check_message: CheckMessage) -> None:
    path = small(tmp_path / "model.onnx")
    proto = onnx.load(path)
    proto.graph.initializer[0].raw_data = b"1234"
    save(proto, path)
    with pytest.raises(RequestError) as caught:
        load_structure(path)
    check_message(caught.value)
