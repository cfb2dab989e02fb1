"""Precision constraints: the nodes that a recipe selects, and the Casts that are inserted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import onnx
import onnx.printer
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper
from pydantic import ValidationError

from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.graph.sanitize.pipeline import sanitize_file
from ndld_flow.graph.sanitize.settings import SanitizeSettings
from ndld_flow.precision.constraints.constraints import (
    read_constraints,
    requested_precisions,
    with_requested_precisions,
)
from ndld_flow.precision.constraints.rules import read_precision_list
from ndld_flow.precision.constraints.typed_model import ALREADY
from ndld_flow.records.profile import Layer
from ndld_flow.steps.apply_precision import ApplyPrecision
from ndld_flow.steps.constrain_precision import ConstrainPrecision
from ndld_flow.steps.fix_shapes import FixShapes
from tests.precision.test_convert_fp16 import CASES, NOT_STRICT
from tests.precision.test_fp16_edges import MORE_FOR_RTX, UNKNOWN_TO_RTX, make_for_rtx
from tests.support import models, models_fp16
from tests.support.fp16_checks import Feeds, agree, check, convert, count, normal, parse_strongly_typed, run
from tests.support.message_files import CheckMessage
from tests.support.models import GraphBuilder, rename_output, tensor
from tests.support.models_run import Ran, run_step, write_model
from tests.support.precision_checks import ELEMENTS, FLOATS, ask, computes_in, ports_of, run_typed, typed
from tests.support.random_graphs import OTHER, UNARY, RandomGraph
from tests.support.representatives import thorough_except

FLOAT, HALF, BF16 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16
X: Feeds = {"x": np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)}
CHAIN = """
g (float[n, 4] x) => (float[n, 4] y) <float[4] w = {1, 2, 3, 4}> {
  [mul] a = Mul(x, w)
  [relu] b = Relu(a)
  [add] c = Add(b, w)
  [exp] d = Exp(c)
  [tanh] y = Tanh(d)
}
"""


def chain(folder: Path, opset: int = 17) -> onnx.ModelProto:
    return onnx.load(write_model(folder / "chain.onnx", CHAIN, opset))


def constrain(model: onnx.ModelProto | Path, folder: Path, **wanted: Any) -> Ran:
    if isinstance(model, onnx.ModelProto):
        folder.mkdir(exist_ok=True)
        model = models.save(model, folder / "unconstrained.onnx")
    return run_step(ConstrainPrecision, model, folder / "constrained", wanted)


def constrained(model: onnx.ModelProto | Path, folder: Path, **wanted: Any) -> dict[str, str]:
    return read_constraints(constrain(model, folder, **wanted).out / "model.onnx")


# Random graphs ----------------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), st.lists(st.sampled_from(UNARY + OTHER), min_size=1, max_size=10))
def test_random_constraints_on_random_graphs_are_obeyed(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, operators: list[str]
) -> None:
    graph = RandomGraph(data)
    for operator in operators:
        graph.grow(operator)
    model = graph.model()
    names = [node.name for node in model.graph.node if node.op_type not in ("Constant", "Cast")]
    asked = data.draw(st.dictionaries(st.sampled_from(names), st.sampled_from(list(ELEMENTS)), max_size=len(names)))
    folder = tmp_path_factory.mktemp("graph")
    path, typed_model = typed(model, folder, asked)
    check(path)
    assert_obeyed(folder, {c.node: c.precision for c in typed_model.constraints if not c.outcome.startswith("ignored")})
    assert {c.node for c in typed_model.constraints} == set(asked)
    assert_few_casts(path)
    exact, other = run(folder / "source.onnx", X)["y"], run_typed(path, X)["y"]
    assert other.dtype == exact.dtype
    np.testing.assert_allclose(other, exact, atol=0.5 if "bf16" in asked.values() else 0.1)
    assert_nothing_left_to_do(path, folder)


def assert_obeyed(folder: Path, obeyed: dict[str, str]) -> None:
    """Inputs and outputs are as they were, constrained nodes compute as asked, and the others as before."""
    before, after = onnx.load(folder / "source.onnx"), onnx.load(folder / "typed.onnx")
    assert after.graph.input == before.graph.input
    assert after.graph.output == before.graph.output
    old, new = ports_of(folder / "source.onnx"), ports_of(folder / "typed.onnx")
    for name, ports in old.items():
        if name in obeyed:
            assert computes_in(new[name], obeyed[name]), name
        elif ports.node.op_type not in ("Constant", "Cast", "Shape"):
            assert new[name].outputs == ports.outputs, name
            assert new[name].inputs == ports.inputs, name


def assert_few_casts(path: Path) -> None:
    """No Cast to what is there already, no Cast of a Cast, and none twice."""
    ports = ports_of(path).values()
    added = [p for p in ports if re.search(r"_to_(fp32|fp16|bf16)(_\d+)?$", p.node.name)]
    result = {p.node.output[0] for p in ports if p.node.op_type == "Cast" and p.inputs[0] in FLOATS}
    for cast in added:
        assert cast.inputs != cast.outputs
        assert cast.node.input[0] not in result
    assert max(Counter((p.node.input[0], p.outputs[0]) for p in added).values(), default=1) == 1


def assert_nothing_left_to_do(path: Path, folder: Path) -> None:
    again, model = typed(onnx.load(path), folder / "again")
    assert model.casts_added == 0
    first, second = onnx.load(path), onnx.load(again)
    assert second.graph.node == first.graph.node
    assert list(second.graph.initializer) == list(first.graph.initializer)


@pytest.mark.parametrize("source", ["x", "sum"])
def test_redundant_casts_of_the_model_do_not_hide_types(source: str, tmp_path: Path) -> None:
    """Neither that `x` is cast already, nor, where the first becomes a Cast from fp16, what that reads."""
    text = f"""
    g (float[2, 4] x) => (float[2, 4] y) {{
      [add] sum = Add(x, x)
      [first] one = Cast<to = 1>({source})
      [second] two = Cast<to = 1>(one)
      [relu] positive = Relu(two)
      [max] y = Max(positive, sum)
    }}
    """
    model = onnx.load(write_model(tmp_path / "model.onnx", text))
    path, _ = typed(model, tmp_path / "graph", {"add": "fp16", "relu": "fp16"})
    check(path)
    assert_few_casts(path)
    assert [node.op_type for node in onnx.load(path).graph.node].count("Cast") == 3  # Of x, positive and sum.
    np.testing.assert_allclose(run(path, X)["y"], run(tmp_path / "model.onnx", X)["y"], atol=1e-2)
    assert_nothing_left_to_do(path, tmp_path / "graph")


# Every builder ----------------------------------------------------------------------------------------------------


@pytest.mark.representatives("lstm", "ctrl", "sequence")
@pytest.mark.parametrize("name", [name for name in CASES if name != "func"])
def test_everything_fp16_is_valid_and_agrees(name: str, tmp_path: Path) -> None:
    build, feeds, tolerance = CASES[name]
    asked = constrain(build(), tmp_path, layers={"*": "fp16"}).out / "model.onnx"
    done = run_step(ApplyPrecision, asked, tmp_path / "applied", {})
    path = done.out / "model.onnx"
    before, after = onnx.load(asked), check(path, strict=name not in NOT_STRICT)
    assert after.graph.input == before.graph.input
    assert after.graph.output == before.graph.output
    assert count(after, "Cast") > 0
    agree(asked, path, feeds, tolerance)
    assert_nothing_left_to_do(path, tmp_path)


FOR_RTX = [name for name in CASES if name not in {*UNKNOWN_TO_RTX, "func"}]


@pytest.mark.representatives("old", "tfm", "resize")
@pytest.mark.parametrize("name", [*FOR_RTX, *thorough_except([*MORE_FOR_RTX, "det", "rec"])])
def test_tensorrt_rtx_parses_the_result_strongly_typed(
    name: str, sample_model: Callable[[str], Path], tmp_path: Path
) -> None:
    layers = {"*": "fp16", "/[02468]$/": "fp32"}
    model = sample_model(name) if name in ("det", "rec") else make_for_rtx(name, tmp_path / "model.onnx")
    asked = constrain(model, tmp_path, layers=layers, allow_empty=True).out / "model.onnx"
    parse_strongly_typed(run_step(ApplyPrecision, asked, tmp_path / "applied", {}).out / "model.onnx")


def test_fp32_nodes_in_an_fp16_model_compute_in_fp32(tmp_path: Path) -> None:
    """Values between the constrained nodes are no longer rounded to fp16: Exp of a sum beyond 65504."""
    (tmp_path / "half").mkdir()
    path, _ = convert(chain(tmp_path), tmp_path / "half")
    feeds: Feeds = {"x": np.array([[1.0, 2.0, 3.0, 2.5]], np.float32)}
    asked = dict.fromkeys(("mul", "relu", "add", "exp", "tanh"), "fp32")
    fixed, model = typed(onnx.load(path), tmp_path / "fixed", asked)
    assert model.casts_added == 0
    assert count(onnx.load(fixed), "Cast") == 1, "only the one that gives the output its name is left"
    (weight,) = [numpy_helper.to_array(i) for i in onnx.load(fixed).graph.initializer]
    assert weight.dtype == np.float32
    np.testing.assert_array_equal(run(fixed, feeds)["y"], run(tmp_path / "chain.onnx", feeds)["y"])


# Casts ------------------------------------------------------------------------------------------------------------


def text(path: Path) -> str:
    """The nodes, one a line."""
    lines = onnx.printer.to_text(onnx.load(path)).splitlines()
    return "\n".join(line.strip() for line in lines if line.startswith("   ["))


def test_one_cast_is_inserted_where_precisions_meet(tmp_path: Path) -> None:
    asked = {"mul": "fp16", "relu": "fp16", "add": "fp16", "exp": "bf16"}
    path, model = typed(chain(tmp_path), tmp_path, asked)
    assert (
        text(path)
        == dedent(
            """
        [x_to_fp16] x_fp16 = Cast <to: int = 10> (x)
        [mul] a = Mul (x_fp16, w)
        [relu] b = Relu (a)
        [add] c = Add (b, w)
        [c_to_bf16] c_bf16 = Cast <to: int = 16> (c)
        [exp] d = Exp (c_bf16)
        [d_to_fp32] d_fp32 = Cast <to: int = 1> (d)
        [tanh] y = Tanh (d_fp32)
        """
        ).strip()
    )
    assert model.casts_added == 3
    assert {c.outcome for c in model.constraints} == {"Casts in the model"}
    assert [c.node for c in model.constraints] == list(asked)


def test_readers_share_a_cast(tmp_path: Path) -> None:
    graph = """
    g (float[4] x) => (float[4] y) {
      [a] a = Exp(x)
      [b] b = Relu(a)
      [c] c = Tanh(a)
      [d] d = Neg(a)
      [e] e = Sum(b, c, d)
      [f] y = Abs(e)
    }"""
    model = onnx.load(write_model(tmp_path / "m.onnx", graph))
    path, typed_model = typed(model, tmp_path, {"b": "fp16", "c": "fp16"})
    assert typed_model.casts_added == 3
    assert "[e] e = Sum (b_fp32, c_fp32, d)" in text(path)


def test_weights_are_converted_and_kept_for_their_other_readers(tmp_path: Path) -> None:
    path, model = typed(chain(tmp_path), tmp_path, {"mul": "fp16"})
    assert "[add] c = Add (b, w)" in text(path)
    kinds = {i.name: i.data_type for i in onnx.load(path).graph.initializer}
    assert kinds == {"w": FLOAT, "w_fp16": HALF}
    assert model.casts_added == 2


@pytest.mark.parametrize(
    ("precision", "largest", "smallest"), [("fp16", 65504.0, 2.0**-24), ("bf16", 3.3895314e38, 2.0**-133)]
)
def test_values_that_overflow_or_vanish_are_reported(
    precision: str, largest: float, smallest: float, tmp_path: Path
) -> None:
    b = GraphBuilder()
    weight = b.initializer(np.array([3.4e38, -3.4e38, 1e-42, np.inf, 1.0, 0.0], np.float32))
    rename_output(b, b.op("Max", "x", weight), "y")
    model = b.model([tensor("x", [6])], [tensor("y", [6])])
    path, typed_model = typed(model, tmp_path, {"Max_0": precision})
    (result,) = [numpy_helper.to_array(i).astype(np.float32) for i in onnx.load(path).graph.initializer]
    np.testing.assert_allclose(result, [largest, -largest, result[2], np.inf, 1, 0], rtol=1e-6)
    assert any(f"2 weight values exceed {precision}'s" in note and "3.4e+38" in note for note in typed_model.notes)
    assert result[2] == np.float32(smallest), "per-channel values do not become 0"
    assert any(f"too small for {precision}" in note for note in typed_model.notes)


def test_dtype_attributes_are_updated(tmp_path: Path) -> None:
    model = models_fp16.random_model()
    makers = {n.name: "fp16" for n in model.graph.node if n.op_type not in ("Add", "Shape", "Constant")}
    path, _ = typed(model, tmp_path, makers)
    check(path)
    assert_obeyed(tmp_path, makers)


def test_scales_and_indices_keep_their_types(tmp_path: Path) -> None:
    """Resize's scales are fp32 and Gather's indices int64, whatever was asked."""
    graph = """
    g (float[1, 1, 4, 4] x, int64[2] i) => (float[1, 1, 4, 8] y)
      <float[4] scales = {1, 1, 2, 2}> {
      [resize] a = Resize(x, , scales)
      [gather] b = Gather <axis = 2>(a, i)
      [tile] t = Concat <axis = 2>(b, b)
      [y] y = Relu(t)
    }"""
    model = onnx.load(write_model(tmp_path / "m.onnx", graph))
    path, _ = typed(model, tmp_path, {"resize": "fp16", "gather": "fp16"})
    ports = ports_of(path)
    assert ports["resize"].inputs == (HALF, 0, FLOAT)
    assert ports["gather"].inputs == (HALF, TensorProto.INT64)
    assert ports["tile"].outputs == (FLOAT,)


def test_bodies_and_their_captured_tensors_are_constrained(tmp_path: Path) -> None:
    model = models.ctrl_model()
    path, typed_model = typed(model, tmp_path, {"then_Add_3": "fp16", "body_Mul_4": "fp16", "If_8": "fp16"})
    check(path)
    assert {c.node for c in typed_model.constraints if c.outcome == "Casts in the model"} >= {
        "then_Add_3",
        "body_Mul_4",
    }
    assert_obeyed(tmp_path, {c.node: c.precision for c in typed_model.constraints})
    agree(tmp_path / "source.onnx", path, {"x": normal(3, 4)}, 1e-2)


def test_functions_are_inlined_and_calls_cannot_be_constrained(tmp_path: Path, check_message: CheckMessage) -> None:
    path, model = typed(models.func_model(), tmp_path, {"block_1": "fp16", "same": "fp16"})
    check(path)
    outcomes = {c.node: c.outcome for c in model.constraints}
    assert "calls a local function; `sanitize`" in outcomes["block_1"]
    assert outcomes["same"] == "Casts in the model"
    with pytest.raises(RequestError) as caught:
        constrain(models.func_model(), tmp_path, op_types={"local::Block": "fp16"})
    check_message(caught.value)


def test_a_sequence_keeps_one_precision(tmp_path: Path) -> None:
    model = models_fp16.sequence_model()
    split = next(n.name for n in model.graph.node if n.op_type == "SplitToSequence")
    path, typed_model = typed(model, tmp_path, {split: "fp16"})
    check(path)
    (result,) = typed_model.ignored
    assert "SequenceInsert" in result.outcome


# Outcomes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "precision", "outcome"),
    [
        ("add", "fp32", ALREADY),
        ("add", "int8", "ignored: .*'b'"),
        ("add", "int32", r"ignored: .*tensor\(float\).*int32"),
        ("exp", "bf16", "ignored: .*bf16 at opset 12"),
    ],
)
def test_each_constraint_has_an_outcome(node: str, precision: str, outcome: str, tmp_path: Path) -> None:
    path, model = typed(chain(tmp_path, opset=12), tmp_path, {node: precision})
    assert re.match(outcome, model.constraints[0].outcome)
    assert model.casts_added == 0
    assert text(path) == text(tmp_path / "source.onnx")
    assert len(model.notes) == len(model.ignored)


@pytest.mark.parametrize(
    ("node", "precision", "outcome"),
    [
        ("Range_9", "fp16", "ignored: .*fp16 at opset 17"),
        ("NonMaxSuppression_5", "int64", ALREADY),
        ("Constant_3", "fp16", "ignored: .*constant"),
    ],
)
def test_unsupported_precisions_of_an_operator_are_reported(
    node: str, precision: str, outcome: str, tmp_path: Path
) -> None:
    path, model = typed(models_fp16.no_half_model(), tmp_path, {node: precision})
    check(path)
    (constraint,) = model.constraints
    assert re.match(outcome, constraint.outcome)


def test_the_opset_that_has_bf16_for_an_operator_is_named(tmp_path: Path) -> None:
    graph = "g (float[1,1,4,4] x, float[1,1,3,3] w) => (float[1,1,2,2] y) { [conv] y = Conv(x, w) }"
    _, model = typed(onnx.load(write_model(tmp_path / "m.onnx", graph)), tmp_path, {"conv": "bf16"})
    assert "opset 22" in model.constraints[0].outcome
    assert "set_opset: {to: 22}" in model.constraints[0].outcome


def test_a_cast_counts_as_its_target_type(tmp_path: Path) -> None:
    graph = "g (int64[4] x) => (float[4] y) { [c] c = Cast <to = 1>(x) [r] y = Relu(c) }"
    model = onnx.load(write_model(tmp_path / "m.onnx", graph))
    _, typed_model = typed(model, tmp_path, {"c": "fp16", "r": "fp16"})
    assert [(c.node, c.precision) for c in typed_model.ignored] == [("c", "fp16")]
    assert text(tmp_path / "typed.onnx").count("Cast") == 3


def test_quantized_layers_keep_the_precision_of_their_scales(tmp_path: Path) -> None:
    model = models_fp16.quantized_model(21)
    matmul, relu = (next(n.name for n in model.graph.node if n.op_type == op) for op in ("MatMul", "Relu"))
    _, typed_model = typed(model, tmp_path, {matmul: "int8", relu: "int8"})
    outcomes = {c.node: c.outcome for c in typed_model.constraints}
    assert outcomes[matmul] == "Q/DQ in the model"
    assert outcomes[relu].startswith("ignored: int8 needs")


def test_unmet_constraints_are_errors_when_strict_and_notes_when_lenient(
    tmp_path: Path, check_message: CheckMessage
) -> None:
    model = models.save(ask(chain(tmp_path), {"add": "int8", "exp": "int4", "mul": "fp16"}), tmp_path / "m.onnx")
    with pytest.raises(RequestError) as raised:
        run_step(ApplyPrecision, model, tmp_path / "strict", {})
    check_message(raised.value)
    ran = run_step(ApplyPrecision, model, tmp_path / "lenient", {"strict": False})
    assert re.findall("[12] [a-z]+", ran.result.summary) == ["1 constraints", "2 ignored", "2 casts"]
    assert ran.result.metrics["ignored"] == 2
    assert ran.result.change is not None
    assert ran.result.change.casts_added == 2
    assert any("'exp'" in note for note in ran.result.change.notes)


def test_without_constraints_the_model_is_unchanged(tmp_path: Path) -> None:
    path, model = typed(models.cnn_model(), tmp_path)
    assert model.constraints == ()
    assert onnx.load(path).graph.node == onnx.load(tmp_path / "source.onnx").graph.node


def test_invalid_metadata_is_ignored(tmp_path: Path, check_message: CheckMessage) -> None:
    model = models.save(ask(chain(tmp_path), {"add": "fp64\x1b[31m"}), tmp_path / "m.onnx")
    for read in (read_constraints, lambda path: run_step(ApplyPrecision, path, tmp_path / "applied", {})):
        with pytest.raises(ModelError) as raised:
            read(model)
        check_message(raised.value)
        assert "\x1b" not in str(raised.value)


# Selecting --------------------------------------------------------------------------------------------------------


def test_later_rules_override_earlier_ones(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("mul:bf16, relu:bf16\nadd:bf16\nexp:bf16\n")
    texts = constrained(
        chain(tmp_path),
        tmp_path,
        list_file=str(tmp_path / "list.txt"),
        op_types={"Relu": "fp16", "Add": "fp16", "Exp": "fp16"},
        layers={"/a.d/": "fp32", "exp": "none", "*": "fp16"},
    )
    assert texts == {"mul": "bf16", "relu": "fp16", "add": "fp32", "tanh": "fp16"}


def test_the_step_reports_its_selection(tmp_path: Path) -> None:
    ran = constrain(models.cnn_model(), tmp_path, op_types={"Conv": "fp16", "Softmax": "fp32"})
    assert ran.result.summary == "5 of 38 nodes constrained: 4 fp16, 1 fp32"
    assert ran.result.metrics["constrained"] == 5
    before, after = (onnx.load(p) for p in (tmp_path / "unconstrained.onnx", ran.out / "model.onnx"))
    for node in after.graph.node:
        del node.metadata_props[:]
    assert after.graph.node == before.graph.node
    assert list(after.graph.initializer) == list(before.graph.initializer)


def test_each_precision_has_a_sentence_in_the_summary(tmp_path: Path) -> None:
    wanted = {"Conv": "fp16", "Relu": "fp16", "Softmax": "fp32"}
    change = constrain(models.cnn_model(), tmp_path, op_types=wanted).result.change
    assert change is not None
    half, single = change.notes
    assert half == "fp16: 4 Conv, 3 Relu (Conv_0, Relu_3, Conv_4 and 4 more)"
    assert re.fullmatch(r"fp32: 1 Softmax \(Softmax_\d+\)", single)
    kept = constrain(ask(chain(tmp_path), {"mul": "bf16"}), tmp_path / "b", layers={"a" * 99: "fp16"}, allow_empty=True)
    assert kept.result.change is not None
    assert kept.result.change.notes[0] == "bf16: 1 Mul (mul)"


def test_requested_precisions_are_attached_to_layers(tmp_path: Path) -> None:
    model = models.save(ask(chain(tmp_path), {"mul": "fp32", "add": "fp16", "exp": "fp32"}), tmp_path / "asked.onnx")
    result = [("mul",), ("relu",), ("relu", "exp"), ("add", "mul", "exp"), ()]
    layers = [Layer(index=i, name=str(i), type="a", samples_ms=(), onnx_nodes=of) for i, of in enumerate(result)]
    assert [layer.asked_precision for layer in with_requested_precisions(layers, requested_precisions(model))] == [
        "fp32", "", "fp32", "fp16, fp32", "",
    ]  # fmt: skip
    (tmp_path / "none.onnx").touch()
    assert requested_precisions(tmp_path / "none.onnx") == {}


@pytest.mark.parametrize(("keep", "left"), [(True, {"mul": "fp32", "add": "fp16"}), (False, {"add": "fp16"})])
def test_existing_constraints_are_read(keep: bool, left: dict[str, str], tmp_path: Path) -> None:
    model = ask(chain(tmp_path), {"mul": "fp32", "add": "fp32"})
    assert constrained(model, tmp_path, layers={"add": "fp16"}, keep=keep) == left


def test_patterns_select_nodes_that_support_the_precision(tmp_path: Path) -> None:
    """Neither Shape nor arithmetic on sizes nor Casts; a name takes its node all the same."""
    texts = constrained(models_fp16.resize_model(), tmp_path, layers={"*": "fp16", "Shape_3": "fp16"})
    assert sorted(name.split("_")[0] for name in texts) == ["Relu", "Resize", "Resize", "Shape"]


def test_a_pattern_for_int64_selects_only_integer_nodes(tmp_path: Path) -> None:
    texts = constrained(models_fp16.no_half_model(), tmp_path, layers={"*": "int64"})
    assert {name.split("_")[0] for name in texts} == {"Constant", "NonMaxSuppression"}


def test_nodes_without_a_unique_name_get_one(tmp_path: Path) -> None:
    b = GraphBuilder()
    h = b.op("Tanh", b.op("Relu", b.op("Exp", "x")))
    for node, name in zip(b.nodes, ("", "same", "same"), strict=True):
        node.name = name
    rename_output(b, h, "y")
    model = b.model([tensor("x", ["n", 4])], [tensor("y", ["n", 4])])
    ran = constrain(model, tmp_path, op_types={"Exp": "fp32", "Relu": "fp16", "Tanh": "bf16"})
    constraints = read_constraints(ran.out / "model.onnx")
    assert constraints == {"Exp_Exp_0_out": "fp32", "same": "fp16", "same_2": "bf16"}
    assert ran.result.change is not None
    assert ran.result.change.notes[0] == "2 nodes got unique names"


def test_nodes_in_bodies_are_constrained(tmp_path: Path) -> None:
    texts = constrained(models.ctrl_model(), tmp_path, layers={"then_Add_*": "fp16", "body_Mul*": "bf16"})
    assert {name.partition("_")[0]: p for name, p in texts.items()} == {"then": "fp16", "body": "bf16"}


def test_all_rules_without_a_match_are_reported_together(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("# first\nexpp: fp16\n")
    wanted = {
        "list_file": str(tmp_path / "list.txt"),
        "op_types": {"relu": "fp16", "LSTM": "fp16"},
        "layers": {"tan": "fp32", "/^q/": "fp32", "a*": "bool"},
    }
    with pytest.raises(RequestError) as raised:
        constrain(chain(tmp_path), tmp_path, **wanted)
    lines = str(raised.value).splitlines()
    says = [
        "list.txt:2: no node of this model has a name like 'expp': did you mean \"exp\"?",
        "op_types: there is no operator 'relu': did you mean \"Relu\"?",
        "op_types: this model has no LSTM",
        "layers: no node of this model has a name like 'tan': did you mean \"tanh\"?",
        "layers: no node of this model has a name like '/^q/'",
        "layers: 'a*' matches 1 node, but none that supports bool; 'add': it has no bool output",
    ]
    assert len(lines) == len(says)
    for line, say in zip(lines, says, strict=True):
        assert say in line
    ran = constrain(chain(tmp_path), tmp_path / "lenient", allow_empty=True, **wanted)
    assert ran.result.summary == "0 of 5 nodes constrained"
    assert ran.result.change is not None
    assert len(ran.result.change.notes) == len(says)


@pytest.mark.parametrize("wrong", ['{"layers": {"/(/": "fp16"}}', '{"layers": {"a": "fp12"}}', '{"op_types": ["a"]}'])
def test_invalid_settings_are_refused(wrong: str) -> None:
    with pytest.raises(ValidationError):
        ConstrainPrecision.model_validate_json(wrong)


# Lists ------------------------------------------------------------------------------------------------------------


def test_lists_written_by_tao_are_read(tmp_path: Path) -> None:
    file = tmp_path / "list.txt"
    file.write_bytes(
        b"\xef\xbb\xbf# keep these\r\n/backbone/conv1/Conv:fp16, a::b:0 : FP32\r\n\r\nhead#1:int8 # why\n*:none,\n"
    )
    assert [(e.where.rpartition(":")[2], e.pattern, e.precision) for e in read_precision_list(file)] == [
        ("2", "/backbone/conv1/Conv", "fp16"),
        ("2", "a::b:0", "fp32"),
        ("4", "head#1", "int8"),
        ("5", "*", "none"),
    ]


_NAMES = st.text(st.characters(codec="ascii", categories=["L", "N"], include_characters=":/._*?"), min_size=1).filter(
    lambda name: not name.startswith(":")
)


@given(st.lists(st.tuples(_NAMES, st.sampled_from(["fp16", "bf16", "none"]), st.sampled_from(["\n", ",", " ,\n"]))))
def test_written_lists_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, entries: list[tuple[str, str, str]]
) -> None:
    file = tmp_path_factory.mktemp("list") / "list.txt"
    file.write_text("".join(f"{name}:{precision}{end}" for name, precision, end in entries))
    assert [(e.pattern, e.precision) for e in read_precision_list(file)] == [(n, p) for n, p, _ in entries]


def test_all_mistakes_of_a_list_are_reported_together(tmp_path: Path) -> None:
    file = tmp_path / "list.txt"
    file.write_text("conv\nok:fp16\nadd:fp61, :fp16\n")
    with pytest.raises(RequestError) as raised:
        read_precision_list(file)
    lines = str(raised.value).splitlines()
    assert [line.partition("list.txt:")[2][:2] for line in lines] == ["1:", "3:", "3:"]
    assert 'did you mean "fp16"?' in lines[1]


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_an_unreadable_list_is_refused(content: bytes | None, tmp_path: Path, check_message: CheckMessage) -> None:
    if content is not None:
        (tmp_path / "list.txt").write_bytes(content)
    with pytest.raises(RequestError) as caught:
        read_precision_list(tmp_path / "list.txt")
    check_message(caught.value)


# What other steps make of constraints -----------------------------------------------------------------------------


def test_convert_fp16_keeps_nodes_constrained_to_fp32(tmp_path: Path) -> None:
    model = ask(chain(tmp_path), {"add": "fp32", "exp": "bf16", "tanh": "fp16"})
    path, result = convert(model, tmp_path)
    assert {n: ports_of(path)[n].outputs for n in ("mul", "add", "exp", "tanh")} == {
        "mul": (HALF,),
        "add": (FLOAT,),
        "exp": (FLOAT,),
        "tanh": (HALF,),
    }
    assert read_constraints(path) == {"add": "fp32", "exp": "bf16", "tanh": "fp16"}
    assert result.change is not None
    assert "1 node kept in fp32" in str(result.change.notes)


def test_fix_shapes_keeps_constraints(tmp_path: Path) -> None:
    model = models.save(ask(chain(tmp_path), {"add": "fp32"}), tmp_path / "m.onnx")
    ran = run_step(FixShapes, model, tmp_path / "fixed", {"shapes": {"x": [2, 4]}})
    assert read_constraints(ran.out / "model.onnx") == {"add": "fp32"}


def sanitized(model: onnx.ModelProto, folder: Path) -> tuple[Counter[str], dict[str, str], tuple[str, ...]]:
    folder.mkdir(exist_ok=True)
    onnx.save(model, folder / "source.onnx")
    change = sanitize_file(folder / "source.onnx", folder / "clean.onnx", SanitizeSettings())
    left = onnx.load(folder / "clean.onnx")
    return Counter(n.op_type for n in left.graph.node), read_constraints(folder / "clean.onnx"), change.notes


def test_sanitize_fuses_no_node_into_one_of_another_precision(tmp_path: Path) -> None:
    model = models.cnn_model()
    norms = {n.name: "fp32" for n in model.graph.node if n.op_type == "BatchNormalization"}
    types, left, notes = sanitized(ask(model, norms), tmp_path)
    assert types["BatchNormalization"] == 3
    assert left == norms
    assert not [note for note in notes if "precision" in note]
    types, _, _ = sanitized(models.cnn_model(), tmp_path / "free")
    assert types["BatchNormalization"] == 0


def test_sanitize_fuses_nodes_of_one_precision_which_stays(tmp_path: Path) -> None:
    model = models.cnn_model()
    asked = {n.name: "fp16" for n in model.graph.node if n.op_type in ("MatMul", "Add")}
    types, left, _ = sanitized(ask(model, asked), tmp_path)
    assert types["Gemm"] == 1
    (gemm,) = [n for n in onnx.load(tmp_path / "clean.onnx").graph.node if n.op_type == "Gemm"]
    assert left[gemm.name] == "fp16"


@pytest.mark.parametrize(
    ("op_type", "fused"), [("MatMul", "Gemm"), ("Pad", "Conv")], ids=["MatMul + Add", "Pad + Conv"]
)
def test_sanitize_does_not_fuse_pairs_of_two_precisions(op_type: str, fused: str, tmp_path: Path) -> None:
    model = models.cnn_model()
    asked = {n.name: "fp32" for n in model.graph.node if n.op_type == op_type}
    types, left, _ = sanitized(ask(model, asked), tmp_path)
    assert types[op_type] == 1
    assert left == asked
    types, _, _ = sanitized(models.cnn_model(), tmp_path / "free")
    assert types[op_type] == 0
    assert types[fused] > 0


@pytest.mark.parametrize(("other", "norms"), [("fp32", 1), ("fp16", 0)])
def test_sanitize_fuses_a_layer_norm_only_from_parts_of_one_precision(other: str, norms: int, tmp_path: Path) -> None:
    model = models.tfm_model(layers=1)
    last = [n.name for n in model.graph.node if n.op_type == "Mul"][-1]
    asked = {n.name: "fp32" for n in model.graph.node if n.op_type not in ("Constant", "Cast")} | {last: other}
    types, left, _ = sanitized(ask(model, asked), tmp_path)
    assert types["LayerNormalization"] == 1 + norms
    result = [n.name for n in onnx.load(tmp_path / "clean.onnx").graph.node if n.op_type == "LayerNormalization"]
    assert {left[name] for name in result} == {"fp32"}


def test_sanitize_does_not_merge_equal_nodes_of_two_precisions(tmp_path: Path) -> None:
    graph = "g (float[4] x) => (float[4] y) { [a] a = Exp(x) [b] b = Exp(x) [c] y = Sub(a, b) }"
    model = onnx.load(write_model(tmp_path / "m.onnx", graph))
    types, left, _ = sanitized(ask(model, {"a": "fp32", "b": "fp16"}), tmp_path)
    assert types["Exp"] == 2
    assert left == {"a": "fp32", "b": "fp16"}


def test_sanitize_reports_lost_constraints(tmp_path: Path) -> None:
    graph = "g (float[4] x) => (float[4] y) { [a] a = Identity(x) [b] y = Exp(a) }"
    model = onnx.load(write_model(tmp_path / "m.onnx", graph))
    _, left, notes = sanitized(ask(model, {"a": "fp32", "b": "fp16"}), tmp_path)
    assert left == {"b": "fp16"}
    assert "precision constraint: 'a' (fp32)" in str(notes)


# Large models -----------------------------------------------------------------------------------------------------


MEASURED = """
import resource, sys
from pathlib import Path
from ndld_flow.precision.constraints.rules import constrain_file
from ndld_flow.precision.constraints.rules import Rule
from ndld_flow.precision.constraints.typed_model import write_typed_model
folder = Path(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
constrain_file(folder / "m.onnx", folder / "asked.onnx", [Rule("layers", "name", "MatMul_0", "fp16")], True, False)
write_typed_model(folder / "asked.onnx", folder / "typed.onnx")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.thorough
def test_large_weights_are_not_loaded(tmp_path: Path) -> None:
    """192 MiB of weights on disk, of which a third is halved."""
    source = models.make_big(tmp_path / "m.onnx", layers=3)
    (data,) = [path for path in tmp_path.iterdir() if path != source]
    os.truncate(data, 0)
    os.truncate(data, 3 * 4096 * 4096 * 4)  # a hole: nothing of it needs a disk
    done = subprocess.run([sys.executable, "-c", MEASURED, str(tmp_path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 60 * 1024
    assert read_constraints(tmp_path / "asked.onnx") == {"MatMul_0": "fp16"}
    kinds = Counter(i.data_type for i in onnx.load(tmp_path / "typed.onnx", load_external_data=False).graph.initializer)
    assert kinds[HALF] == 1
    assert kinds[FLOAT] >= 2
