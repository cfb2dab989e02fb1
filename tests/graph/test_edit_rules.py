"""Rules of onnxscript by name, rules in a user's file, and edits by a user's Python function."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.catalogue import find_operation
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.operations.rules_and_code import ApplyRules, library_rules
from ndld_flow.models.files import load_model
from ndld_flow.records.layer_arithmetic import PRECISION_KEY
from ndld_flow.step import DataFile, RunsCode
from tests.graph.test_edit_functions import X, apply, names_are_unique, refusal
from tests.support.editing_fixtures import edit, operations_of, parse, run, same_outputs, text_of
from tests.support.message_files import CheckMessage
from tests.support.models import cnn_model

RELUS = "g (float[2, 4] x) => (float[2, 4] y) { [a] p = Relu (x) [b] q = Relu (p) [c] r = Relu (q) y = Neg (r) }"

MY_RULES = """
from onnxscript.rewriter.pattern import RewriteRule, RewriteRuleSet

def pattern(op, x):
    return op.Neg(op.Neg(x))

def replacement(op, x):
    return op.Identity(x)

rules = RewriteRuleSet([RewriteRule(pattern, replacement, name="TwoNegs")])
"""
NEGS = "g (float[2, 4] x) => (float[2, 4] y) { p = Neg (x) q = Neg (p) y = Relu (q) }"


def written(folder: Path, text: str) -> str:
    path = folder / "mine.py"
    path.write_text(text)
    return str(path)


def test_the_named_rules_are_those_of_onnxscript() -> None:
    rules = library_rules()
    assert all(rules.values())
    assert {"fuse_batchnorm_into_conv", "successive_relu"} <= rules.keys()


def test_rules_are_applied_until_none_matches() -> None:
    after = edit(RELUS, {"apply_rules": {"rules": "successive_relu"}})
    same_outputs(parse(RELUS), after, X)
    assert [node.op_type for node in after.graph.node] == ["Relu", "Neg"]
    assert names_are_unique(after) and after.graph.node[0].name.endswith("_Relu")
    assert after.graph.node[0].output == ["r"]


def test_a_rule_can_be_switched_off(check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as caught:
        edit(RELUS, {"apply_rules": {"rules": "successive_*", "omit": ["successive_relu"]}})
    check_message(caught.value)
    assert edit(RELUS, {"apply_rules": {"rules": "add_0", "allow_empty": True}})


def test_applications_are_reported() -> None:
    text = "g (float[2, 4] x) => (float[2, 4] y) <float z = {0}> { p = Relu (x) q = Relu (p) y = Add (q, z) }"
    edited = apply(text, "apply_rules", rules=["add_0", "successive_relu"], allow_empty=True)
    assert [node.op_type for node in edited.model.graph][:1] == ["Relu"]
    (entry,) = operations_of([{"apply_rules": {"rules": ["add_0", "successive_relu"]}}])
    fresh = EditedModel(apply(text, "apply_rules", rules="sub_0", allow_empty=True).model, Path("m.onnx"))
    assert entry.operation.apply(fresh) == "successive_relu 1 time, add_0 1 time"


def test_rules_that_never_terminate_are_stopped_and_reported(tmp_path: Path) -> None:
    same = MY_RULES.replace("op.Neg(op.Neg(x))", "op.Neg(x)").replace("op.Identity(x)", "op.Neg(x)")
    edited = apply(NEGS, "apply_rules", file=written(tmp_path, same))
    (note,) = edited.notes
    assert "after 10 passes" in note
    assert [node.op_type for node in edited.model.graph] == ["Neg", "Neg", "Relu"]


def test_batch_normalization_is_fused_into_convolutions_with_all_names_unique() -> None:
    model = cnn_model()
    rules = {"rules": ["fuse_batchnorm_into_conv", "no_op_cast", "dropout_inference"]}
    after = edit(model, {"apply_rules": rules})
    onnx.checker.check_model(after, full_check=True)
    assert names_are_unique(after)
    assert not [node for node in after.graph.node if node.op_type == "BatchNormalization"]
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype(np.float32)}
    np.testing.assert_allclose(run(after, feeds)["y"], run(model, feeds)["y"], rtol=1e-4, atol=1e-6)


def test_new_initializers_do_not_overwrite_existing_ones() -> None:
    text = """g (float[1, 1, 4, 4] x) => (float[1, 1, 4, 4] y)
    <float[1, 1, 1, 1] w = {2}, float[1] s = {3}, float[1] b = {1}, float[1] m = {0.5}, float[1] v = {1.5},
     float[1] w_bias = {7}, float[1] c_bias = {7}, float[1] w_conv_bias = {7}>
    { [conv] c = Conv (x, w) [bn] n = BatchNormalization (c, s, b, m, v) p = Add (n, w_bias) q = Add (p, c_bias)
      y = Add (q, w_conv_bias) }"""
    after = edit(text, {"apply_rules": {"rules": "fuse_batchnorm_into_conv"}})
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 1, 4, 4)).astype(np.float32)}
    np.testing.assert_allclose(run(after, feeds)["y"], run(parse(text), feeds)["y"], rtol=1e-5)


def test_nodes_with_different_precision_constraints_are_not_fused(check_message: CheckMessage) -> None:
    model = parse("g (float[2, 4] x) => (float[2, 4] y) { p = Relu (x) y = Relu (p) }")
    for node, precision in zip(model.graph.node, ("fp16", "fp32"), strict=True):
        asked = node.metadata_props.add()
        asked.key, asked.value = PRECISION_KEY, precision
    check_message(refusal(model, "apply_rules", rules="successive_relu"))
    model.graph.node[0].metadata_props[0].value = "fp32"
    (node,) = edit(model, {"apply_rules": {"rules": "successive_relu"}}).graph.node
    assert {item.key: item.value for item in node.metadata_props}[PRECISION_KEY] == "fp32"


def test_rules_that_need_a_newer_opset_are_skipped_and_reported() -> None:
    text = """g (float[2, 4] x) => (float[2, 4] y) <float three = {3}, float zero = {0}, float six = {6}> {
      a = Add (x, three) c = Clip (a, zero, six) m = Mul (c, x) y = Div (m, six)
    }"""
    assert [n.op_type for n in edit(text, {"apply_rules": {"rules": "fuse_hardswish"}}).graph.node] == ["HardSwish"]
    old = parse(f'<ir_version: 8, opset_import: ["" : 12]>\n{text}')
    edited = apply(old, "apply_rules", rules="fuse_hardswish", allow_empty=True)
    (note,) = edited.notes
    assert note.startswith("rule fuse_hardswish matches, but")
    assert len(edited.model.graph) == 4


def test_subgraphs_and_functions_are_searched() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "f" : 1]>
    g (float[2, 4] x, bool c) => (float[2, 4] y) {
      t = f.F (x)
      y = If (c) <then_branch = a () => (float[2, 4] o) { s = Relu (t) o = Relu (s) },
                  else_branch = b () => (float[2, 4] p) { p = Relu (t) }>
    }
    <domain: "f", opset_import: ["" : 17]> F (u) => (v) { z = Relu (u) v = Relu (z) }"""
    after = edit(text, {"apply_rules": {"rules": "successive_relu"}})
    assert len(after.functions[0].node) == 1 and len(after.graph.node[1].attribute[0].g.node) == 1


