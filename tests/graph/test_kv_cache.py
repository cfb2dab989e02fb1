"""The operation set_kv_cache: decoding token by token agrees with reading the whole sequence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from ndld_flow.base.errors import RequestError
from tests.support.decoders import STYLES, VOCABULARY, Array, Dims, Style, decode, decoder_model, full_pass, past_names
from tests.support.editing_fixtures import edit
from tests.support.fp16_checks import convert

_TOKENS = np.random.default_rng(7).integers(0, VOCABULARY, (2, 8))
_ADD = {"set_kv_cache": {"mode": "add"}}
_REMOVE = {"set_kv_cache": {"mode": "remove"}}


def _close(first: Array, second: Array, tolerance: float = 1e-5) -> bool:
    return bool(np.abs(first - second).max() <= tolerance * np.abs(second).max())


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("style", STYLES)
def test_an_added_cache_decodes_as_the_full_pass(style: Style, quantized: bool) -> None:
    source = decoder_model(style, cache=False, quantized=quantized)
    cached = edit(source, _ADD)
    expected = decoder_model(style, quantized=quantized)
    assert past_names(cached) == past_names(expected)
    assert [info.name for info in cached.graph.output] == [info.name for info in expected.graph.output]
    assert _close(decode(cached, _TOKENS), full_pass(source, _TOKENS))
    assert _close(full_pass(cached, _TOKENS), full_pass(source, _TOKENS))


@pytest.mark.parametrize("style", STYLES)
def test_a_model_without_its_cache_reads_the_whole_sequence(style: Style) -> None:
    source = decoder_model(style)
    bare = edit(source, _REMOVE)
    assert not past_names(bare) and [info.name for info in bare.graph.output] == ["logits"]
    assert _close(full_pass(bare, _TOKENS), decode(source, _TOKENS))


@pytest.mark.parametrize("style", STYLES)
def test_removing_what_was_added_restores_the_model(style: Style) -> None:
    source = decoder_model(style, cache=False)
    again = edit(edit(source, _ADD), _REMOVE)
    assert [node.SerializeToString() for node in again.graph.node] == [
        node.SerializeToString() for node in edit(source, {"infer_shapes": {}}).graph.node
    ]
    assert len(again.graph.input) == len(source.graph.input)


@pytest.mark.parametrize("style", STYLES)
def test_a_cache_in_fp16_behind_casts_is_removed(style: Style, tmp_path: Path) -> None:
    half = onnx.load(convert(decoder_model(style), tmp_path)[0])
    bare = edit(half, _REMOVE)
    assert not past_names(bare)
    assert sum(node.op_type == "Cast" for node in bare.graph.node) == 1 + 2 * (style == "group")
    assert _close(full_pass(bare, _TOKENS), decode(half, _TOKENS), 0.01)


def test_a_cache_is_added_in_fp16(tmp_path: Path) -> None:
    half = onnx.load(convert(decoder_model("group", cache=False), tmp_path, '{"keep_io": false}')[0])
    cached = edit(half, _ADD)
    kinds = {info.type.tensor_type.elem_type for info in cached.graph.input if info.name.startswith("past")}
    assert kinds == {TensorProto.FLOAT16}
    assert _close(decode(cached, _TOKENS), full_pass(half, _TOKENS), 0.01)


def _with_counted_positions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Replace the input of positions by Range(0, length of the tokens)."""
    counted = onnx.ModelProto()
    counted.CopyFrom(model)
    kept = [info for info in counted.graph.input if info.name != "position_ids"]
    del counted.graph.input[:]
    counted.graph.input.extend(kept)
    constants = {"zero": np.array(0), "one": np.array(1), "start": np.array([0])}
    counted.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    nodes = [
        helper.make_node("Shape", ["input_ids"], ["tokens_shape"]),
        helper.make_node("Gather", ["tokens_shape", "one"], ["length"]),
        helper.make_node("Range", ["zero", "length", "one"], ["positions"]),
        helper.make_node("Unsqueeze", ["positions", "start"], ["row"]),
        helper.make_node("Expand", ["row", "tokens_shape"], ["position_ids"]),
    ]
    kept_nodes = list(counted.graph.node)
    del counted.graph.node[:]
    counted.graph.node.extend([*nodes, *kept_nodes])
    return counted


