"""Gemm, decomposing, Erf, no-ops, a free batch: operations that people ask for by name."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest

from ndld_flow.editing.operations.fuse_gemm import FuseGemm
from ndld_flow.editing.operations.remove_noops import RemoveNoops
from ndld_flow.editing.operations.split_gemm import SplitGemm
from ndld_flow.errors import RequestError
from tests.surgery_checks import assert_same, numbers, op_types, operate, outputs_of, parsed


def _gemm(trans_a: int, trans_b: int, attributes: str = "", bias: str = ", c", opset: int = 17) -> onnx.ModelProto:
    a = "4, N" if trans_a else "N, 4"
    weights: dict[str, Any] = {"w": numbers(3, 4) if trans_b else numbers(4, 3), "c": numbers(3, seed=1)}
    if not bias:
        del weights["c"]
    return parsed(
        f"""<ir_version: 8, opset_import: ["": {opset}]>
        g (float[{a}] x) => (float[N, 3] y) {{
            y = Gemm <transA = {trans_a}, transB = {trans_b}{attributes}> (x, w{bias})
        }}""",
        **weights,
    )


@pytest.mark.parametrize(("trans_a", "trans_b"), list(itertools.product((0, 1), (0, 1))))
@pytest.mark.parametrize("attributes", ["", ", alpha = 0.5", ", beta = 2.0", ", alpha = 0.5, beta = 0.0"])
@pytest.mark.parametrize("bias", [", c", ""])
def test_a_gemm_becomes_matmul_and_add(trans_a: int, trans_b: int, attributes: str, bias: str) -> None:
    model = _gemm(trans_a, trans_b, attributes, bias)
    split, _ = operate(model, SplitGemm())
    assert "Gemm" not in op_types(split)
    feeds = {"x": numbers(4, 5) if trans_a else numbers(5, 4)}
    assert_same(outputs_of(model, feeds), outputs_of(split, feeds), 1e-6)


def test_a_constant_factor_is_transposed_ahead_of_time() -> None:
    split, _ = operate(_gemm(0, 1), SplitGemm())
    assert op_types(split) == ["MatMul", "Add"]
    assert sorted(tuple(tensor.dims) for tensor in split.graph.initializer) == [(3,), (4, 3)]


@pytest.mark.parametrize("opset", [7, 8, 11, 13, 20, 22])
def test_gemms_are_split_at_every_opset_and_fused_again(opset: int) -> None:
    model = _gemm(0, 1, opset=opset)
    split, _ = operate(model, SplitGemm())
    again, _ = operate(split, FuseGemm())
    assert op_types(again) == ["Gemm"]
    feeds = {"x": numbers(5, 4)}
    for other in (split, again):
        assert_same(outputs_of(model, feeds), outputs_of(other, feeds), 1e-6)


def test_gemm_of_an_opset_without_broadcasting_is_refused() -> None:
    with pytest.raises(RequestError, match=r"operations\[0\]: .*Gemm.* is of opset 6: convert the model to 7 first"):
        operate(_gemm(0, 0, opset=6), SplitGemm())


def test_no_gemm_is_an_error_unless_allowed() -> None:
    model = parsed('<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) { y = Relu (x) }')
    with pytest.raises(RequestError, match="no node has the op_type .Gemm."):
        operate(model, SplitGemm())
    with pytest.raises(RequestError, match="no node has the op_type .Add."):
        operate(model, FuseGemm())
    same, _ = operate(model, SplitGemm(allow_empty=True), FuseGemm(allow_empty=True))
    assert op_types(same) == ["Relu"]


_NOISE = """<ir_version: 8, opset_import: ["": 17]>
g (float[2, 3] x) => (float[2, 3] y) <int64[2] shape = {2, 3}, float one = {1.0}> {
    a = Identity (x)
    b = Dropout (a)
    c = Cast <to = 1> (b)
    d = Reshape (c, shape)
    e = Transpose <perm = [0, 1]> (d)
    f = Concat <axis = 0> (e)
    h = Mul (f, one)
    i = Relu (h)
    y = Identity (i)
}"""


def test_nodes_that_change_nothing_go() -> None:
    model = parsed(_NOISE)
    bare, _ = operate(model, RemoveNoops())
    assert op_types(bare) == ["Relu"]
    assert [value.name for value in bare.graph.output] == ["y"]
    feeds = {"x": numbers(2, 3)}
    assert_same(outputs_of(model, feeds), outputs_of(bare, feeds))


def test_only_the_kinds_that_are_asked_for_go() -> None:
    bare, _ = operate(parsed(_NOISE), RemoveNoops(kinds=("dropout", "cast")))
    assert op_types(bare) == ["Identity", "Reshape", "Transpose", "Concat", "Mul", "Relu", "Identity"]
    with pytest.raises(RequestError, match="no node of the kinds pad that changes nothing"):
        operate(parsed(_NOISE), RemoveNoops(kinds=("pad",)))


def test_noops_in_branches_and_functions_go() -> None:
    model = parsed(
        """<ir_version: 9, opset_import: ["": 17, "local": 1]>
        g (bool c, float[N] x) => (float[N] y) {
            a = If (c) <
                then_branch = t () => (float[N] p) { q = Identity (x)  p = Relu (q) },
                else_branch = e () => (float[N] r) { s = Dropout (x)  r = Neg (s) }
            >
            y = local.Twice (a)
        }
        <opset_import: ["": 17], domain: "local">
        Twice (v) => (w) { i = Identity (v)  w = Add (i, i) }"""
    )
    bare, _ = operate(model, RemoveNoops())
    text = onnx.printer.to_text(bare)
    assert "Identity" not in text
    assert "Dropout" not in text
    for condition in (True, False):
        feeds = {"c": np.array(condition), "x": numbers(4)}
        assert_same(outputs_of(model, feeds), outputs_of(bare, feeds))
