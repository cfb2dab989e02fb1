"""The step `edit`: its recipes, its records, and the behaviour that all operations share."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ndld_flow import api
from ndld_flow.base.errors import ModelError, RecipeError, RequestError
from ndld_flow.graph.edit.edit_file import RecordedShapes, finish_model
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.models.files import load_model
from ndld_flow.records.run_record import RunRecord
from ndld_flow.runner import run_folder
from tests.support import models
from tests.support.editing_fixtures import by, edit, parse, text_of
from tests.support.editing_fixtures import run as outputs_of
from tests.support.message_files import CheckMessage
from tests.support.typed_api import plan_once

CHAIN = "g (float[N, 4] x) => (float[N, 4] z) { [first] y = Relu(x) [second] z = Sigmoid(y) }"
SHOUT = {"rename_nodes": {"select": "first", "to": "shout"}}


def write_recipe(folder: Path, *operations: object, **more: object) -> Path:
    models.save(parse(CHAIN), folder / "model.onnx")
    recipe = {"model": "model.onnx", "steps": {"change": {"step": "edit", "operations": operations}}, **more}
    (folder / "recipe.yaml").write_text(json.dumps(recipe, indent=1))
    return folder / "recipe.yaml"


def run(recipe: Path, *overrides: str) -> RunRecord:
    done = api.run(recipe, overrides)
    return RunRecord.model_validate_json(Path(done.folder, "run.json").read_text())


def test_an_edit_is_recorded_with_what_changed(in_folder: Path) -> None:
    record = run(write_recipe(in_folder, SHOUT)).steps[0].record
    assert record is not None
    assert record.summary == "1 node renamed"
    assert record.change is not None
    assert record.change.diff is not None
    assert "operations[0] rename_nodes: 1 node renamed" in record.log


def test_every_mistake_of_a_list_is_reported_at_its_place(in_folder: Path) -> None:
    recipe = write_recipe(
        in_folder,
        {"rename_nodes": {"selec": "first", "to": 3}},
        {"rename_node": {}},
        SHOUT | {"rename_tensors": {}},
        {"rename_nodes": {"select": {"op_typ": "Relu"}, "to": "a"}},
    )
    with pytest.raises(RecipeError) as refused:
        plan_once(recipe)
    problems = {problem.path: (problem.what, problem.hint) for problem in refused.value.problems}
    at = "steps.change.operations"
    assert problems[f"{at}.0.rename_nodes.selec"] == ("there is no setting `selec`", 'did you mean "select"?')
    assert problems[f"{at}.0.rename_nodes.to"][0] == "expected text, found 3"
    assert 'did you mean "rename_nodes"?' in problems[f"{at}.1"][0]
    assert "key, its name: `- remove_nodes: {...}`" in problems[f"{at}.2"][0]
    assert problems[f"{at}.3.rename_nodes.select.op_typ"] == ("there is no setting `op_typ`", 'did you mean "op_type"?')
    lines = [int(problem.where.rpartition(":")[2]) for problem in refused.value.problems]
    assert lines == sorted(lines)
    assert len(set(lines)) > 3


def test_an_empty_list_is_refused(in_folder: Path, check_message: CheckMessage) -> None:
    with pytest.raises(RecipeError) as caught:
        plan_once(write_recipe(in_folder))
    check_message(caught.value)


def test_a_failing_operation_is_reported_with_its_position(in_folder: Path, check_message: CheckMessage) -> None:
    recipe = write_recipe(in_folder, SHOUT, {"rename_nodes": {"select": {"op_type": "Relo"}, "to": "a"}})
    with pytest.raises(RequestError) as caught:
        run(recipe)
    check_message(caught.value)
    assert not list(in_folder.glob("outputs/runs/recipe/*/change/model.onnx")), "nothing half done is shown"


def test_one_setting_inside_the_list_is_overridden_and_reported(in_folder: Path) -> None:
    recipe = write_recipe(in_folder, SHOUT)
    run(recipe)
    override = "steps.change.operations.0.rename_nodes.to=whisper"
    decision = plan_once(recipe, [override])[0]
    assert decision.detail == "operations.0.rename_nodes.to shout -> whisper"
    folder = Path(api.run(recipe, [override]).folder)
    assert [node.name for node in onnx.load(folder / "change" / "model.onnx").graph.node] == ["whisper", "second"]


def test_the_recipe_in_the_run_folder_produces_the_same_model(in_folder: Path) -> None:
    recipe = write_recipe(in_folder, SHOUT)
    folder = Path(api.run(recipe).folder)
    again = plan_once(folder / "recipe.yaml")
    assert [decision.reused for decision in again] == [True]


def test_the_recipes_inputs_do_not_matter_to_an_edit_that_ignores_them(in_folder: Path) -> None:
    run(write_recipe(in_folder, SHOUT))
    assert plan_once(write_recipe(in_folder, SHOUT, inputs={"x": {"shape": [1, 4]}}))[0].reused


def test_the_recipes_inputs_matter_to_an_edit_that_reads_them(in_folder: Path) -> None:
    run(write_recipe(in_folder, {"set_shapes": {}}, inputs={"x": {"shape": [1, 4]}}))
    assert plan_once(write_recipe(in_folder, {"set_shapes": {}}, inputs={"x": {"shape": [1, 4]}}))[0].reused
    decision = plan_once(write_recipe(in_folder, {"set_shapes": {}}, inputs={"x": {"shape": [2, 4]}}))[0]
    assert not decision.reused


def test_a_file_that_an_operation_names_counts_by_its_contents(in_folder: Path) -> None:
    def recipe(name: str) -> Path:
        return write_recipe(in_folder, {"add_initializer": {"name": "w", "file": name}})

    np.save(in_folder / "one.npy", np.array([1, 2], np.float32))
    shutil.copy(in_folder / "one.npy", in_folder / "same.npy")
    run(recipe("one.npy"))
    assert plan_once(recipe("same.npy"))[0].reused
    np.save(in_folder / "same.npy", np.array([1, 3], np.float32))
    decision = plan_once(recipe("same.npy"))[0]
    assert (decision.reused, decision.detail) == (False, "operations.0.add_initializer.file")


def test_a_large_model_is_not_copied_for_every_run(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "COPIED_BYTES", 1000)
    monkeypatch.setattr(run_folder, "share_blocks", lambda source, target: False)
    source = models.make_ext(in_folder / "large.onnx")
    steps = {"change": {"step": "edit", "operations": [{"rename_nodes": {"select": "*", "to": "n_{index}"}}]}}
    (in_folder / "large.json").write_text(json.dumps({"model": str(source), "steps": steps}))
    result = Path(api.run(in_folder / "large.json").folder, "change")
    assert sorted(path.name for path in result.iterdir()) == ["log.txt", "record.json", "stored"]
    model = result / "stored" / "model.onnx"
    onnx.checker.check_model(model, full_check=True)
    assert onnx.load(model).graph.node[0].name == "n_0"
    api.gc()
    assert model.is_file(), "what a kept run points to is needed"
    moved = (in_folder / "outputs").rename(in_folder / "elsewhere")
    assert (moved / result.relative_to("outputs") / "stored" / "model.onnx").is_file()


def test_an_invalid_result_is_refused_with_the_message_of_the_checker(check_message: CheckMessage) -> None:
    def break_it(edited: EditedModel) -> None:
        edited.model.graph.node(0).op_type = "Relo"

    with pytest.raises(ModelError) as caught:
        edit(CHAIN, by(break_it))
    check_message(caught.value)


def test_a_model_without_outputs_is_refused(check_message: CheckMessage) -> None:
    with pytest.raises(ModelError) as caught:
        edit(CHAIN, by(lambda edited: edited.model.graph.outputs.clear()))
    check_message(caught.value)


def test_a_cycle_of_nodes_is_reported(check_message: CheckMessage) -> None:
    def tie(edited: EditedModel) -> None:
        first, second = edited.model.graph
        first.replace_input_with(0, second.outputs[0])

    with pytest.raises(ModelError) as caught:
        edit(CHAIN, by(tie))
    check_message(caught.value)


def test_nodes_are_sorted_topologically() -> None:
    def turn_round(edited: EditedModel) -> None:
        graph = edited.model.graph
        first = graph.node(0)
        graph.remove(first)
        graph.append(first)

    assert [node.op_type for node in edit(CHAIN, by(turn_round)).graph.node] == ["Relu", "Sigmoid"]


WIDE = """g (float[N, 4] x) => (float[N, 4] z)
<float[4, 3] w = {1,2,3,4,5,6,7,8,9,10,11,12}, float[N, 4] y, float[N, 4] untouched> {
    y = Relu(x) untouched = Neg(x) more = Add(y, untouched) z = Tanh(more)
}"""


def test_shapes_after_a_change_are_inferred_again_and_others_kept() -> None:
    def widen(edited: EditedModel) -> None:
        node = edited.model.graph.node(0)
        node.op_type = "Concat"
        node.attributes["axis"] = ir.AttrInt64("axis", 0)
        node.resize_inputs(2)
        node.replace_input_with(1, node.inputs[0])

    shapes = text_of(edit(WIDE, by(widen)))
    assert "float[N,4] untouched" in shapes
    assert "float[N,4] y" not in shapes, "what was noted for the old node is gone"


def test_value_info_of_a_custom_operators_output_is_kept() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
    g (float[2] x) => (float[2] z) <float[7] y> { a = Relu(x) y = my.Op(a) z = Relu(x) }"""

    def rename(edited: EditedModel) -> None:
        edited.model.graph.node(0).op_type = "Neg"

    assert "float[7] y" in text_of(edit(text, by(rename)))