def test_large_weights_are_not_read(tmp_path: Path) -> None:
    width = 2**11
    weight = np.random.default_rng(0).standard_normal((width, width)).astype(np.float32)  # 16 MiB
    text = f"g (float[2, {width}] x) => (float[2, {width}] y) {{ m = MatMul (x, w) p = Relu (m) y = Relu (p) }}"
    model = parse(text.replace("(float[2, 2048] x)", f"(float[2, {width}] x, float[{width}, {width}] w)"))
    del model.graph.input[1]
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True)
    edited = EditedModel(load_model(tmp_path / "m.onnx"), tmp_path / "m.onnx")
    tracemalloc.start()
    for entry in operations_of([{"apply_rules": {"rules": "*", "allow_empty": True}}]):
        entry.operation.apply(edited)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert type(edited.model.graph.initializers["w"].const_value).__name__ == "ExternalTensor"
    assert peak < weight.nbytes / 2


def test_rules_of_a_file_are_applied(tmp_path: Path) -> None:
    after = edit(NEGS, {"apply_rules": {"file": written(tmp_path, MY_RULES)}})
    assert text_of(after).endswith("{\n   [Neg_Identity] q = Identity (x)\n   y = Relu (q)\n}")
    listed = MY_RULES.replace("RewriteRuleSet([", "list([")
    same_outputs(parse(NEGS), edit(NEGS, {"apply_rules": {"file": written(tmp_path, listed)}}), X)


def test_a_rule_may_produce_an_operator_of_another_domain(tmp_path: Path) -> None:
    text = MY_RULES.replace("op.Identity(x)", 'op.Twice(x, _domain="my", _version=1)')
    edited = apply(NEGS, "apply_rules", file=written(tmp_path, text))
    assert [(node.domain, node.op_type) for node in edited.model.graph] == [("my", "Twice"), ("", "Relu")]


