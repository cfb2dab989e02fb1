"""The operation `assert`: what holds, what fails, and what a failure shows and stops."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.catalogue import entry_type
from ndld_flow.graph.edit.edit_file import edit_file
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.models.files import load_model
from tests.support import models
from tests.support.command_line import ndld_flow
from tests.support.editing_fixtures import operations_of, parse
from tests.support.message_files import CheckMessage

MODEL = """<ir_version: 8, opset_import: ["" : 17, "local" : 1, "com.acme" : 1]>
g (float[N, 3, 8, 8] image, float mask) => (float[N, 8, 8, 3] y, float[N, 3, 8, 8] z) {
    [turn] t = Transpose <perm = [0, 2, 3, 1]> (image)
    [neg] y = Neg (t)
    [call] f = local.Twice (image)
    [scale] z = Mul (f, mask)
    [odd] o = com.acme.Odd (f)
}
<domain: "local", opset_import: ["" : 17]>
Twice (p) => (q) { [inner] q = Add (p, p) }
"""


def failure(tmp_path: Path, *operations: object) -> str:
    """The reason why the step fails; empty if it passes."""
    source = models.save(parse(MODEL), tmp_path / "model.onnx")
    edited = EditedModel(load_model(source), source)
    edit_file(edited, operations_of(list(operations)), tmp_path / "edited.onnx")
    return "; ".join(edited.failures)


@pytest.mark.representatives("expectation0", "expectation1", "expectation3")
@pytest.mark.parametrize(
    "expectation",
    [
        {"outputs": 2, "inputs": ["image", "mask"]},
        {"outputs": ["y", "z"], "inputs": "<= 2"},
        {"op_types": {"Conv": 0, "Add": 1, "*": 6, "com.acme::*": 1, "Transpose": ">= 1", "Neg": "< 2", "Mul": "==1"}},
        {"only_op_types": ["Transpose", "Neg", "Add", "Mul", "local::Twice", "com.acme::Odd"]},
        {"count": 6},
        {"select": {"after": "f"}, "count": 2},
        {"select": "turn"},
        {"shapes": {"outputs.0": ["N", 8, 8, 3], "inputs.0": [None, 3, None, 8], "t": [None, 8, 8, 3], "mask": []}},
        {"dtypes": {"outputs.1": "float32", "image": "fp32"}},
    ],
)
def test_what_holds_passes(tmp_path: Path, expectation: dict[str, object]) -> None:
    assert failure(tmp_path, {"assert": expectation}) == ""


@pytest.mark.representatives(
    "expectation12",
    "expectation4",
    "expectation0",
)
@pytest.mark.parametrize(
    "expectation",
    [
        {"outputs": 1},
        {"outputs": ["z", "y"]},
        {"inputs": "> 2"},
        {"op_types": {"Transpose": 0}},
        {"op_types": {"Conv": ">= 1"}},
        {"only_op_types": ["Neg", "Mul"]},
        {"count": "<= 5"},
        {"select": {"op_type": "Cast"}},
        {"select": {"after": "f"}, "count": 0},
        {"shapes": {"outputs.0": [1, 84, 8400]}},
        {"shapes": {"t": [None, 8, 8, 4]}},
        {"shapes": {"o": [1]}},
        {"dtypes": {"z": "float16"}},
    ],
)
def test_what_fails_shows_the_values_found(
    tmp_path: Path, expectation: dict[str, object], check_message: CheckMessage
) -> None:
    check_message(failure(tmp_path, {"assert": expectation}))


def test_all_failures_are_listed_and_the_operations_after_them_do_not_run(
    tmp_path: Path, check_message: CheckMessage
) -> None:
    expectation = {"outputs": 3, "dtypes": {"y": "int8", "z": "float32"}}
    reason = failure(tmp_path, "name_all", {"assert": expectation}, {"remove_outputs": {"select": "no_such"}})
    check_message(reason)


def test_an_assertion_sees_the_operations_before_it(tmp_path: Path) -> None:
    remove = {"remove_nodes": {"select": "turn", "bridge": True}}
    assert "Transpose" in failure(tmp_path, {"assert": {"op_types": {"Transpose": 0}}}, remove)
    assert failure(tmp_path, remove, {"assert": {"op_types": {"Transpose": 0}}}) == ""
    assert failure(tmp_path, remove, {"assert": {"shapes": {"outputs.0": [None, 3, 8, 8]}}}) == ""


@pytest.mark.parametrize(
    "expectation",
    [
        {"shapes": {"outputs.2": [1]}},
        {"shapes": {"imag": [1]}},
        {"dtypes": {"y": "float33"}},
    ],
)
def test_a_wrong_name_is_an_error_of_the_recipe(
    tmp_path: Path, expectation: dict[str, object], check_message: CheckMessage
) -> None:
    with pytest.raises(RequestError) as refused:
        failure(tmp_path, {"assert": expectation})
    check_message(refused.value)


@pytest.mark.parametrize(
    "settings", [{}, {"outputs": -1}, {"outputs": "two"}, {"op_types": {"Conv": "=> 1"}}, {"count": True}]
)
def test_an_expectation_that_cannot_be_checked_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        entry_type("assert").model_validate({"assert": settings})


def test_a_failed_assertion_fails_the_run_with_exit_code_1_also_when_it_is_reused(tmp_path: Path) -> None:
    models.save(parse(MODEL.replace("[odd] o = com.acme.Odd (f)", "")), tmp_path / "model.onnx")
    (tmp_path / "a.yaml").write_text(
        "model: model.onnx\nsteps:\n  edit:\n    operations: [{assert: {outputs: 1}}]\n  sanitize: {}\n"
    )
    for _ in range(2):
        done = ndld_flow("run", "a.yaml", cwd=tmp_path)
        assert done.returncode == 1
        assert "2 outputs (y, z)" in done.stdout + done.stderr
        assert "sanitize: skipped, edit failed" in done.stdout + done.stderr