def test_value_info_of_one_operation_is_dropped_when_a_later_one_changes_the_tensor() -> None:
    permute = {"insert_node": {"op_type": "Transpose", "attributes": {"perm": [1, 0]}, "after": "x"}}
    text = text_of(edit(WIDE, {"set_shapes": {"shapes": {"x": [3, 4]}}}, permute))
    assert "float[3,4] x" in text
    assert "float[4,3] y" in text
    assert "float[4,3] z" in text


def test_dimension_names_of_an_output_are_kept_unless_inference_contradicts() -> None:
    renamed = {"replace_op": {"select": "second", "op_type": "Tanh"}}
    assert "(float[N,4] z)" in text_of(edit(CHAIN, renamed))


def test_outputs_of_a_call_have_the_types_of_the_function_body() -> None:
    text = """<ir_version: 10, opset_import: ["": 17, "m": 1]>
    g (float[2, 3] x) => (float[2, 3] y) <float[2, 3] u, float[2, 3] v> { u = m.Outer(x) v = m.Other(u) y = Relu(v) }
    <domain: "m", opset_import: ["": 17, "m": 1]> Outer (a) => (b) { b = m.Inner(a) }
    <domain: "m", opset_import: ["": 17, "m": 1]> Other (a) => (b) { b = Relu(a) }
    <domain: "m", opset_import: ["": 17]> Inner (a) => (b) { k = Relu(a) b = Neg(k) }"""
    permute = {"op_type": "Transpose", "attributes": {"perm": [1, 0]}, "after": "k", "scope": "m::Inner"}
    turned = text_of(edit(text, {"insert_node": permute}))
    assert "(float[3,2] y)" in turned
    assert "float[3,2] u, float[3,2] v" in turned


