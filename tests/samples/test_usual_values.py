"""Usual values of inputs: by the graph's use of token numbers and by well-known names, and never by a guess."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from ndld_flow.models.files import model_inputs
from ndld_flow.models.tensors import InputUses, TensorSpec
from ndld_flow.samples.feeds import make_feeds
from ndld_flow.samples.wanted_inputs import Feed
from tests.support.models_run import specs, write_model

TABLE = f"<float[50,2] w = {{{','.join(['1.5'] * 100)}}}, int64[1] axes = {{0}}, int64 two = {{2}}>"
"""A table of 50 rows and two constants."""


def feed(spec: TensorSpec, *others: TensorSpec, **asked: Any) -> Feed:
    return make_feeds([spec, *others], specs({spec.name: asked}))[spec.name]


def rows(folder: Path, body: str, dtype: str = "int64") -> int | None:
    write_model(folder / "model.onnx", f"g ({dtype}[b,s] ids) => (float[n] y) {TABLE} {{ {body} }}")
    return model_inputs(folder / "model.onnx")[0].table_rows


@pytest.mark.parametrize(
    "body",
    [
        "y = Gather(w, ids)",
        "c = Cast<to=7>(ids) u = Unsqueeze(c, axes) y = Gather<axis=0>(w, u) n = Shape(ids) e = Equal(ids, two)",
        "t = Identity(w) z = Gather(ids, axes) y = Gather(t, z)",
        "y = Gather(w, u) u = Identity(ids)",
        "h = Constant<value_float = 0.5>() q = QuantizeLinear(w, h) d = DequantizeLinear(q, h) y = Gather(d, ids)",
        "h = Constant<value_float = 0.5>() c = Cast<to=1>(w) m = Sub(c, h) t = Mul(h, m) y = Gather(t, ids)",
        "r = Constant<value = float[1,2] {1.0, 2.0}>() t = Mul(r, w) y = Gather(t, ids)",
        "t = Transpose<perm=[1,0]>(w) y = Gather<axis=1>(t, ids)",
        "c = Clip(ids) u = Concat<axis=0>(c, c) y = Gather(w, u)",
        "f = Cast<to=1>(ids) r = Round(f) c = Cast<to=7>(r) y = Gather(w, c)",
        "k = Equal(ids, two) k1 = ReduceMax(k) y = If(k1) <then_branch = t () => (float[n] a) { a = Gather(w, ids) }, "
        "else_branch = e () => (float[n] a) { a = Identity(w) }>",
        "m = Constant<value = int64 {2}>() t = Constant<value = bool {1}>() "
        "l, y = Loop(m, t, ids) <body = b (int64 i, bool c, int64[q] v) => (bool d, int64[q] x, float[n] a) "
        "{ d = Identity(c) x = Identity(v) a = Gather(w, v) }>",
    ],
)
def test_token_numbers_are_drawn_from_the_rows_of_their_table(body: str, tmp_path: Path) -> None:
    assert rows(tmp_path, body) == 50
    (spec,) = model_inputs(tmp_path / "model.onnx")
    values = feed(spec, shape=[40, 40])
    assert (values.values.min(), values.values.max()) == (0, 49)
    assert values.description.startswith("integers 0 to 49")
    assert feed(spec, range=[0.0, 3.0]).description.startswith("random integers [0, 3)")
    assert feed(spec, data="zeros").description.startswith("zeros,")


@pytest.mark.parametrize(
    "body",
    [
        "i = Add(ids, two) y = Gather(w, i)",  # shifted: 49 would be row 51
        "y = Gather(w, ids) z = Expand(w, ids)",  # also a size
        "y = Gather(w, ids) r = Identity(w) s = Slice(r, ids, ids) z = Gather(s, ids)",  # also of a table of any size
        "y = my.Gather(w, ids)",
        "t = my.Mul(w, w) y = Gather(t, ids)",
        "s = Size(w) t = Mul(w, s) y = Gather(t, ids)",  # computed from the model's values
        "c = Cast<to=1>(ids) y = Mul(c, c)",
        "t = Constant<value = bool {1}>() y = Loop(ids, t) <body = b (int64 i, bool c) => (bool d, float[n] a) "
        "{ d = Identity(c) a = Gather(w, i) }>",  # how often it runs
        "k = Equal(ids, two) k1 = ReduceMax(k) y = If(k1) <then_branch = t () => (float[n] a) { "
        "i = Add(ids, two) a = Gather(w, i) }, else_branch = e () => (float[n] a) { a = Identity(w) }>",
    ],
)
def test_inputs_with_other_uses_stay_random(body: str, tmp_path: Path) -> None:
    assert rows(tmp_path, body) is None


def write_looking_up(folder: Path, body: str, dtype: str) -> TensorSpec:
    write_model(folder / "model.onnx", f"g ({dtype}[b,s] x) => (float[n] y) {TABLE} {{ {body} }}")
    return model_inputs(folder / "model.onnx")[0]


@pytest.mark.parametrize("dtype", ["float", "float16", "double", "int8", "uint8"])
def test_numbers_of_other_types_that_become_indices_read_the_whole_table(dtype: str, tmp_path: Path) -> None:
    spec = write_looking_up(tmp_path, "i = Cast<to=7>(x) y = Gather(w, i)", dtype)
    assert np.unique(feed(spec, shape=[40, 40]).values.astype(int)).tolist() == list(range(50))


def test_indices_end_where_their_type_ends(tmp_path: Path) -> None:
    table = f"float[200] w = {{{','.join(['1'] * 200)}}}"
    graph = f"g (int8[b] x) => (float[n] y) <{table}> {{ i = Cast<to=7>(x) y = Gather(w, i) }}"
    (spec,) = model_inputs(write_model(tmp_path / "model.onnx", graph))
    assert feed(spec, shape=[4000]).values.max() == 127


def test_floats_with_other_uses_stay_uniform(tmp_path: Path) -> None:
    spec = write_looking_up(tmp_path, "i = Cast<to=7>(x) z = Gather(w, i) y = Mul(x, x)", "float")
    assert feed(spec, shape=[40, 40]).values.max() < 1
    assert spec.uses == InputUses(50, (), True)


def test_a_one_hot_vector_limits_its_indices(tmp_path: Path) -> None:
    body = "d = Constant<value = int64 {7}>() v = Constant<value = float[2] {0.0, 1.0}>() y = OneHot(x, d, v)"
    spec = write_looking_up(tmp_path, body, "int32")
    assert np.unique(feed(spec, shape=[9, 40]).values).tolist() == list(range(7))


@pytest.mark.parametrize(("shape", "values"), [([1, 1], [16000]), ([9, 40], [16000, 16001])])
def test_values_reach_the_constants_that_they_are_compared_with(
    shape: list[int], values: list[int], tmp_path: Path
) -> None:
    body = "c = Constant<value = int64[1] {16000}>() e = Equal(x, c) y = Cast<to=1>(e)"
    drawn = feed(write_looking_up(tmp_path, body, "int64"), shape=shape)
    assert np.unique(drawn.values).tolist() == values


def test_indices_are_followed_into_local_functions(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        g (float[b,s] x) => (float[n] y) {TABLE} {{ i = own.whole(x) y = own.look(w, i) }}
        <domain: "own", opset_import: ["" : 17]> whole (a) => (c) {{ r = Round(a) c = Cast<to=7>(r) }}
        <domain: "own", opset_import: ["" : 17]> look (t, i) => (c) {{ c = Gather(t, i) }}
    """)
    onnx.save(model, tmp_path / "model.onnx")
    assert model_inputs(tmp_path / "model.onnx")[0].table_rows == 50


