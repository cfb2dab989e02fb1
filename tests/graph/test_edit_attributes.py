"""Attributes are set, reset and deleted, on one node or many, as the operator has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from pydantic import ValidationError

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.operations.attributes import SetAttributes
from tests.support.editing_fixtures import edit, parse, run
from tests.support.message_files import CheckMessage

CONVS = """g (float[1, 2, 8, 8] x, float[2, 2, 3, 3] w) => (float[1, 2, H, W] y, float[1, 2, 8, 8] z)
{ [one] a = Conv <pads = [1, 1, 1, 1]> (x, w)  [two] y = Conv (a, w)  [act] z = LeakyRelu <alpha = 0.5> (a) }"""

CUSTOM = """<ir_version: 8, opset_import: ["" : 17, "com.acme" : 1, "local" : 1]>
g (float[2] x) => (float[2] y, float[2] z)
{
    [odd] y = com.acme.Odd <gain = 2.0, debug_a = 1, debug_b = "no"> (x)
    [call] z = local.Scale <by = 2.0> (x)
}
<domain: "local", opset_import: ["" : 17]>
Scale <by, mode: string = "fast"> (p) => (q) { [inner] c = Constant <value_float: float = @by> ()  q = Mul (p, c) }
"""


def attributes_of(model: onnx.ModelProto, node: str) -> dict[str, Any]:
    """Attribute -> its value, in plain Python; tensors as arrays."""
    nodes = [*model.graph.node, *(inner for function in model.functions for inner in function.node)]
    [result] = [item for item in nodes if item.name == node]
    return {
        attribute.name: _plain(helper.get_attribute_value(attribute))
        for attribute in result.attribute
        if not attribute.ref_attr_name
    }


def _plain(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, bytes):
        return value.decode()
    return [_plain(item) for item in value] if hasattr(value, "__iter__") and not isinstance(value, str) else value


def set_on(model: str, node: str, **attributes: Any) -> dict[str, Any]:
    result = edit(model, {"set_attributes": {"select": node, "attributes": attributes}})
    return attributes_of(result, node)


def refused(model: str, *operations: object) -> str:
    with pytest.raises(RequestError) as error:
        edit(model, *operations)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_one_change_is_applied_to_many_nodes() -> None:
    result = edit(CONVS, {"set_attributes": {"select": {"op_type": "Conv"}, "attributes": {"pads": [1, 1, 1, 1]}}})
    assert attributes_of(result, "one") == attributes_of(result, "two") == {"pads": [1, 1, 1, 1]}
    feeds = {"x": np.ones((1, 2, 8, 8), np.float32), "w": np.ones((2, 2, 3, 3), np.float32)}
    assert run(result, feeds)["y"].shape == (1, 2, 8, 8)
    dims = result.graph.output[0].type.tensor_type.shape.dim
    assert [dim.dim_value for dim in dims] == [1, 2, 8, 8], "shapes are inferred anew"


@pytest.mark.parametrize(
    ("settings", "is_"),
    [
        ([2, 2], [2, 2]),
        ("[2, 2]", [2, 2]),
        ("[0x2, 2.0]", [2, 2]),
    ],
)
def test_lists_of_integers_are_set(settings: Any, is_: list[int]) -> None:
    assert set_on(CONVS, "two", dilations=settings)["dilations"] == is_


@pytest.mark.parametrize(("settings", "is_"), [(2, 2), ("2", 2), (True, 1), ("0x1", 1), ("true", 1)])
def test_integers_are_set(settings: Any, is_: int) -> None:
    text = "g (float[1, 4, 8, 8] x) => (float[1, A, B, C] y) { [s] y = SpaceToDepth <blocksize = 4> (x) }"
    assert set_on(text, "s", blocksize=settings) == {"blocksize": is_}


@pytest.mark.parametrize(("settings", "is_"), [(0.25, 0.25), (2, 2.0), ("-inf", -np.inf), ("1e-3", np.float32(1e-3))])
def test_floats_are_set(settings: Any, is_: float) -> None:
    assert set_on(CONVS, "act", alpha=settings) == {"alpha": is_}


@pytest.mark.parametrize(
    ("settings", "is_"), [("VALID", "VALID"), ("'VALID'", "VALID"), ('"SAME_UPPER"', "SAME_UPPER")]
)
def test_strings_are_set(settings: str, is_: str) -> None:
    assert set_on(CONVS, "two", auto_pad=settings) == {"auto_pad": is_}


def test_quoted_strings_may_look_like_other_values() -> None:
    entries = set_on(CUSTOM, "odd", a="'1'", b="It's", c=r"'It\'s alive!'", d=["a", "b"], e="['a', 'b']")
    assert {name: entries[name] for name in "abcde"} == {
        "a": "1",
        "b": "It's",
        "c": "It's alive!",
        "d": ["a", "b"],
        "e": ["a", "b"],
    }


@pytest.mark.parametrize("settings", ["float16", "fp16", "FLOAT16", 10])
def test_element_types_by_name(settings: Any) -> None:
    text = "g (float[2] x) => (float[2] y) { [down] h = Cast <to = 11> (x)  y = Cast <to = 1> (h) }"
    assert set_on(text, "down", to=settings) == {"to": 10}


CONSTANT = "g () => (float[N] y) { [k] c = Constant <value = float[2] {1, 2}> ()  y = Relu (c) }"


@pytest.mark.parametrize(
    ("settings", "is_"),
    [
        ({"value": [1, 2, 3], "dtype": "float32"}, np.array([1, 2, 3], np.float32)),
        ({"value": "[0.5, nan]"}, np.array([0.5, np.nan], np.float32)),
        ({"value": 1, "dtype": "float32", "shape": [3]}, np.ones(3, np.float32)),
        ([0.5, 1.5], np.array([0.5, 1.5], np.float32)),
        ("[0.5]", np.array([0.5], np.float32)),
    ],
)
def test_tensors_are_set(settings: Any, is_: np.ndarray[Any, Any]) -> None:
    result = set_on(CONSTANT, "k", value=settings)["value"]
    assert result.dtype == is_.dtype
    np.testing.assert_array_equal(result, is_)


def test_tensors_and_lists_from_files(tmp_path: Path, check_message: CheckMessage) -> None:
    np.save(tmp_path / "v.npy", np.arange(3, dtype=np.float32))
    np.save(tmp_path / "pads.npy", np.array([0, 1, 0, 1], np.int64))
    result = set_on(CONSTANT, "k", value={"file": str(tmp_path / "v.npy")})["value"]
    assert result.tolist() == [0, 1, 2]
    assert set_on(CONVS, "two", pads={"file": str(tmp_path / "pads.npy")})["pads"] == [0, 1, 0, 1]
    check_message(
        refused(
            CONSTANT, {"set_attributes": {"select": "k", "attributes": {"value": {"file": str(tmp_path / "no.npy")}}}}
        )
    )


def test_a_custom_attribute_keeps_its_type() -> None:
    entries = set_on(CUSTOM, "odd", gain=3, debug_b="2")
    assert entries == {"gain": 3.0, "debug_a": 1, "debug_b": "2"}
    assert isinstance(entries["gain"], float)


def test_attributes_of_local_functions_are_set(check_message: CheckMessage) -> None:
    result = edit(CUSTOM, {"set_attributes": {"select": "call", "attributes": {"by": 4, "mode": "slow"}}})
    assert attributes_of(result, "call") == {"by": 4.0, "mode": "slow"}
    check_message(refused(CUSTOM, {"set_attributes": {"select": "call", "attributes": {"bye": 4}}}))


def test_nodes_in_functions_have_their_functions_opset(check_message: CheckMessage) -> None:
    change = {"set_attributes": {"select": "inner", "attributes": {"value_floats": [1, 2]}}}
    assert attributes_of(edit(CUSTOM, change), "inner") == {"value_floats": [1, 2]}
    old = CUSTOM.replace('"local", opset_import: ["" : 17]', '"local", opset_import: ["" : 11]')
    check_message(refused(old, change))


@pytest.mark.parametrize(
    "attributes",
    [
        {"padz": 1},
        {"group": 1.5},
        {"group": 2**63},
        {"group": [1]},
        {"pads": 1},
        {"pads": "[1, 1"},
        {"pads": ["a"]},
        {"auto_pad": 1},
        {"group": "none"},
    ],
)
def test_unknown_attributes_are_refused(attributes: dict[str, Any], check_message: CheckMessage) -> None:
    check_message(refused(CONVS, {"set_attributes": {"select": "two", "attributes": attributes}}))


@pytest.mark.parametrize(
    "attributes",
    [
        {"new": []},
        {"new": [[1]]},
        {"new": [1, "a"]},
        {"new": "[1"},
        {"debug_a": "x"},
    ],
)
def test_invalid_attributes_of_custom_operators_are_refused(
    attributes: dict[str, Any], check_message: CheckMessage
) -> None:
    check_message(refused(CUSTOM, {"set_attributes": {"select": "odd", "attributes": attributes}}))


def test_bodies_cannot_be_set_as_values(check_message: CheckMessage) -> None:
    text = """g (float[2] x, bool c) => (float[2] z) { [if] z = If (c) <
        then_branch = a () => (float[2] p) { p = Relu (x) }, else_branch = b () => (float[2] q) { q = Neg (x) }> }"""
    message = refused(text, {"set_attributes": {"select": "if", "attributes": {"then_branch": 1}}})
    check_message(message)


@pytest.mark.parametrize("value", [None, {"vale": 1}, {"value": 1, "file": "a.npy"}, {}])
def test_malformed_values_are_reported_before_a_run(value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        SetAttributes.model_validate({"select": "a", "attributes": {"b": value}})
    assert {problem["loc"][:2] for problem in caught.value.errors()} == {("attributes", "b")}


def test_attributes_are_reset_to_the_default_of_the_opset() -> None:
    result = edit(
        CONVS,
        {"reset_attributes": {"select": "act", "attributes": "alpha"}},
        {"reset_attributes": {"select": ["one", "two"], "attributes": ["pads", "group"]}},
    )
    assert attributes_of(result, "act") == {"alpha": pytest.approx(0.01)}
    assert attributes_of(result, "one") == attributes_of(result, "two") == {"group": 1}


def test_all_attributes_of_a_node_are_reset() -> None:
    text = "g (float[2, 2] x) => (float[1, 2] y) { [r] y = ArgMax <axis = 1, keepdims = 0, select_last_index = 1> (x) }"
    result = edit(
        text.replace("float[1, 2] y", "int64[A, B] y"), {"reset_attributes": {"select": "*", "attributes": "*"}}
    )
    assert attributes_of(result, "r") == {"axis": 0, "keepdims": 1, "select_last_index": 0}


@pytest.mark.parametrize(
    "operation",
    [
        {"reset_attributes": {"select": "odd", "attributes": "gain"}},
        {"reset_attributes": {"select": "call", "attributes": "buy"}},
        {"reset_attributes": {"select": "inner", "attributes": "alpha"}},
        {"remove_attributes": {"select": "call", "attributes": "by"}},
        {"remove_attributes": {"select": "odd", "attributes": "dbg*"}},
    ],
)
def test_attributes_that_cannot_be_reset_or_deleted_are_reported(
    operation: dict[str, Any], check_message: CheckMessage
) -> None:
    check_message(refused(CUSTOM, operation))


def test_required_attributes_are_kept(check_message: CheckMessage) -> None:
    text = "g (float[2] x) => (float16[2] y) { [c] y = Cast <to = 10> (x) }"
    for word in ("reset_attributes", "remove_attributes"):
        check_message(refused(text, {word: {"select": "c", "attributes": "to"}}))
    check_message(refused(text, {"reset_attributes": {"select": "c", "attributes": "*"}}))


def test_attributes_are_deleted_by_pattern() -> None:
    result = edit(CUSTOM, {"remove_attributes": {"select": "*", "attributes": ["debug_*", "gain"]}})
    assert attributes_of(result, "odd") == {}
    assert text_kept(result)
    same = edit(CUSTOM, {"remove_attributes": {"select": "*", "attributes": "nothing", "allow_empty": True}})
    assert attributes_of(same, "odd") == {"gain": 2.0, "debug_a": 1, "debug_b": "no"}


def text_kept(result: onnx.ModelProto) -> bool:
    """The function's body still refers to its attribute."""
    return bool(result.functions[0].node[0].attribute[0].ref_attr_name == "by")


def test_a_reference_to_a_functions_attribute_is_replaced_by_a_value() -> None:
    result = edit(CUSTOM, {"set_attributes": {"select": "inner", "attributes": {"value_float": 3}}})
    assert attributes_of(result, "inner") == {"value_float": 3.0}
    assert parse(CUSTOM).functions[0].node[0].attribute[0].ref_attr_name == "by"


def test_no_attributes_are_refused(check_message: CheckMessage) -> None:
    with pytest.raises(ValueError) as caught:
        SetAttributes.model_validate({"select": "two", "attributes": {}})
    check_message(caught.value)