@pytest.mark.parametrize("style", ["standard", "multi_head"])
def test_counted_positions_continue_after_the_cache(style: Style) -> None:
    source = _with_counted_positions(decoder_model(style, cache=False))
    cached = edit(source, _ADD)
    assert _close(decode(cached, _TOKENS), full_pass(source, _TOKENS))
    assert not _close(decode(_with_counted_positions(decoder_model(style)), _TOKENS), full_pass(source, _TOKENS), 1e-3)
    assert _close(full_pass(edit(cached, _REMOVE), _TOKENS), full_pass(source, _TOKENS))


def test_names_and_dimensions_are_chosen() -> None:
    settings = {"mode": "add", "past": "kv_{part}_{layer}", "present": "kv_{part}_{layer}_new", "past_dim": "P"}
    cached = edit(decoder_model("standard", cache=False, layers=1), {"set_kv_cache": settings})
    key = next(info for info in cached.graph.input if info.name == "kv_key_0")
    assert [dim.dim_param or dim.dim_value for dim in key.type.tensor_type.shape.dim] == ["batch", 2, "P", 16]
    assert [info.name for info in cached.graph.output] == ["logits", "kv_key_0_new", "kv_value_0_new"]


def _bidirectional() -> onnx.ModelProto:
    model = decoder_model("standard", cache=False)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "is_causal":
                attribute.i = 0
    return model


def _masked() -> onnx.ModelProto:
    """Attention with a mask that the model computes."""
    model = decoder_model("standard", cache=False, layers=1)
    attention = next(node for node in model.graph.node if node.op_type == "Attention")
    place = list(model.graph.node).index(attention)
    model.graph.initializer.append(numpy_helper.from_array(np.ones((1, 1), np.bool_), "row"))
    attention.input.append("mask")
    model.graph.node.insert(place, helper.make_node("Identity", ["row"], ["mask"]))
    return model


def _lengths_of_tokens() -> onnx.ModelProto:
    """GroupQueryAttention whose lengths are those of the new tokens."""
    model = decoder_model("group", cache=False)
    for node in model.graph.node:
        node.input[:] = ["input_ids" if name == "attention_mask" else name for name in node.input]
    del model.graph.input[1]
    return model


def _with_node(op_type: str, **attributes: Any) -> onnx.ModelProto:
    """Put an operator between the last normalization and the head."""
    model = decoder_model("standard", cache=False)
    head = model.graph.node[-1]
    inputs = {
        "CumSum": [head.input[0], "axis"],
        "Attention": [head.input[0]] * 3,
        "MatMul": ["softmax", head.input[0]],
    }[op_type]
    model.graph.initializer.append(numpy_helper.from_array(np.array(1), "axis"))
    scores = [
        helper.make_node("Transpose", [head.input[0]], ["turned"], perm=[0, 2, 1]),
        helper.make_node("MatMul", [head.input[0], "turned"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["softmax"]),
    ]
    node = helper.make_node(op_type, inputs, ["combined"], name="extra", **attributes)
    head.input[0] = "combined"
    for item in [*(scores if op_type == "MatMul" else []), node]:
        model.graph.node.insert(len(model.graph.node) - 1, item)
    return model


def _sliced_table() -> onnx.ModelProto:
    """Learned positions: as many rows of a table as there are tokens."""
    model = _with_counted_positions(decoder_model("standard", cache=False))
    table = np.arange(64)
    constants = {"table": table, "first": np.array([0]), "rank_one": np.array([1])}
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    place = next(index for index, node in enumerate(model.graph.node) if node.op_type == "Range")
    del model.graph.node[place]
    for node in (
        helper.make_node("Slice", ["table", "first", "count"], ["positions"]),
        helper.make_node("Unsqueeze", ["length", "first"], ["count"]),
    ):
        model.graph.node.insert(place, node)
    return model


def _constant_positions() -> onnx.ModelProto:
    model = decoder_model("multi_head", cache=False)
    del model.graph.input[1]
    model.graph.initializer.append(numpy_helper.from_array(np.array([0]), "position_ids"))
    return model


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        (_bidirectional, {"mode": "add"}, "no selected attention without a cache that is causal"),
        (lambda: decoder_model("group"), {"mode": "add"}, "no selected attention without a cache that is causal"),
        (lambda: decoder_model("group", cache=False), {"mode": "remove"}, "no selected attention with a cache"),
        (_masked, {"mode": "add"}, "its mask is computed, perhaps for the tokens of one run"),
        (_lengths_of_tokens, {"mode": "add"}, "length of the sequence from 'input_ids', which has only new tokens"),
        (lambda: _with_node("CumSum"), {"mode": "add"}, r"extra \(CumSum\) may combine values of several tokens"),
        (
            lambda: _with_node("Attention", q_num_heads=4, kv_num_heads=4),
            {"mode": "add"},
            r"extra \(Attention\) may combine values of several tokens",
        ),
        (lambda: _with_node("MatMul"), {"mode": "add"}, r"\(MatMul\) may combine values of several tokens"),
        (_sliced_table, {"mode": "add"}, r"\(Slice\) may combine values of several tokens"),
        (_constant_positions, {"mode": "add"}, "its positions are constant; make 'position_ids' an input"),
        (
            lambda: decoder_model("group", cache=False),
            {"mode": "add", "present": "logits{layer}{part}", "past": "x"},
            r"`past` needs \{layer\} and \{part\}",
        ),
        (
            lambda: decoder_model("standard", cache=False),
            {"mode": "add", "past": "layers.{layer}{part}", "present": "layers.{layer}{part}"},
            "there is already a tensor 'layers.0key'; choose other names",
        ),
    ],
)
def test_what_would_decode_wrongly_is_refused(
    model: Callable[[], onnx.ModelProto], settings: dict[str, str], message: str
) -> None:
    with pytest.raises((RequestError, ValueError), match=message):
        edit(model(), {"set_kv_cache": settings})