def test_functions_that_call_themselves_leave_the_uses_unknown(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        g (int64[b,s] x) => (float[n] y) {TABLE} {{ i = own.f(x) y = Gather(w, i) }}
        <domain: "own", opset_import: ["" : 17, "own" : 1]> f (a) => (c) {{ b = own.f(a) c = own.f(b) }}
    """)
    onnx.save(model, tmp_path / "model.onnx")
    assert model_inputs(tmp_path / "model.onnx")[0].uses == InputUses()


def test_two_tables_limit_an_index_by_the_smaller(tmp_path: Path) -> None:
    assert rows(tmp_path, "s = Constant<value = float[2,1] {1.0, 2.0}>() y = Gather(w, ids) z = Gather(s, ids)") == 2


@pytest.mark.parametrize("name", ["attention_mask", "mask", "encoder/pixel_mask:0", "input_mask.1"])
@pytest.mark.parametrize("dtype", ["int64", "bool"])
def test_masks_hide_nothing(name: str, dtype: str) -> None:
    values = feed(TensorSpec(name, dtype, (2, 3)))
    assert bool(np.all(values.values == 1))
    assert values.description.startswith("ones, a mask") and values.description.endswith(f", {dtype} 2x3")


@pytest.mark.parametrize("name", ["key_padding_mask", "padding_mask", "src_mask", "bool_masked_pos", "mask_x"])
def test_masks_that_may_mean_the_opposite_stay_random(name: str) -> None:
    assert feed(TensorSpec(name, "bool", (2, 3))).description.startswith("random bools")
    assert feed(TensorSpec("attention_mask", "float32", (2, 3))).description.startswith("random uniform")


def test_types_and_positions_of_tokens() -> None:
    assert feed(TensorSpec("token_type_ids", "int64", (1, 3))).values.tolist() == [[0, 0, 0]]
    values = feed(TensorSpec("position_ids", "int32", (2, 3)))
    assert values.values.tolist() == [[0, 1, 2], [0, 1, 2]]
    assert values.description == "positions 0 to 2, int32 2x3"
    assert feed(TensorSpec("position_ids", "float32", (2, 3))).description.startswith("random uniform")


AUDIO = TensorSpec("audio_signal", "float32", ("b", 80, "t"))
TEXT = TensorSpec("text", "int64", ("b", "s"))


@pytest.mark.parametrize(
    ("name", "others", "sizes", "length"),
    [
        ("length", [AUDIO], {"audio_signal": [2, 80, 300]}, 300),
        ("text_lengths", [AUDIO, TEXT], {"audio_signal": [2, 80, 300], "text": [2, 7]}, 7),
        ("x_lens", [AUDIO, TEXT], {"audio_signal": [2, 80, 7], "text": [2, 7]}, 7),
        ("x_lens", [AUDIO, TEXT], {"audio_signal": [2, 80, 300], "text": [2, 7]}, None),
        ("length", [TensorSpec("image", "float32", ("b", 3, "h", "w"))], {"image": [2, 3, 8, 8]}, None),
        ("max_length", [TEXT], {"text": [2, 7]}, None),
        ("lengths", [], {}, None),
    ],
)
def test_lengths_are_those_of_the_input_that_they_can_refer_to(
    name: str, others: list[TensorSpec], sizes: dict[str, list[int]], length: int | None
) -> None:
    given = specs({item: {"shape": shape} for item, shape in sizes.items()})
    values = make_feeds([TensorSpec(name, "int64", ("b",)), *others], given)[name]
    if length is None:
        assert values.description.startswith("random integers [0, 1), seed 0")
    else:
        assert values.values.tolist() == [length, length]
        assert values.description.startswith(f"{length}, the length of ")