def test_outputs_of_an_if_have_the_types_of_its_branches() -> None:
    text = """g (float[2, 3] x, bool c) => (float[2, 3] y) <float[2, 3] u> {
        u = If (c) <
            then_branch = t () => (float[2, 3] p) { k = Relu(x) p = Neg(k) },
            else_branch = e () => (float[2, 3] q) { l = Neg(x) q = Relu(l) }
        >
        y = Tanh(u)
    }"""
    permute = {"op_type": "Transpose", "attributes": {"perm": [1, 0]}}
    places = {"k": "u/then_branch", "l": "u/else_branch"}
    turned = edit(text, *({"insert_node": {**permute, "after": at, "scope": body}} for at, body in places.items()))
    assert "(float[3,2] y)" in text_of(turned)


def test_inputs_of_a_loop_body_are_as_dynamic_as_those_of_the_loop() -> None:
    text = """g (float[2, 3] x, int64 n, bool c) => (float[2, 3] y) {
        y = Loop (n, c, x) <body = b (int64 i, bool go, float[2, 3] s) => (bool on, float[2, 3] t) <float[2, 3] m> {
            on = Identity(go) m = Relu(s) t = Neg(m)
        }>
    }"""
    permute = {"insert_node": {"op_type": "Transpose", "attributes": {"perm": [1, 0]}, "after": "x"}}
    changed = edit(text, permute)
    assert text_of(changed).count("[2,3]") == 1, "the input's"
    feeds = {"x": np.ones((2, 3), np.float32), "n": np.array(2), "c": np.array(True)}
    assert outputs_of(changed, feeds)["y"].shape == (3, 2)