def test_a_mask_that_is_an_input_covers_the_cached_tokens() -> None:
    source = decoder_model("standard", cache=False, layers=1)
    attention = next(node for node in source.graph.node if node.op_type == "Attention")
    attention.input.append("mask")
    source.graph.input.append(helper.make_tensor_value_info("mask", TensorProto.BOOL, ["batch", 1, 1, "seq"]))
    cached = edit(source, _ADD)
    mask = next(info for info in cached.graph.input if info.name == "mask")
    dims = [dim.dim_param or dim.dim_value for dim in mask.type.tensor_type.shape.dim]
    assert dims == ["batch", 1, 1, "total_sequence_length"]


def test_outputs_with_present_keys_are_kept() -> None:
    """The first of two exports: without past keys, with present ones."""
    source = edit(decoder_model("standard"), {"set_kv_cache": {"mode": "remove"}})
    for layer, node in enumerate(node for node in source.graph.node if node.op_type == "Attention"):
        for part in ("key", "value"):
            node.output.append(f"own_{part}_{layer}")
            dims: Dims = ["batch", 2, "seq", 16]
            source.graph.output.append(helper.make_tensor_value_info(node.output[-1], TensorProto.FLOAT, dims))
    cached = edit(source, _ADD)
    outputs = [info.name for info in cached.graph.output]
    assert outputs == ["logits", "own_key_0", "own_value_0", "own_key_1", "own_value_1"]
    assert _close(decode(cached, _TOKENS), full_pass(source, _TOKENS))


def test_cross_attention_gets_no_cache() -> None:
    source = decoder_model("standard", cache=False)
    head = source.graph.node[-1]
    states = helper.make_tensor_value_info("states", TensorProto.FLOAT, ["batch", "frames", 64])
    source.graph.input.append(states)
    heads: dict[str, Any] = {"q_num_heads": 4, "kv_num_heads": 4}
    node = helper.make_node("Attention", [head.input[0], "states", "states"], ["crossed"], name="cross", **heads)
    head.input[0] = "crossed"
    source.graph.node.insert(len(source.graph.node) - 1, node)
    assert len(past_names(edit(source, _ADD))) == 4


def test_a_request_to_skip_the_checks_is_honoured() -> None:
    cached = edit(_with_node("CumSum"), {"set_kv_cache": {"mode": "add", "unchecked": True}})
    assert len(past_names(cached)) == 4


