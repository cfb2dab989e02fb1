"""The operator reference: every schema of the installed libraries, lists, pages, models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state as native

from ndld_flow import api
from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.cli.explain_operator import explain_operators
from ndld_flow.drawing.graph import FAMILIES
from ndld_flow.models.op_reference import (
    LOCAL_FUNCTION,
    SAME_SIGNATURE,
    ListedOperator,
    Operator,
    attribute_defaults,
    body_of,
    has_contrib,
    history_of,
    operators,
    types_text,
)
from ndld_flow.verbs.ops import command
from tests.support.message_files import CheckMessage
from tests.support.models import make_ctrl, make_func, save, tensor

contrib = pytest.mark.skipif(not has_contrib(), reason="this ONNX Runtime tells no schemas of its own operators")


def operator(name: str, domain: str = "") -> Operator:
    return operators()[domain, name]


def changes(name: str, since: int) -> tuple[str, ...]:
    return next(entry.changes for entry in history_of(operator(name)) if entry.since_version == since)


def say(*arguments: str) -> str:
    result = CliRunner().invoke(command, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


# --- what is known of an operator ---


def test_every_schema_of_onnx_is_listed_with_all_versions() -> None:
    schemas = onnx.defs.get_all_schemas_with_history()
    found = {
        (operator.domain, operator.name, version.since_version)
        for operator in operators().values()
        for version in operator.versions
    }
    assert {(schema.domain, schema.name, schema.since_version) for schema in schemas} <= found
    for schema in schemas:
        version = operator(schema.name, schema.domain).at(schema.since_version)
        assert version is not None and version.since_version == schema.since_version
        assert [port.name for port in version.inputs] == [port.name for port in schema.inputs]
        assert {attribute.name for attribute in version.attributes if attribute.required} == {
            name for name, attribute in schema.attributes.items() if attribute.required
        }


@contrib
def test_operators_of_onnx_runtime_are_listed() -> None:
    names = {item.name for item in native.get_all_operator_schema() if item.domain == "com.microsoft"}
    assert names == {name for domain, name in operators() if domain == "com.microsoft"}
    fused = operator("FusedConv", "com.microsoft").newest
    assert [(port.name, port.kind) for port in fused.inputs] == [
        ("X", "required"),
        ("W", "required"),
        ("B", "optional"),
        ("Z", "optional"),
    ]
    defaults = {attribute.name: attribute.default for attribute in fused.attributes}
    assert (defaults["auto_pad"], defaults["group"], defaults["pads"]) == ("NOTSET", 1, None)


def test_ports_and_types_are_shown() -> None:
    concat = operator("Concat").newest
    assert (concat.inputs[0].kind, concat.inputs[0].least, concat.inputs[0].alike) == ("variadic", 1, True)
    assert not operator("Loop").newest.inputs[2].alike
    assert "tensor(float)" in concat.variables["T"] and "T" in concat.variables
    shape = operator("Shape").newest
    assert types_text(shape.outputs[0].types) == "int64"
    assert types_text(["seq(tensor(float))", "tensor(int8)", "optional(seq(tensor(bool)))", "tensor(float)"]) == (
        "float, int8; seq of float; optional seq of bool"
    )


def test_defaults_match_the_schema() -> None:
    assert attribute_defaults("Conv", "", 17) == {"auto_pad": "NOTSET", "group": 1}
    assert attribute_defaults("LeakyRelu", "ai.onnx", 16) == {"alpha": 0.01}
    assert attribute_defaults("RNN", "", 22)["activations"] == ("Tanh", "Tanh")
    assert attribute_defaults("Gelu", "", 13) == attribute_defaults("Gelu", "elsewhere", 20) == {}


def test_an_operator_is_shown_for_a_given_opset() -> None:
    clip = operator("Clip")
    at = {opset: clip.at(opset) for opset in (6, 10, 11, 12, 99)}
    assert {opset: version.since_version for opset, version in at.items() if version} == {
        6: 6,
        10: 6,
        11: 11,
        12: 12,
        99: clip.newest.since_version,
    }
    assert operator("Gelu").at(19) is None


# --- what changed ---


def test_added_and_removed_inputs_and_attributes_are_shown() -> None:
    assert changes("Clip", 11) == (
        "input min added, optional",
        "input max added, optional",
        "attribute max removed",
        "attribute min removed",
    )
    assert changes("Clip", 1) == ("introduced",)
    (change,) = changes("Cast", 6)
    assert change.startswith("attribute to ") and {"int,", "string"} <= set(change.split())
    assert "var renamed to input_var" in str(changes("BatchNormalization", 14))
    assert "attribute spatial removed" in changes("BatchNormalization", 9)
    assert changes("Upsample", 10) == ("deprecated",)
    assert "X may be bfloat16" in changes("Conv", 22)
    (change,) = changes("BatchNormalization", 15)
    assert change.startswith("scale ") and change.endswith(" X")


def test_each_change_is_listed_once_in_a_history() -> None:
    for item in operators().values():
        for entry in history_of(item):
            assert entry.changes and len(set(entry.changes)) == len(entry.changes)
        assert history_of(item)[-1].changes == ("introduced",)
    assert changes("Dropout", 7) and SAME_SIGNATURE not in changes("Dropout", 12)


# --- bodies ---


def test_functions_show_their_bodies() -> None:
    less = body_of(operator("LessOrEqual").newest)
    assert less is not None and not less.is_example and "Less (A, B)" in less.text
    gelu = body_of(operator("Gelu").newest)
    assert gelu is not None and gelu.is_example and "Erf" in gelu.text
    assert body_of(operator("Conv").newest) is None
    assert body_of(operator("SequenceMap").newest) is None  # which wants a graph


def test_every_operator_has_a_page() -> None:
    for item in operators().values():  # `api.ops` looks each up among all
        listed = ListedOperator(item.name, item.domain, item.family, item, item.newest)
        assert item.full_name in explain_operators([listed]).splitlines()[0]
    assert say("Abs") == f"{click.unstyle(explain_operators(api.ops('Abs')))}\n"


# --- lists ---


def test_operators_are_grouped_by_family() -> None:
    found = api.ops()
    assert len(found) == len(operators())
    order = [FAMILIES.index(item.family) for item in found]
    assert order == sorted(order)
    text = say()
    assert "Convolution\n  CausalConv" in text and "Gelu" in text
    assert max(map(len, text.splitlines())) <= 112


def names(found: Any) -> set[str]:
    return {item.name for item in found}


def test_filters_narrow_each_other() -> None:
    assert names(api.ops(search="group NORMalization", domain="ai.onnx")) >= {"GroupNormalization"}
    assert "Conv" not in names(api.ops(search="group normalization"))
    assert names(api.ops(category="convolution", domain="ai.onnx")) >= {"Conv", "ConvTranspose"}
    assert names(api.ops(domain="ai.onnx.ml", category="normalization")) == {"Normalizer"}
    assert "Gelu" not in names(api.ops(opset=19)) and "Gelu" in names(api.ops(opset=20))
    assert {item.domain for item in api.ops(opset=20)} == {""}
    assert names(api.ops(search="nonesuch")) == set()
    assert say("--search", "nonesuch").count("\n") == 1


@pytest.mark.parametrize("spelled", ["Clip", "clip", "ai.onnx::Clip"])
def test_names_ignore_case(spelled: str) -> None:
    (found,) = api.ops(spelled)
    assert (found.name, found.domain) == ("Clip", "")


@contrib
def test_a_name_in_two_domains_is_ambiguous() -> None:
    assert [item.domain for item in api.ops("Gelu")] == ["", "com.microsoft"]
    assert "\nAlso: com.microsoft::Gelu\n" in say("gelu")
    assert [item.domain for item in api.ops("com.microsoft::Gelu")] == ["com.microsoft"]


@pytest.mark.parametrize(
    "asked",
    [
        {"name": "Convv"},
        {"name": "Gelu", "opset": 13},
        {"name": "Gelu", "opset": 999},
        {"category": "convolutions"},
        {"domain": "com.microsft"},
        {"name": "Conv", "domain": "ai.onnx.ml"},
    ],
)
def test_an_unknown_operator_is_reported_with_the_nearest_name(
    asked: dict[str, Any], check_message: CheckMessage
) -> None:
    with pytest.raises(RequestError) as caught:
        api.ops(**asked)
    check_message(caught.value)


# --- pages ---


def test_a_page_shows_all_fields() -> None:
    text = say("Clip", "--opset", "12")
    for part in (
        "Clip  Activation, of ai.onnx, version 12, introduced in opset 1",
        "  min: T, optional\n      Minimum value",
        "Attributes  none",
        "  T: double, float",
        "  >  12   input may be int16",
        "     11   input min added, optional",
    ):
        assert part in text
    assert '  auto_pad: string = "NOTSET"' in say("Conv")
    assert "  axis: int = required" in say("Concat")
    assert "  inputs: T, variadic, 1 " in say("Concat")
    assert "deprecated" in say("Upsample").splitlines()[0]
    assert "Definition in other operators\n" in say("LessOrEqual")


def test_json_has_the_same_contents() -> None:
    (found,) = json.loads(say("Clip", "--opset", "6", "--json"))
    assert (found["version"]["since_version"], found["newest"]) == (6, operator("Clip").newest.since_version)
    assert found["history"][-1] == {"since_version": 1, "changes": ["introduced"]}
    assert {attribute["name"] for attribute in found["version"]["attributes"]} == {"min", "max"}
    assert len(json.loads(say("--json"))) == len(operators())


# --- a model's ---


def uses(found: Any) -> dict[str, int]:
    return {item.name: item.uses for item in found}


def test_operators_of_a_model_are_counted_in_bodies_too(tmp_path: Path) -> None:
    path = make_ctrl(tmp_path / "m.onnx")
    every: dict[str, int] = {}
    waiting = [onnx.load(path).graph]
    while waiting:
        for node in waiting.pop().node:
            every[node.op_type] = every.get(node.op_type, 0) + 1
            waiting += [attribute.g for attribute in node.attribute if attribute.type == onnx.AttributeProto.GRAPH]
    assert uses(api.ops(model=path)) == every
    text = say("--model", str(path))
    assert f"{sum(every.values())} nodes of {len(every)} operators" in text
    assert f"version 16, newest {operator('If').newest.since_version}" in text


def test_functions_of_a_model_and_unknown_operators_are_listed(tmp_path: Path, check_message: CheckMessage) -> None:
    listed: dict[str, ListedOperator] = {item.name: item for item in api.ops(model=make_func(tmp_path / "f.onnx"))}
    assert (listed["Linear"].note, listed["Linear"].family) == (LOCAL_FUNCTION, "control")
    assert listed["MatMul"].version is not None and listed["MatMul"].uses == 1  # in the function
    nodes = [helper.make_node("Strange\x1b[31m", ["x"], ["y"], domain="else\nwhere")]
    graph = helper.make_graph(nodes, "g", [tensor("x", [1])], [tensor("y", [1], TensorProto.FLOAT)])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("else\nwhere", 1)]
    path = save(helper.make_model(graph, ir_version=8, opset_imports=opsets), tmp_path / "s.onnx")
    text = say("--model", str(path))
    assert "schema is not installed" in text and "\x1b" not in text
    assert say("strange\x1b[31m", "--model", str(path)).count("\n") == 1
    with pytest.raises(RequestError) as caught:
        api.ops("Conv", model=path)
    check_message(caught.value)
    with pytest.raises(ModelError, match=r"absent\.onnx"):
        api.ops(model=tmp_path / "absent.onnx")
