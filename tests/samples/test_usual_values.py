"""Usual values of inputs: by the graph's use of token numbers and by well-known names, and never by a guess."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ndld_flow.models.files import model_inputs
from ndld_flow.models.tensors import TensorSpec
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
    ],
)
def test_token_numbers_are_drawn_from_the_rows_of_their_table(body: str, tmp_path: Path) -> None:
    assert rows(tmp_path, body) == 50
    (spec,) = model_inputs(tmp_path / "model.onnx")
    made = feed(spec, shape=[40, 40])
    assert (made.values.min(), made.values.max()) == (0, 49)
    assert made.description == "integers 0 to 49, the rows of the embedding table, seed 0, int64 40x40"
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
        "k = Equal(ids, two) k1 = ReduceMax(k) y = If(k1) <then_branch = t () => (float[n] a) { a = Gather(w, ids) }, "
        "else_branch = e () => (float[n] a) { a = Identity(w) }>",
    ],
)
def test_inputs_with_other_uses_stay_random(body: str, tmp_path: Path) -> None:
    assert rows(tmp_path, body) is None


def test_two_tables_limit_an_index_by_the_smaller(tmp_path: Path) -> None:
    assert rows(tmp_path, "s = Constant<value = float[2,1] {1.0, 2.0}>() y = Gather(w, ids) z = Gather(s, ids)") == 2


@pytest.mark.parametrize("name", ["attention_mask", "mask", "encoder/pixel_mask:0", "input_mask.1"])
@pytest.mark.parametrize("dtype", ["int64", "bool"])
def test_masks_hide_nothing(name: str, dtype: str) -> None:
    made = feed(TensorSpec(name, dtype, (2, 3)))
    assert bool(np.all(made.values == 1))
    assert made.description == f"ones, a mask that hides nothing, {dtype} 2x3"


@pytest.mark.parametrize("name", ["key_padding_mask", "padding_mask", "src_mask", "bool_masked_pos", "mask_x"])
def test_masks_that_may_mean_the_opposite_stay_random(name: str) -> None:
    assert feed(TensorSpec(name, "bool", (2, 3))).description.startswith("random bools")
    assert feed(TensorSpec("attention_mask", "float32", (2, 3))).description.startswith("random uniform")


def test_types_and_positions_of_tokens() -> None:
    assert feed(TensorSpec("token_type_ids", "int64", (1, 3))).values.tolist() == [[0, 0, 0]]
    made = feed(TensorSpec("position_ids", "int32", (2, 3)))
    assert made.values.tolist() == [[0, 1, 2], [0, 1, 2]]
    assert made.description == "positions 0 to 2, int32 2x3"
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
    given = specs({each: {"shape": shape} for each, shape in sizes.items()})
    made = make_feeds([TensorSpec(name, "int64", ("b",)), *others], given)[name]
    if length is None:
        assert made.description.startswith("random integers [0, 1), seed 0")
    else:
        assert made.values.tolist() == [length, length]
        assert made.description.startswith(f"{length}, the length of ")
