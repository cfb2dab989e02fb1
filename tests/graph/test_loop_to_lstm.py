"""Loops that are LSTMs, and Loops that only look like one: the outputs stay either way."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from ndld_flow.base.errors import RequestError
from tests.support import models
from tests.support.editing_fixtures import Array, edit, edit_path, parse, run
from tests.support.message_files import CheckMessage
from tests.support.representatives import slow_except
from tests.support.samples import fetch_pinned

DEPTH, SIZE = 6, 5
SIZES = ((1, 1), (7, 1), (4, 3), (19, 2))
"""Steps and items."""

HEAD = """
agraph (float[steps, items, 6] x, bool[steps, items, 1] m, int64[2] n)
  => (float[steps_out, items_out, 5] y, float[items_h, 5] hn, float[items_c, 5] cn)
{
  shape = Shape(x)
  count = Gather(shape, i0)
  items = Slice(shape, v1, v2)
  wide = Concat<axis = 0>(items, size)
  start = Expand(f0, wide)
  first = Less(i0, count)
  hn, cn, y = Loop<body = step (int64 k, bool go, float[batch, 5] h, float[batch, 5] c)
    => (bool go_on, float[batch_h, 5] h_out, float[batch_c, 5] c_out, float[batch_y, 5] y_out)
  {
"""
BODY = """
    xt = Gather(x, k)
    xw = MatMul(xt, W)
    hr = MatMul(h, R)
    s = Add(xw, hr)
    z = Add(s, b)
    zi, zf, zg, zo = Split<axis = 1>(z)
    i = Sigmoid(zi)
    f = Sigmoid(zf)
    g = Tanh(zg)
    o = Sigmoid(zo)
    kept = Mul(f, c)
    added = Mul(i, g)
    new_c = Add(kept, added)
    t = Tanh(new_c)
    new_h = Mul(o, t)
    go_on = Identity(go)
    h_out = Identity(new_h)
    c_out = Identity(new_c)
    y_out = Identity(new_h)
"""
TAIL = """
  }>(count, yes, start, start)
}
"""
MASKED = {
    "h_out = Identity(new_h)": "mt = Gather(m, k)\n h_out = Where(mt, new_h, h)",
    "c_out = Identity(new_c)": "c_out = Where(mt, new_c, c)",
    "y_out = Identity(new_h)": "y_out = Where(mt, new_h, f0)",
}
Swaps = Mapping[str, str]


def weights() -> dict[str, Array]:
    numbers_of = np.random.default_rng(0)
    kernel, recurrent = numbers_of.normal(size=(DEPTH, 4 * SIZE)), numbers_of.normal(size=(SIZE, 4 * SIZE))
    floats = {
        "W": kernel,
        "R": recurrent,
        "b": numbers_of.normal(size=4 * SIZE),
        "WR": np.concatenate([kernel, recurrent]),
        "WT": kernel.T,
        "P": numbers_of.normal(size=(SIZE, SIZE)),
        "p": numbers_of.normal(size=SIZE),
        "zeros": np.zeros((1, SIZE)),
        "f0": np.array(0),
        "f1": np.array(1),
        "row": numbers_of.normal(size=(1, SIZE)),
        "limit": np.array(0.4),
    }
    numbers = {"i0": 0, "i1": 1, "i3": 3, "v1": [1], "v2": [2], "size": [SIZE], "last": [-1]}
    edges = {f"e{number}": [number] for number in (0, 5, 10, 15, 2**31 - 1)}
    arrays = {name: np.asarray(array, np.float32) for name, array in floats.items()}
    arrays |= {name: np.asarray(number, np.int64) for name, number in (numbers | edges).items()}
    return arrays | {"yes": np.array(True)}


def build(swaps: Swaps, opset: int = 17) -> onnx.ModelProto:
    """The loop with some of its text replaced."""
    text = HEAD + BODY + TAIL
    for old, new in swaps.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return build_text(text, opset)


def build_text(text: str, opset: int = 17) -> onnx.ModelProto:
    model = parse(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{text}')
    used = set(re.findall(r"\w+", text))
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in weights().items() if name in used
    )
    return model


def replaced(model: onnx.ModelProto) -> onnx.ModelProto:
    return edit(model, {"loop_to_lstm": {"allow_empty": True}})


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def feeds(model: onnx.ModelProto, steps: int, items: int) -> dict[str, Array]:
    generator = np.random.default_rng(1)
    mask = generator.random((steps, items, 1)) < 0.6
    mask[:, 0] &= items == 1  # of several items, one has no step that counts
    given = {
        "x": generator.normal(size=(steps, items, DEPTH)).astype(np.float32),
        "m": mask,
        "n": np.array([steps, items]),
    }
    return {value.name: given[value.name] for value in model.graph.input}


def check_equal(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    for steps, items in SIZES:
        given = feeds(before, steps, items)
        wanted, result = run(before, given), run(after, given)
        assert list(wanted) == list(result)
        for name, array in wanted.items():
            assert result[name].dtype == array.dtype
            np.testing.assert_allclose(result[name], array, atol=1e-5, err_msg=f"{name}, {steps} x {items}")


SAME: dict[str, Swaps] = {
    "as it is": {},
    "operands swapped": {
        "Mul(f, c)": "Mul(c, f)",
        "Mul(i, g)": "Mul(g, i)",
        "Add(kept, added)": "Add(added, kept)",
        "Mul(o, t)": "Mul(t, o)",
        "Add(s, b)": "Add(b, s)",
    },
    "gates in another order": {"zi, zf, zg, zo": "zo, zg, zi, zf"},
    "a forget bias": {"Sigmoid(zf)": "Sigmoid(forget)", "    i = Sig": "forget = Add(zf, f1)\n i = Sig"},
    "side by side": {
        "xw = MatMul(xt, W)": "xh = Concat<axis = 1>(xt, h)",
        "hr = MatMul(h, R)": "s = MatMul(xh, WR)",
        "    s = Add(xw, hr)\n": "",
    },
    "gemm": {"xw = MatMul(xt, W)": "xw = Gemm<transB = 1>(xt, WT, b)", "z = Add(s, b)": "z = Identity(s)"},
    "slices": {
        "zi, zf, zg, zo = Split<axis = 1>(z)": "zi = Slice(z, e0, e5, v1)\n zf = Slice(z, e5, e10, v1)\n"
        "zg = Slice(z, e10, e15, last)\n zo = Slice(z, e15, e2147483647, v1)"
    },
    "activated at once": {
        "zi, zf, zg, zo = Split<axis = 1>(z)": "a = Sigmoid(z)\n i, f, unused, o = Split<axis = 1>(a)\n"
        "zg = Slice(z, e10, e15, v1)",
        "    i = Sigmoid(zi)\n    f = Sigmoid(zf)\n": "",
        "    o = Sigmoid(zo)\n": "",
    },
    "parts of weights": {
        "xw = MatMul(xt, W)": "w1, w2, w3, w4 = Split<axis = 1>(W)\n r1, r2, r3, r4 = Split<axis = 1>(R)\n"
        "x1 = MatMul(xt, w1)\n x2 = MatMul(xt, w2)\n x3 = MatMul(xt, w3)\n x4 = MatMul(xt, w4)\n"
        "h1 = MatMul(h, r1)\n h2 = MatMul(h, r2)\n h3 = MatMul(h, r3)\n h4 = MatMul(h, r4)",
        "    hr = MatMul(h, R)\n    s = Add(xw, hr)\n    z = Add(s, b)\n    zi, zf, zg, zo = Split<axis = 1>(z)\n": ""
        "zi = "
        "Add(x1, h1)\n zf = Add(h2, x2)\n zg = Add(x3, h3)\n zo = Add(x4, h4)\n",
    },
    "gates of a hard sigmoid": {
        "Sigmoid(zi)": "HardSigmoid<alpha = 0.17>(zi)",
        "Sigmoid(zf)": "HardSigmoid<alpha = 0.17>(zf)",
        "Sigmoid(zo)": "HardSigmoid<alpha = 0.17>(zo)",
    },
    "relu": {"Tanh(zg)": "Relu(zg)", "Tanh(new_c)": "Relu(new_c)"},
    "all of them sigmoid": {"Tanh(zg)": "Sigmoid(zg)"},
    "a condition": {
        "(count, yes, start, start)": "( , first, start, start)",
        "go_on = Identity(go)": "k1 = Add(k, i1)\n go_on = Less(k1, count)",
    },
    "two conditions": {
        "go_on = Identity(go)": "k1 = Add(i1, k)\n less = Greater(count, k1)\n go_on = And(less, go)",
    },
    "a counter": {
        "float[batch, 5] c)": "float[batch, 5] c, int64 j)",
        "float[batch_c, 5] c_out,": "float[batch_c, 5] c_out, int64 j1,",
        "hn, cn, y = Loop": "hn, cn, end, y = Loop",
        "Gather(x, k)": "Gather(x, j)",
        "go_on = Identity(go)": "j1 = Add(j, i1)\n go_on = Identity(go)",
        "(count, yes, start, start)": "(count, yes, start, start, i0)",
    },
    "weights as states": {
        "float[batch, 5] c)": "float[batch, 5] c, float[6, 20] w)",
        "float[batch_c, 5] c_out,": "float[batch_c, 5] c_out, float[6, 20] w_out,",
        "hn, cn, y = Loop": "hn, cn, end, y = Loop",
        "MatMul(xt, W)": "MatMul(xt, w)",
        "go_on = Identity(go)": "w_out = Identity(w)\n go_on = Identity(go)",
        "(count, yes, start, start)": "(count, yes, start, start, W)",
    },
    "states at the start": {
        "first =": "other = Add(start, p)\n first =",
        "(count, yes, start, start)": "(count, yes, other, other)",
    },
    "a constant row of zeros at the start": {"(count, yes, start, start)": "(count, yes, zeros, start)"},
    "reversed before": {
        "first =": "lengths = Expand(count, items)\n"
        " back = ReverseSequence<batch_axis = 1, time_axis = 0>(x, lengths)\n"
        "first =",
        "Gather(x, k)": "Gather(back, k)",
    },
    "items first": {
        "first =": "turned = Transpose<perm = [1, 0, 2]>(x)\n first =",
        "Gather(x, k)": "Gather<axis = 1>(turned, k)",
    },
    "a mask": MASKED,
    "a mask, the other way round": {
        "h_out = Identity(new_h)": "mt = Gather(m, k)\n not = Not(mt)\n h_out = Where(not, h, new_h)",
        "c_out = Identity(new_c)": "c_out = Where(mt, new_c, c)",
        "y_out = Identity(new_h)": "y_out = Where(not, f0, new_h)",
    },
    "a mask of what to leave out": {
        "h_out = Identity(new_h)": "mt = Gather(m, k)\n h_out = Where(mt, h, new_h)",
        "c_out = Identity(new_c)": "c_out = Where(mt, c, new_c)",
        "y_out = Identity(new_h)": "y_out = Where(mt, h, new_h)",
    },
    "a mask as factors": {
        "h_out = Identity(new_h)": "mt = Gather(m, k)\n not = Not(mt)\n yes1 = Cast<to = 1>(mt)\n"
        "no1 = Cast<to = 1>(not)\n h1 = Mul(yes1, new_h)\n h2 = Mul(h, no1)\n h_out = Add(h1, h2)",
        "c_out = Identity(new_c)": "c1 = Mul(yes1, new_c)\n c2 = Mul(c, no1)\n c_out = Add(c2, c1)",
        "y_out = Identity(new_h)": "y_out = Identity(h_out)",
    },
    "a mask and states at the start": MASKED
    | {
        "first =": "other = Add(start, p)\n first =",
        "(count, yes, start, start)": "(count, yes, other, other)",
        "y_out = Identity(new_h)": "y_out = Where(mt, new_h, h)",
    },
    "a mask that repeats the last output": MASKED
    | {
        "float[batch, 5] c)": "float[batch, 5] c, float[batch, 5] before)",
        "float[batch_c, 5] c_out,": "float[batch_c, 5] c_out, float[batch_b, 5] again,",
        "hn, cn, y = Loop": "hn, cn, end, y = Loop",
        "y_out = Identity(new_h)": "y_out = Where(mt, new_h, before)\n again = Where(mt, new_h, before)",
        "(count, yes, start, start)": "(count, yes, start, start, start)",
    },
}

OTHER: dict[str, Swaps] = {
    "gates of different activations": {"Sigmoid(zf)": "HardSigmoid(zf)"},
    "another activation of the cell": {"Tanh(new_c)": "Softsign(new_c)"},
    "another activation of the candidate": {"Tanh(zg)": "Softsign(zg)"},
    "no activation of the cell": {"Mul(o, t)": "Mul(o, new_c)"},
    "states swapped": {"MatMul(h, R)": "MatMul(c, R)", "Mul(f, c)": "Mul(f, h)"},
    "states swapped at the end": {
        "h_out = Identity(new_h)": "h_out = Identity(new_c)",
        "c_out = Identity(new_c)": "c_out = Identity(new_h)",
    },
    "a peephole": {"Sigmoid(zf)": "Sigmoid(peep)", "    i = Sig": "cp = Mul(c, p)\n peep = Add(zf, cp)\n i = Sig"},
    "a full peephole": {
        "Sigmoid(zf)": "Sigmoid(peep)",
        "    i = Sig": "cp = MatMul(c, P)\n peep = Add(zf, cp)\n i = Sig",
    },
    "a projection": {
        "h_out = Identity(new_h)": "h_out = MatMul(new_h, P)",
        "y_out = Identity(new_h)": "y_out = Identity(h_out)",
    },
    "a clipped cell": {"Add(kept, added)": "Clip(sum, , limit)", "    new_c": "sum = Add(kept, added)\n new_c"},
    "clipped gates": {"Sigmoid(zf)": "Sigmoid(low)", "    i = Sig": "low = Clip(zf, , limit)\n i = Sig"},
    "coupled gates": {"Mul(i, g)": "Mul(coupled, g)", "    kept": "coupled = Sub(f1, f)\n kept"},
    "a difference": {"Add(kept, added)": "Sub(kept, added)"},
    "a third term": {"Add(kept, added)": "Add(two, i)", "    new_c": "two = Add(kept, added)\n new_c"},
    "a gate of the hidden state": {"Mul(o, t)": "Mul(twice, t)", "    t = ": "twice = Mul(o, o)\n t = "},
    "a residual": {"h_out = Identity(new_h)": "h_out = Add(new_h, h)"},
    "a layer in the loop": {"y_out = Identity(new_h)": "y_out = MatMul(new_h, P)"},
    "the hidden state before the step": {"y_out = Identity(new_h)": "y_out = Identity(h)"},
    "cell states collected": {"y_out = Identity(new_h)": "y_out = Identity(new_c)"},
    "the hidden state in the input": {
        "MatMul(xt, W)": "MatMul(fed, W)",
        "    xw": "one = Slice(h, e0, v1, v1)\n fed = Add(xt, one)\n xw",
    },
    "weights from outside": {"first =": "scaled = Mul(W, f1)\n first =", "MatMul(xt, W)": "MatMul(xt, scaled)"},
    "an early end": {
        "go_on = Identity(go)": "most = ReduceMax<keepdims = 0>(new_h)\n less = Less(most, limit)\n"
        " go_on = And(less, go)"
    },
    "no start": {
        "first =": "mean = ReduceMean<keepdims = 0>(x)\n any = Less(mean, f0)\n first =",
        "(count, yes,": "(count, any,",
    },
    "three steps": {
        "(count, yes, start, start)": "(fewer, yes, start, start)",
        "first =": "fewer = Min(count, i3)\n first =",
    },
    "all steps but one": {
        "(count, yes, start, start)": "(fewer, yes, start, start)",
        "first =": "less1 = Sub(count, i1)\n fewer = Max(less1, i1)\n first =",
    },
    "as many steps as an input says": {
        "(count, yes, start, start)": "(asked, yes, start, start)",
        "first =": "asked = Gather(n, i0)\n first =",
    },
    "a fixed number of steps": {"(count, yes, start, start)": "(i1, yes, start, start)"},
    "a condition of one step less": {
        "(count, yes, start, start)": "( , first, start, start)",
        "go_on = Identity(go)": "k1 = Add(k, i1)\n k2 = Add(k1, i1)\n go_on = Less(k2, count)",
    },
    "steps in reverse": {
        "Gather(x, k)": "Gather(x, back)",
        "    xt": "left = Sub(count, k)\n back = Sub(left, i1)\n xt",
    },
    "the same step": {"Gather(x, k)": "Gather(x, i0)"},
    "the next to last step": {"Gather(x, k)": "Gather(x, before)", "    xt": "before = Sub(k, i1)\n xt"},
    "a counter by two": {
        "float[batch, 5] c)": "float[batch, 5] c, int64 j)",
        "float[batch_c, 5] c_out,": "float[batch_c, 5] c_out, int64 j1,",
        "hn, cn, y = Loop": "hn, cn, end, y = Loop",
        "Gather(x, k)": "Gather(x, half)",
        "    xt": "half = Div(j, i3)\n xt",
        "go_on = Identity(go)": "j1 = Add(j, i3)\n go_on = Identity(go)",
        "(count, yes, start, start)": "(count, yes, start, start, i0)",
    },
    "two sequences": {
        "first =": "twice = Add(x, x)\n first =",
        "MatMul(xt, W)": "Add(xa, xb)",
        "    xw": "x2 = Gather(twice, k)\n xa = MatMul(xt, W)\n xb = MatMul(x2, W)\n xw",
    },
    "one row at the start": {"(count, yes, start, start)": "(count, yes, row, start)"},
    "the cell without mask": MASKED | {"c_out = Identity(new_c)": "c_out = Where(mt, new_c, new_c)"},
    "only the hidden state with a mask": {"h_out = Identity(new_h)": "mt = Gather(m, k)\n h_out = Where(mt, new_h, h)"},
    "a mask that clears": MASKED | {"c_out = Identity(new_c)": "c_out = Where(mt, new_c, f0)"},
    "a mask, the other way round for one": MASKED | {"c_out = Identity(new_c)": "c_out = Where(mt, c, new_c)"},
    "a mask with ones": MASKED | {"y_out = Identity(new_h)": "y_out = Where(mt, new_h, f1)"},
    "a mask with unmasked outputs": MASKED | {"y_out = Identity(new_h)": "y_out = Identity(new_h)"},
    "a mask of later steps": MASKED
    | {
        "h_out = Identity(new_h)": "later = Min(k1, k1)\n mt = Gather(m, later)\n h_out = Where(mt, new_h, h)",
        "    xt": "zero = Sub(k, k)\n k1 = Add(zero, i0)\n xt",
    },
    "a mask of the data": MASKED
    | {
        "h_out = Identity(new_h)": "top = ReduceMax<axes = [1]>(new_h)\n mt = Less(top, limit)\n"
        " h_out = Where(mt, new_h, h)"
    },
    "masks as two factors of one sign": MASKED
    | {
        "h_out = Identity(new_h)": "mt = Gather(m, k)\n one = Cast<to = 1>(mt)\n h1 = Mul(one, new_h)\n"
        "h2 = Mul(one, h)\n h_out = Add(h1, h2)",
        "c_out = Identity(new_c)": "c1 = Mul(one, new_c)\n c2 = Mul(one, c)\n c_out = Add(c1, c2)",
        "y_out = Identity(new_h)": "y_out = Identity(h_out)",
    },
    "GRU": {
        BODY: """
    xt = Gather(x, k)
    xw = MatMul(xt, W)
    hr = MatMul(h, R)
    xi, xf, xg, xo = Split<axis = 1>(xw)
    hi, hf, hg, ho = Split<axis = 1>(hr)
    zu = Add(xi, hi)
    u = Sigmoid(zu)
    zr = Add(xf, hf)
    r = Sigmoid(zr)
    rh = Mul(r, hg)
    za = Add(xg, rh)
    a = Tanh(za)
    keep = Mul(u, h)
    rest = Sub(f1, u)
    take = Mul(rest, a)
    new_h = Add(keep, take)
    go_on = Identity(go)
    h_out = Identity(new_h)
    c_out = Identity(c)
    y_out = Identity(new_h)