@pytest.mark.parametrize("operation", ["name_all", "infer_shapes"])
def test_tensors_of_functions_that_onnx_cannot_type_are_accepted(operation: str) -> None:
    text = """<ir_version: 10, opset_import: ["": 17, "m": 1, "com.microsoft": 1]>
    g (float[2, 3] x, bool c) => (float[2, 3] y) <float[2, 3] u> {
        u = m.Swish(x)
        y = If (c) <then_branch = t () => (float[2, 3] p) { p = Relu(u) }, else_branch = e () => (float[2, 3] r) {
            r = Neg(x)
        }>
    }
    <domain: "m", opset_import: ["": 17, "com.microsoft": 1]> Swish (a) => (b) { b = com.microsoft.QuickGelu(a) }"""
    named = edit(text, {"rename_functions": {"select": "m::Swish", "to": "f::Swish"}}, operation)
    feeds = {"x": np.ones((2, 3), np.float32), "c": np.array(True)}
    np.testing.assert_array_equal(outputs_of(named, feeds)["y"], outputs_of(parse(text), feeds)["y"])


def test_nodes_with_unknown_operators_become_a_function() -> None:
    text = """<ir_version: 10, opset_import: ["": 17, "com.microsoft": 1]>
    g (float[2, 3] x, bool c) => (float[2, 3] y) {
        k = com.microsoft.QuickGelu(x) u = Relu(k)
        y = If (c) <then_branch = t () => (float[2, 3] p) { p = Relu(u) }, else_branch = e () => (float[2, 3] r) {
            r = Neg(x)
        }>
    }"""
    result = edit(text, {"make_function": {"function": "m::Swish", "select": {"output": ["k", "u"]}}})
    feeds = {"x": np.ones((2, 3), np.float32), "c": np.array(True)}
    np.testing.assert_array_equal(outputs_of(result, feeds)["y"], outputs_of(parse(text), feeds)["y"])


CIRCLE = """g (float[4] x) => (float[4] b) { a = Neg(x) b = Relu(a) }"""


@pytest.mark.parametrize(
    "operation",
    [
        {"name_all": {}},
        {"make_function": {"function": "f::All", "select": "*"}},
        {"rewrite": {"pattern": "(x) => (y) { y = Relu(x) }", "replacement": "(x) => (y) { y = Tanh(x) }"}},
    ],
)
def test_a_model_with_a_cycle_is_reported(operation: object, check_message: CheckMessage) -> None:
    broken = parse(CIRCLE)
    broken.graph.node[0].input[0] = "b"
    with pytest.raises(ModelError) as caught:
        edit(broken, operation)
    check_message(caught.value)


def test_the_operation_that_creates_a_cycle_is_reported(check_message: CheckMessage) -> None:
    def turn(edited: EditedModel) -> None:
        edited.node("b").replace_input_with(0, edited.value("b"))

    with pytest.raises(ModelError) as caught:
        edit(CIRCLE, {"name_all": {}}, by(turn), {"name_all": {}})
    check_message(caught.value)


COMPRESSED = "g (float[N] x, bool[N] c) => (float[5] y) { a = Neg(x) b = Compress(a, c) y = Relu(b) }"


def test_declared_output_types_hold_when_an_operation_promises_to_keep_them() -> None:
    function = {"make_function": {"function": "f::Part", "select": {"output": ["a", "b"]}}}
    assert "=> (float[5] y)" in text_of(edit(COMPRESSED, function))
    changed = {"replace_op": {"select": {"op_type": "Neg"}, "op_type": "Abs"}}
    assert "=> (float[?] y)" in text_of(edit(COMPRESSED, changed)).replace("float[]", "float[?]")


def test_an_unchanged_model_keeps_its_value_info(tmp_path: Path) -> None:
    text = "g (float[N] x) => (float[N] z) <float[5] y> { y = Compress(x, c) z = Relu(x) } "
    text = text.replace("(float[N] x)", "(float[N] x, bool[N] c)")
    model = load_model(models.save(parse(text), tmp_path / "m.onnx"))
    noted = RecordedShapes(model)
    finish_model(model, noted)
    shapes = {value.name: value.shape for node in model.graph for value in node.outputs}
    assert list(shapes["y"] or []) == [5], "inference cannot know it, the exporter did"