def _joined(extra: str = "", more: str = "") -> onnx.ModelProto:
    """One layer as PyTorch exports it: keys and values are joined by Concat, and positions continue after the cache."""
    text = f"""<ir_version: 9, opset_import: ["" : 18]>
    g (float[b, s, 8] x, float[b, 1, s, t] mask, float[b, 2, p, 4] past_k, float[b, 2, p, 4] past_v)
        => (float[b, s, 8] y, float[b, 2, t, 4] present_k, float[b, 2, t, 4] present_v{more})
        <int64[4] split = {{0, 0, 2, 4}}, int64[3] merge = {{0, 0, 8}}, int64 two = {{2}}, int64 one = {{1}}> {{
        past_shape = Shape (past_k)
        past_length = Gather (past_shape, two)
        x_shape = Shape (x)
        new_length = Gather (x_shape, one)
        total = Add (past_length, new_length)
        one_position = Constant <value = int64 {{1}}> ()
        positions = Range (past_length, total, one_position)
        floats = Cast <to = 1> (positions)
        axes = Constant <value = int64[1] {{1}}> ()
        column = Unsqueeze (floats, axes)
        h = Add (x, column)
        q0 = MatMul (h, wq)
        k0 = MatMul (h, wk)
        v0 = MatMul (h, wv)
        q1 = Reshape (q0, split)
        k1 = Reshape (k0, split)
        v1 = Reshape (v0, split)
        q = Transpose <perm = [0, 2, 1, 3]> (q1)
        k = Transpose <perm = [0, 2, 1, 3]> (k1)
        v = Transpose <perm = [0, 2, 1, 3]> (v1)
        keys = Concat <axis = -2> (past_k, k)
        present_v = Concat <axis = 2> (past_v, v)
        present_k = Identity (keys)
        turned = Transpose <perm = [0, 1, 3, 2]> (keys)
        scores = MatMul (q, turned)
        masked = Add (scores, mask)
        weights = Softmax <axis = -1> (masked)
        mixed = MatMul (weights, present_v)
        back = Transpose <perm = [0, 2, 1, 3]> (mixed)
        y = Reshape (back, merge)
        {extra}
    }}"""
    model = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    for name in ("wq", "wk", "wv"):
        weight = random.normal(0, 0.3, (8, 8)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    return model


def _run(model: onnx.ModelProto, feeds: dict[str, Array]) -> dict[str, Array]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, map(np.asarray, session.run(names, feeds)), strict=True))


def test_a_cache_joined_by_concat_is_removed() -> None:
    model = _joined()
    whole = edit(model, _REMOVE)
    assert [value.name for value in whole.graph.input] == ["x", "mask"]
    assert [value.name for value in whole.graph.output] == ["y"]
    x = np.random.default_rng(1).normal(size=(2, 5, 8)).astype(np.float32)
    past = {name: np.zeros((2, 2, 0, 4), np.float32) for name in ("past_k", "past_v")}
    steps = []
    for step in range(5):
        mask = np.zeros((2, 1, 1, step + 1), np.float32)
        out = _run(model, {"x": x[:, step : step + 1], "mask": mask, **past})
        past = {"past_k": out["present_k"], "past_v": out["present_v"]}
        steps.append(out["y"])
    causal = np.broadcast_to(np.triu(np.full((5, 5), -1e9, np.float32), 1), (2, 1, 5, 5)).copy()
    assert _close(_run(whole, {"x": x, "mask": causal})["y"], np.concatenate(steps, axis=1))


def test_a_history_that_more_than_attention_reads_is_no_cache() -> None:
    """A convolution over the joined tensor needs the earlier tokens."""
    model = _joined("z = MaxPool <kernel_shape = [1, 1]> (present_v)", ", float[b, 2, t, 4] z")
    with pytest.raises(RequestError, match=r"MaxPool.* reads them, which is no attention and needs its history"):
        edit(model, _REMOVE)
    model = _joined("linear = MatMul (present_v, wide) z = Relu (linear)", ", float[b, 2, t, 4] z")
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 4), np.float32), "wide"))
    with pytest.raises(RequestError, match=r"Relu.* reads them"):
        edit(model, _REMOVE)
    with pytest.raises(RequestError, match="no selected attention without a cache that is causal"):
        edit(_joined(), _ADD)