@pytest.mark.representatives("x = (\\n", "x = 1")
@pytest.mark.parametrize(
    "text",
    [
        "rules = 3",
        "rules = [3]",
        "x = 1",
        "import nowhere_at_all",
        "x = (\n",
        "raise SystemExit(3)",
        MY_RULES.replace("return op.Identity(x)", "return 1 / 0"),
    ],
)
def test_mistakes_in_a_file_are_reported_with_their_line(
    tmp_path: Path, text: str, check_message: CheckMessage
) -> None:
    check_message(refusal(NEGS, "apply_rules", file=written(tmp_path, text)))


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    message = refusal(NEGS, "apply_rules", file=str(tmp_path / "none.py"))
    assert message.startswith(f"{tmp_path / 'none.py'}: ")


@pytest.mark.parametrize(
    "settings_",
    [
        {},
        {"rules": "succesive_relu"},
        {"rules": "*", "omit": ["add_1"]},
    ],
)
def test_unknown_rules_are_reported_before_the_run(settings_: dict[str, Any], check_message: CheckMessage) -> None:
    with pytest.raises(ValueError) as error:
        ApplyRules.model_validate_json(json.dumps(settings_))
    check_message(error.value)


@pytest.mark.parametrize("word", ["apply_rules", "run_python"])
def test_a_file_needs_trust_and_its_contents_count(word: str) -> None:
    operation = find_operation(word)
    assert operation is not None
    marks = [type(mark) for mark in operation.model_fields["file"].metadata]
    assert {DataFile, RunsCode} <= set(marks)


EDIT = """
def edit(model, factor=1, what="Abs"):
    for node in model.graph:
        if node.op_type == "Neg":
            node.op_type = what
    return f"{factor} done"

def other(model):
    return model.clone()

def wrong(model):
    return 3

def fails(model):
    helper()

def helper():
    raise KeyError("no\\nsuch")
"""


def test_a_function_of_a_file_changes_the_model(tmp_path: Path) -> None:
    path = written(tmp_path, EDIT)
    after = edit(NEGS, {"run_python": {"file": path, "arguments": {"what": "Exp"}}})
    assert [node.op_type for node in after.graph.node] == ["Exp", "Exp", "Relu"]
    same_outputs(parse(NEGS), edit(NEGS, {"run_python": {"file": path, "function": "other"}}), X)


def test_an_invalid_result_is_reported(tmp_path: Path, check_message: CheckMessage) -> None:
    path = written(tmp_path, EDIT)
    with pytest.raises(RequestError) as caught:
        edit(NEGS, {"run_python": {"file": path, "arguments": {"what": "NoSuchOp"}}})
    check_message(caught.value)


@pytest.mark.parametrize(
    "settings_",
    [
        {"function": "edi"},
        {"function": "wrong"},
        {"function": "fails"},
        {"arguments": {"nothing": 1}},
    ],
)
def test_mistakes_in_a_function_are_reported(
    tmp_path: Path, settings_: dict[str, Any], check_message: CheckMessage
) -> None:
    check_message(refusal(NEGS, "run_python", file=written(tmp_path, EDIT), **settings_))


def test_rules_are_tried_only_at_their_last_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxscript.rewriter.pattern import SimplePatternMatcher

    tried: list[str] = []
    match = SimplePatternMatcher.match

    def counted(matcher: SimplePatternMatcher, model: object, graph: object, node: ir.Node, **more: object) -> object:
        tried.append(node.op_type)
        return match(matcher, model, graph, node, **more)

    monkeypatch.setattr(SimplePatternMatcher, "match", counted)
    edit(RELUS, {"apply_rules": {"rules": "successive_*"}})
    assert set(tried) == {"Relu"}, "none of these rules ends in Neg"


@pytest.mark.parametrize(
    "line",
    [
        "model.graph = None",
        "model.graph[0].op_type = 5",
        "model.graph.inputs[0].name = None",
        "raise SystemExit(0)",
        "import no_such_module",
    ],
)
def test_a_function_that_breaks_the_model_is_reported(in_folder: Path, line: str, check_message: CheckMessage) -> None:
    Path("broken.py").write_text(f"def edit(model):\n    {line}\n")
    with pytest.raises(RequestError) as refused:
        edit(NEGS, {"run_python": {"file": "broken.py"}})
    check_message(refused.value)
    assert "\n" not in str(refused.value)