"""
    },
}


@pytest.mark.representatives("as it is", "a condition", "side by side", "a mask", "states at the start")
@pytest.mark.parametrize("name", SAME)
def test_loops_of_lstms_become_lstms(name: str) -> None:
    before = build(SAME[name])
    after = replaced(before)
    assert "Loop" not in operators(after) and operators(after).count("LSTM") == 1
    check_equal(before, after)


@pytest.mark.representatives("GRU", "an early end", "a layer in the loop", "a clipped cell", "a mask that clears")
@pytest.mark.parametrize("name", OTHER)
def test_other_loops_stay(name: str) -> None:
    before = build(OTHER[name])
    run(before, feeds(before, 4, 2))  # a case that does not run shows nothing
    assert operators(replaced(before)) == operators(before)


@pytest.mark.parametrize("name", ["as it is", "a mask", "items first"])
def test_in_old_opsets_axes_are_attributes(name: str, check_message: CheckMessage) -> None:
    swaps = dict(SAME[name])
    for opset in (11, 12, 13):
        before = build(swaps, opset)
        after = replaced(before)
        assert "LSTM" in operators(after)
        check_equal(before, after)
    with pytest.raises(RequestError) as caught:
        edit(build(swaps, 10), "loop_to_lstm")
    check_message(caught.value)


def test_dimensions_of_inputs_need_no_names() -> None:
    before = build({"float[steps, items, 6] x": "float[?, ?, 6] x"})
    after = replaced(before)
    assert "LSTM" in operators(after)
    assert [dim.dim_param for dim in after.graph.input[0].type.tensor_type.shape.dim] == ["", "", ""]
    check_equal(before, after)


def test_a_second_layer_is_replaced_too() -> None:
    """The number of its steps is that of the first layer's, and so is that of its mask."""
    text = HEAD + BODY + TAIL
    for old, new in MASKED.items():
        text = text.replace(old, new)
    loop = text[text.index("  hn, cn, y = Loop") : text.rindex("}")]
    second = loop.replace("hn, cn, y =", "hn, cn, y = ").replace("Gather(x, k)", "Gather(wider, k)")
    first = loop.replace("hn, cn, y =", "h1, c1, y1 =")
    between = """
  ones = ConstantOfShape<value = float[1] {1}>(all)
  wider = Concat<axis = 2>(y1, ones)
  shape2 = Shape(wider)
  count2 = Gather(shape2, i0)
"""
    all_ones = "  all = Concat<axis = 0>(both, v1)\n"
    head = text[: text.index("  hn, cn, y = Loop")] + "  both = Slice(shape, e0, v2)\n" + all_ones
    before = build_text(head + first + between + second.replace("(count, yes", "(count2, yes") + "}")
    after = replaced(before)
    assert "Loop" not in operators(after) and operators(after).count("LSTM") == 2
    check_equal(before, after)


def test_what_stays_is_noted_with_the_reason(tmp_path: Path, check_message: CheckMessage) -> None:
    source = models.save(build(OTHER["an early end"]), tmp_path / "source.onnx")
    (tmp_path / "out").mkdir()
    change = edit_path(source, tmp_path / "out" / "model.onnx", {"loop_to_lstm": {"allow_empty": True}})
    assert ["when it ends depends" in note for note in change.notes] == [True]
    with pytest.raises(RequestError) as caught:
        edit_path(source, tmp_path / "out" / "model.onnx", "loop_to_lstm")
    check_message(caught.value)
    with pytest.raises(RequestError) as caught:
        edit("g (float[1] x) => (float[1] y) { y = Relu(x) }", "loop_to_lstm")
    check_message(caught.value)


@pytest.mark.parametrize(
    ("replaced_line", "chain"),
    [("z = Add(s, b)", "z{} = Add(z{}, b)"), ("go_on = Identity(go)", "z{0} = And(z{1}, z{1})")],
)
def test_a_body_of_a_thousand_nodes_ends(replaced_line: str, chain: str) -> None:
    """Of conditions that double at each node, and of sums that are nested deeper than Python's calls may be."""
    first = "Identity(s)" if "Add" in chain else "Identity(go)"
    lines = [f"z0 = {first}", *(chain.format(index, index - 1) for index in range(1, 1000))]
    swaps = {replaced_line: "\n".join([*lines, f"{replaced_line.partition(' ')[0]} = Identity(z999)"])}
    assert operators(replaced(build(swaps))).count("Loop") == ("Add" in chain)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", slow_except(range(3), 0))
def test_a_changed_body_keeps_its_outputs(seed: int) -> None:
    """Bodies with one input exchanged for another tensor: most are no LSTM, and look like one."""
    choose, tried = random.Random(seed), 0
    while tried < 30:
        model = build(SAME[choose.choice(list(SAME))])
        (loop,) = (node for node in model.graph.node if node.op_type == "Loop")
        body = next(attribute.g for attribute in loop.attribute if attribute.name == "body")
        index = choose.randrange(len(body.node))
        node = body.node[index]
        names = [item.name for item in (*body.input, *model.graph.initializer)] + ["x", "m", "count", "start"]
        names += [name for other in body.node[:index] for name in other.output]
        node.input[choose.randrange(len(node.input))] = choose.choice(names)
        try:
            for steps, items in SIZES:
                run(model, feeds(model, steps, items))
        except Exception:  # noqa: S112  # ONNX Runtime raises unrelated classes for what does not fit
            continue
        check_equal(model, replaced(model))
        tried += 1


@pytest.mark.slow
def test_a_diacritizer_has_no_loops_any_more(tmp_path: Path) -> None:
    """Nakdimon (MIT): two bidirectional layers with masks, which tf2onnx writes as four Loops."""
    digest = "9ff491dcc7d66392019d427a98b97d5de10c0d721628ae740858174ae22b190e"
    source = fetch_pinned("pypi:piper-tts==1.8.0/piper/hebrew/nakdimon.onnx", digest)
    target = tmp_path / "out" / "model.onnx"
    target.parent.mkdir()
    edit_path(source, target, "loop_to_lstm")
    assert operators(onnx.load(source)).count("Loop") == 4
    assert operators(onnx.load(target)).count("LSTM") == 4 and "Loop" not in operators(onnx.load(target))
    sessions = {path: ort.InferenceSession(path, providers=["CPUExecutionProvider"]) for path in (source, target)}
    tokens = np.random.default_rng(0)
    for items, steps in ((1, 1), (1, 120), (3, 60)):
        given = tokens.integers(1, 43, (items, steps)).astype(np.float32)
        given[tokens.random((items, steps)) < 0.2 * (items > 1)] = 0
        times = {}
        for path, session in sessions.items():
            started = time.process_time()
            times[path] = (session.run(None, {"input_1": given}), (time.process_time() - started) * 1e3)
        for wanted, result in zip(times[source][0], times[target][0], strict=True):
            np.testing.assert_allclose(result, wanted, atol=1e-4)
        print(f"{items} x {steps}: {times[source][1]:.1f} -> {times[target][1]:.1f} ms of CPU")
