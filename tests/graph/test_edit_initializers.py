"""Operations on initializers: their values, types, forms, and where they are stored."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, get_args

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from pydantic import ValidationError

from ndld_flow.base.errors import RecipeError, RequestError
from ndld_flow.graph.edit import constant_tensors as sparse_tensors
from ndld_flow.graph.edit.settings import RandomKind
from ndld_flow.models import external_data
from ndld_flow.models.external_files import external_files
from ndld_flow.models.lazy_tensors import GeneratedTensor, in_type
from ndld_flow.step import DataFile
from ndld_flow.steps.edit import Edit
from tests.support import models
from tests.support.editing_fixtures import edit, edit_path, parse, run, same_outputs, text_of
from tests.support.message_files import CheckMessage

Array = npt.NDArray[Any]

LINEAR = """g (float[2, 3] x) => (float[2, 4] y)
<float[3, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, float[4] b = {0.5, -0.5, 0, 100000}, float[2] spare = {1, 2}>
{ [product] h = MatMul(x, w) [sum] y = Add(h, b) }"""
"""Two weights and one that nobody reads."""
X = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}

BRANCHES = """g (bool c, float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
    y = If (c) <
        then_branch = t () => (float[2] a) <float[2] w_then = {3, 4}> { [inner] a = Add(x, w_then) },
        else_branch = e () => (float[2] b) { k = Constant <value = float[2] {5, 6}> () [other] b = Mul(w, k) }
    >
}"""


def initializers(model: onnx.ModelProto) -> dict[str, Array]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


# Which tensors


@pytest.mark.parametrize(
    ("select", "found"),
    [
        ("w", {"w"}),
        (["w", "spare"], {"w", "spare"}),
        ("/^[bw]$/", {"w", "b"}),
        ({"rank": 1}, {"b", "spare"}),
        ({"shape": [None, 4]}, {"w"}),
        ({"larger_than": 8, "smaller_than": "40 B"}, {"b"}),
        ({"dtype": "fp32", "read_by": "sum"}, {"b"}),
        ({"stored": "inline", "exclude": "w"}, {"b", "spare"}),
        ({"scope": ""}, {"w", "b", "spare"}),
    ],
)
def test_a_selection_contains_tensors_that_match_all_its_keys(select: object, found: set[str]) -> None:
    after = edit(LINEAR, {"generate_initializers": {"select": select, "kind": "zeros"}})
    assert {name for name, array in initializers(after).items() if not array.any()} == found


def test_a_selection_looks_into_subgraphs_and_takes_constants_only_where_asked() -> None:
    generated = {"select": {"name": "*", "constants": True}, "kind": "ones"}
    text = text_of(edit(BRANCHES, {"generate_initializers": generated}))
    assert "w_then = {3" not in text and "{5,6}" not in text
    inner = {"select": {"name": "*", "scope": "*then_branch"}, "kind": "ones"}
    kept = text_of(edit(BRANCHES, {"generate_initializers": inner}))
    assert "w_then =  {1,1}" in kept.replace("> ", ">") or "{1,1}" in kept
    assert "{5,6}" in kept


@pytest.mark.parametrize(
    "select",
    [
        "wight",
        {"dtype": "int8"},
        {"dtype": "flot32"},
        {"rank": 7},
    ],
)
def test_an_empty_selection_is_reported_with_the_available_names(select: object, check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as refused:
        edit(LINEAR, {"generate_initializers": {"select": select, "kind": "zeros"}})
    assert "\n" not in str(refused.value)
    check_message(refused.value)


def test_an_empty_selection_may_be_allowed() -> None:
    nothing = {"select": "no_such", "kind": "zeros", "allow_empty": True}
    same_outputs(parse(LINEAR), edit(LINEAR, {"generate_initializers": nothing}), X)


# Adding, replacing, removing


def test_an_added_initializer_is_read_where_it_is_connected() -> None:
    added = {"name": "b2", "value": "[1, 2, 3, 4]", "dtype": "float32", "connect": ["sum.B"]}
    after = edit(LINEAR, {"add_initializer": added})
    expected = X["x"] @ initializers(after)["w"] + np.array([1, 2, 3, 4], np.float32)
    np.testing.assert_array_equal(run(after, X)["y"], expected)


def test_an_initializer_may_fill_an_omitted_input() -> None:
    model = "g (float[3] x) => (float[3] y) { [limit] y = Clip(x) }"
    after = edit(model, {"add_initializer": {"name": "most", "value": 1.5, "connect": ["limit.2"]}})
    np.testing.assert_array_equal(run(after, {"x": np.array([1, 2, 3], np.float32)})["y"], [1, 1.5, 1.5])


def test_an_initializer_may_be_added_to_a_subgraph() -> None:
    added = {"name": "w2", "value": [7, 8], "dtype": "float32", "scope": "y/then_branch", "connect": ["inner.1"]}
    after = edit(BRANCHES, {"add_initializer": added})
    feeds = {"c": np.array(True), "x": np.zeros(2, np.float32)}
    np.testing.assert_array_equal(run(after, feeds)["y"], [7, 8])
    assert "w2" not in initializers(after)


def test_in_a_function_it_becomes_a_constant_node(tmp_path: Path) -> None:
    added = {"name": "extra", "value": 1.0, "scope": "local::Linear"}
    before = models.func_model()
    scope = f"{before.functions[0].domain}::{before.functions[0].name}"
    after = edit(before, {"add_initializer": added | {"scope": scope}})
    result = [node for function in after.functions for node in function.node if "extra" in node.output]
    assert [node.op_type for node in result] == ["Constant"]


@pytest.mark.representatives("change8", "change9", "change4")
@pytest.mark.parametrize(
    "change",
    [
        {"name": "w", "value": 1},
        {"name": "n", "value": 1, "connect": ["sum.C"]},
        {"name": "n", "value": 1, "connect": ["summ.B"]},
        {"name": "n", "value": 1, "connect": ["sum"]},
        {"name": "n", "value": 1, "scope": "nowhere"},
        {"name": "n", "value": [1, "a"], "dtype": "float32"},
        {"name": "n", "generate": "ones"},
        {"name": "n", "value": [1, 2], "shape": [3]},
        {"name": "n", "file": "no_such.npy"},
        {"name": "n", "value": [0] * 10_001},
    ],
)
def test_an_invalid_initializer_is_refused(change: dict[str, object], check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as refused:
        edit(LINEAR, {"add_initializer": change})
    assert "\n" not in str(refused.value)
    check_message(refused.value)


def test_an_inner_tensor_is_not_visible_outside(check_message: CheckMessage) -> None:
    added = {"name": "w2", "value": [7, 8], "dtype": "float32", "scope": "y/then_branch", "connect": ["other.0"]}
    with pytest.raises(RequestError) as caught:
        edit(BRANCHES, {"add_initializer": added})
    check_message(caught.value)


def test_a_value_is_replaced_by_text_a_fill_or_a_file(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", np.full((3, 4), 2, np.float32))
    after = edit(
        LINEAR,
        {"set_initializer": {"name": "b", "value": [1, 2, 3, "inf"] and "[1, 2, 3, inf]"}},
        {"set_initializer": {"name": "w", "file": str(tmp_path / "w.npy")}},
        {"set_initializer": {"name": "spare", "value": 7}},
    )
    arrays = initializers(after)
    np.testing.assert_array_equal(arrays["b"], [1, 2, 3, np.inf])
    np.testing.assert_array_equal(arrays["w"], np.full((3, 4), 2))
    np.testing.assert_array_equal(arrays["spare"], [7, 7])


def test_a_large_file_is_copied_and_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ndld_flow.graph.edit.constant_tensors._STAYS_ON_DISK_BYTES", 16)
    np.save(tmp_path / "w.npy", np.full((3, 4), 2, np.float32))
    source = models.save(parse(LINEAR), tmp_path / "source.onnx")
    (tmp_path / "out").mkdir()
    edit_path(
        source, tmp_path / "out" / "model.onnx", {"set_initializer": {"name": "w", "file": str(tmp_path / "w.npy")}}
    )
    assert external_files(tmp_path / "out" / "model.onnx") == ("model.onnx.data",)
    np.testing.assert_array_equal(initializers(onnx.load(tmp_path / "out" / "model.onnx"))["w"], np.full((3, 4), 2))


def test_a_value_of_another_type_or_shape_is_refused_unless_allowed(tmp_path: Path) -> None:
    np.save(tmp_path / "b.npy", np.zeros(4, np.float64))
    np.save(tmp_path / "code.npy", np.array([print], dtype=object), allow_pickle=True)
    for change, options in (
        ({"file": str(tmp_path / "b.npy")}, "contains float64, but the tensor is float32"),
        ({"file": str(tmp_path / "code.npy")}, "is not a .npy file of numbers"),
        ({"value": [1, 2]}, "the numbers have the shape [2], not [4]"),
        ({"value": 1, "shape": [5]}, "'b' has the shape [4]; `reshape: true` allows another"),
        ({"value": [1, 2, 3, 1e39]}, "does not fit float32"),
    ):
        with pytest.raises(RequestError) as refused:
            edit(LINEAR, {"set_initializer": {"name": "b", **change}})
        assert options in str(refused.value)
    after = edit(LINEAR, {"set_initializer": {"name": "spare", "value": [[1, 2, 3]], "reshape": True, "dtype": "int8"}})
    assert initializers(after)["spare"].dtype == np.int8
    assert initializers(after)["spare"].shape == (1, 3)


def test_the_value_of_a_constant_node_is_replaced() -> None:
    after = edit(BRANCHES, {"set_initializer": {"name": "k", "scope": "y/else_branch", "value": [1, 2]}})
    feeds = {"c": np.array(False), "x": np.zeros(2, np.float32)}
    np.testing.assert_array_equal(run(after, feeds)["y"], [1, 4])


def test_only_one_source_of_numbers_is_accepted(check_message: CheckMessage) -> None:
    with pytest.raises(ValueError) as caught:
        edit(LINEAR, {"set_initializer": {"name": "b", "value": 1, "generate": "ones"}})
    check_message(caught.value)


def test_unused_initializers_are_removed_and_used_ones_kept(check_message: CheckMessage) -> None:
    after = edit(LINEAR, {"remove_initializers": {}})
    assert set(initializers(after)) == {"w", "b"}
    same_outputs(parse(LINEAR), after, X)
    assert set(initializers(edit(after, {"remove_initializers": {}}))) == {"w", "b"}
    with pytest.raises(RequestError) as caught:
        edit(LINEAR, {"remove_initializers": {"select": "w"}})
    check_message(caught.value)


def test_force_removes_only_optional_inputs(check_message: CheckMessage) -> None:
    model = """g (float[3] x) => (float[3] y) <float low = {0}, float high = {1}> { [limit] y = Clip(x, low, high) }"""
    after = edit(model, {"remove_initializers": {"select": "high", "force": True}})
    assert list(after.graph.node[0].input) == ["x", "low"]
    np.testing.assert_array_equal(run(after, {"x": np.array([-1, 0, 9], np.float32)})["y"], [0, 0, 9])
    with pytest.raises(RequestError) as caught:
        edit(LINEAR, {"remove_initializers": {"select": "w", "force": True}})
    check_message(caught.value)


# Made-up numbers


@pytest.mark.parametrize("dtype", [dtype for dtype in ir.DataType if dtype.name not in ("UNDEFINED", "STRING")])
@pytest.mark.parametrize("kind", get_args(RandomKind))
def test_random_values_follow_their_distribution_in_every_dtype(kind: str, dtype: ir.DataType) -> None:
    try:
        tensor = GeneratedTensor(kind, dtype, (7, 9), "w", 3)
    except RequestError as refused:
        signless = not dtype.is_signed() or dtype.name in ("BOOL", "FLOAT8E8M0")
        assert dtype.name.startswith("COMPLEX") or signless, str(refused)
        return
    array = tensor.numpy().astype(np.float64)
    assert array.shape == (7, 9) and len(tensor.tobytes()) == tensor.nbytes
    high = ml_dtypes.iinfo(dtype.numpy()).max if dtype.is_integer() else 1
    checks = {
        "normal": -6 < array.min() < 0 < array.max() < 6,
        "zeros": not array.any(),
        "ones": (array == 1).all(),
        "uniform_positive": array.min() >= (0 if dtype == ir.DataType.BOOL else 1e-30)
        and high / 2 < array.max() <= high,
        "uniform_negative": array.max() < 0 and -high <= array.min() < -high / 2,
    }
    assert checks[kind]


def test_random_values_depend_only_on_the_name() -> None:
    def result(name: str, seed: int) -> bytes:
        return GeneratedTensor("normal", ir.DataType.FLOAT, (300_000,), name, seed).tobytes()

    assert result("w", 1) == result("w", 1)
    assert len({result("w", 1), result("w", 2), result("v", 1)}) == 3
    array = np.frombuffer(result("w", 1), np.float32)
    assert abs(array.mean()) < 0.01 and abs(array.std() - 1) < 0.01


# Another type


def test_converted_weights_with_casts_match_rounded_weights(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    after = edit(LINEAR, {"convert_dtype": {"select": ["w", "b"], "to": "float16", "casts": True}})
    arrays = initializers(after)
    assert arrays["w"].dtype == arrays["b"].dtype == np.float16
    rounded = X["x"] @ arrays["w"].astype(np.float32) + arrays["b"].astype(np.float32)
    np.testing.assert_array_equal(run(after, X)["y"], rounded)
    assert "4 values 1 beyond float16's range" in caplog.text
    assert arrays["b"][3] == np.finfo(np.float16).max


def test_constants_and_attributes_are_converted_together() -> None:
    model = """g () => (float[3] y) { f = Constant <value_floats = [1.5, 2.5, 1e9]> ()
        s = Constant <value_ints = [3]> () [fill] c = ConstantOfShape <value = float[1] {0.5}> (s) y = Add(f, c) }"""
    after = edit(
        model,
        {"convert_dtype": {"select": {"dtype": "float32", "constants": True}, "attributes": "fill", "to": "float16"}},
        {"set_dtypes": {"dtypes": {"y": "float16"}, "cast": False}},
    )
    np.testing.assert_array_equal(run(after, {})["y"], np.array([2, 3, 65504], np.float16))


def test_an_output_that_is_converted_keeps_its_name_and_type() -> None:
    after = edit(LINEAR, {"convert_dtype": {"between": ["h", "y"], "to": "bfloat16"}})
    wanted = run(parse(LINEAR), X)["y"]
    result = run(after, X)["y"]
    assert result.dtype == np.float32 and [output.name for output in after.graph.output] == ["y"]
    assert not np.array_equal(result, wanted)
    np.testing.assert_allclose(result, wanted, rtol=0.01)


def test_values_of_sparse_weights_are_converted() -> None:
    after = edit(models.sparse_model(), {"convert_dtype": {"select": "*", "to": "float16", "casts": True}})
    assert {sparse.values.data_type for sparse in after.graph.sparse_initializer} == {onnx.TensorProto.FLOAT16}
    same_outputs(models.sparse_model(), after, {"x": np.ones((3, 4), np.float32)})


def test_strings_and_inputs_keep_their_type(check_message: CheckMessage) -> None:
    text = 'g (float[2] x) => (float[2] y) <string[1] s = {"a"}> { y = Relu(x) }'
    with pytest.raises(RequestError) as caught:
        edit(text, {"convert_dtype": {"select": "s", "to": "float16"}})
    check_message(caught.value)
    with pytest.raises(RequestError) as caught:
        edit(OLD, {"convert_dtype": {"select": "w", "to": "float16"}})
    check_message(caught.value)


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.floats(width=64) | st.integers(-(2**40), 2**40).map(float), max_size=8),
    st.sampled_from(["float16", "float32", "bfloat16", "float8_e4m3fn", "int4", "uint8", "int32", "int64", "bool"]),
)
def test_values_counted_as_lost_are_those_that_changed(numbers: list[float], word: str) -> None:
    dtype = ir.DataType.from_numpy(np.dtype(getattr(ml_dtypes, word, word)))
    values = np.array(numbers, np.float64)
    array, lost = in_type(values, dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        back = array.astype(np.float64)
    changed = ~((back == values) | (np.isnan(back) & np.isnan(values)))
    if word != "int64":  # a double cannot tell 2**63 - 1 from 2**63
        assert lost.beyond + lost.vanished + lost.rounded == int(changed.sum())
    finite = np.isfinite(values)
    assert np.isfinite(back[finite]).all()


def test_the_first_value_past_the_range_of_a_dtype_is_out_of_range() -> None:
    array, lost = in_type(np.array([127.0, 128.0, -128.0, -129.0]), ir.DataType.INT8)
    assert (array.tolist(), lost.beyond, lost.rounded) == ([127, 127, -128, -128], 2, 0)
    array, lost = in_type(np.array([2.0**63]), ir.DataType.INT64)
    assert (array.tolist(), lost.beyond) == ([2**63 - 1], 1)


# Where they are stored


def test_weights_are_externalized_and_inlined_again_without_loss(tmp_path: Path) -> None:
    source = models.make_cnn(tmp_path / "cnn.onnx")
    out, back = tmp_path / "out", tmp_path / "back"
    out.mkdir()
    back.mkdir()
    edit_path(
        source, out / "model.onnx", {"externalize_weights": {"file": "w.bin", "larger_than": 64, "alignment": 64}}
    )
    assert external_files(out / "model.onnx") == ("w.bin",)
    proto = onnx.load(out / "model.onnx", load_external_data=False)
    offsets = [int(e.value) for t in proto.graph.initializer for e in t.external_data if e.key == "offset"]
    outside = {tensor.name for tensor in proto.graph.initializer if tensor.external_data}
    assert outside == {name for name, array in initializers(onnx.load(source)).items() if array.nbytes > 64}
    assert len(outside) < len(proto.graph.initializer)
    assert offsets and all(offset % 64 == 0 for offset in offsets) and any(offset % 4096 for offset in offsets)
    edit_path(out / "model.onnx", back / "model.onnx", {"inline_weights": {}})
    assert sorted(path.name for path in back.iterdir()) == ["model.onnx"]
    before, after = initializers(onnx.load(source)), initializers(onnx.load(back / "model.onnx"))
    assert list(before) == list(after)
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)


def test_only_large_weights_stay_external(tmp_path: Path) -> None:
    source = models.make_ext(tmp_path / "ext.onnx", width=64)
    (tmp_path / "out").mkdir()
    edit_path(
        source,
        tmp_path / "out" / "model.onnx",
        {"add_initializer": {"name": "extra", "generate": "normal", "shape": [1000]}},
        {"externalize_weights": {"select": "extra", "file": "extra.bin"}},
        {"inline_weights": {"select": "w_0"}},
    )
    assert external_files(tmp_path / "out" / "model.onnx") == ("extra.bin", "model.onnx.data")
    onnx.checker.check_model(tmp_path / "out" / "model.onnx")
    arrays = initializers(onnx.load(tmp_path / "out" / "model.onnx"))
    for name, array in initializers(onnx.load(source)).items():
        np.testing.assert_array_equal(arrays[name], array)


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "../w.bin", "a/b.bin", ".hidden", "model.onnx", "MODEL.ONNX", "record.json", "LOG.txt", "a\\b"],
)
def test_a_data_file_outside_the_models_folder_is_refused(name: str, check_message: CheckMessage) -> None:
    with pytest.raises(ValueError) as caught:
        edit(LINEAR, {"externalize_weights": {"file": name}})
    check_message(caught.value)


def test_weights_too_large_for_one_file_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, check_message: CheckMessage
) -> None:
    monkeypatch.setattr("ndld_flow.graph.edit.operations.weight_storage._MAX_MODEL_BYTES", 1000)
    source = models.make_ext(tmp_path / "ext.onnx", width=32)
    (tmp_path / "out").mkdir()
    with pytest.raises(RequestError) as caught:
        edit_path(source, tmp_path / "out" / "model.onnx", {"inline_weights": {}})
    check_message(caught.value)


def test_a_tensor_with_two_names_is_written_once(tmp_path: Path) -> None:
    """Tied weights share their bytes also when the data file cannot be copied whole."""
    source = models.make_ext(tmp_path / "ext.onnx", width=64)
    proto = onnx.load(source, load_external_data=False)
    first, second = proto.graph.initializer[:2]
    second.CopyFrom(first)
    second.name = "w_1"
    onnx.save(proto, source)
    (tmp_path / "out").mkdir()
    edit_path(source, tmp_path / "out" / "model.onnx", {"externalize_weights": {"file": "w.bin", "alignment": 8}})
    assert (tmp_path / "out" / "w.bin").stat().st_size == 2 * 64 * 64 * 4


def test_external_data_of_constants_is_moved_along(tmp_path: Path) -> None:
    model = parse("g (float[4] x) => (float[4] y) { k = Constant <value = float[4] {1, 2, 3, 4}> () y = Add(x, k) }")
    source = models.save(model, tmp_path / "source.onnx")
    proto = onnx.load(source)
    tensor = proto.graph.node[0].attribute[0].t
    data = numpy_helper.to_array(tensor).tobytes()
    (tmp_path / "k.bin").write_bytes(data)
    tensor.ClearField("float_data")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "k.bin"), ("offset", "0"), ("length", str(len(data)))):
        tensor.external_data.add(key=key, value=value)
    onnx.save(proto, source)
    (tmp_path / "out").mkdir()
    edit_path(source, tmp_path / "out" / "model.onnx", {"rename_nodes": {"select": {"op_type": "Add"}, "to": "sum"}})
    assert external_files(tmp_path / "out" / "model.onnx") == ("model.onnx.data",)
    assert (tmp_path / "out" / "model.onnx.data").read_bytes() == data


# Sparse ones


def test_tensors_of_mostly_zeros_become_sparse_and_dense_again(check_message: CheckMessage) -> None:
    zeros = [[0] * 8 for _ in range(8)]
    zeros[2][3], zeros[7][7] = 5, -1
    model = edit(
        "g (float[8] x) => (float[8] y) <float[8, 8] w = {" + ", ".join(["1"] * 64) + "}> { y = MatMul(w, x) }",
        {"set_initializer": {"name": "w", "value": zeros}},
    )
    sparse = edit(model, {"make_sparse": {"select": "*", "zeros": "90 %"}})
    assert not sparse.graph.initializer
    [kept] = sparse.graph.sparse_initializer
    assert list(kept.values.dims) == [2] and list(numpy_helper.to_array(kept.indices)) == [19, 63]
    feeds = {"x": np.arange(8, dtype=np.float32)}
    same_outputs(model, sparse, feeds)
    dense = edit(sparse, {"make_dense": {"select": "w"}})
    np.testing.assert_array_equal(initializers(dense)["w"], zeros)
    with pytest.raises(RequestError) as caught:
        edit(model, {"make_sparse": {"select": "*", "zeros": 0.99}})
    check_message(caught.value)


def test_indices_continue_across_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_tensors, "UNPACKED_BYTES", 48)
    array = np.zeros(100, np.float32)
    array[[3, 50, 99]] = 1, 2, 3
    result = sparse_tensors.to_sparse(ir.Tensor(array), "w")
    np.testing.assert_array_equal(result.numpy(), array)


def test_a_sparse_initializer_is_added_by_values_and_indices() -> None:
    added = {"name": "w2", "values": [3, 4], "indices": [[0, 0], [2, 3]], "shape": [3, 4], "connect": ["product.B"]}
    after = edit(LINEAR, {"add_sparse_initializer": added}, {"remove_initializers": {}})
    w = np.zeros((3, 4), np.float32)
    w[0, 0], w[2, 3] = 3, 4
    np.testing.assert_array_equal(run(after, X)["y"], X["x"] @ w + initializers(after)["b"])


def test_files_with_sparse_parts_are_inputs_of_the_step(tmp_path: Path, check_message: CheckMessage) -> None:
    np.save(tmp_path / "v.npy", np.array([3, 4], np.float32))
    np.save(tmp_path / "i.npy", np.array([0, 11]))
    files = {"values_file": str(tmp_path / "v.npy"), "indices_file": str(tmp_path / "i.npy")}
    added = {"add_sparse_initializer": {"name": "w2", "shape": [3, 4], **files}}
    [kept] = edit(LINEAR, added).graph.sparse_initializer
    assert numpy_helper.to_array(kept.values).tolist() == [3, 4]
    step = Edit.model_validate({"operations": (added,)})
    assert {held.value for held in step.held(DataFile)} == {tmp_path / "v.npy", tmp_path / "i.npy"}
    with pytest.raises(ValidationError) as caught:
        edit(LINEAR, {"add_sparse_initializer": {"name": "w2", "shape": [3], "indices": [0]}})
    check_message(caught.value)


def test_scalars_do_not_become_sparse() -> None:
    text = "g (float[4] x) => (float[4] y) <float s = {0}, float[4] w = {0, 0, 0, 1}> { h = Add(x, s) y = Mul(h, w) }"
    after = edit(text, {"make_sparse": {"select": "*", "zeros": 0.5}})
    assert [sparse.values.name for sparse in after.graph.sparse_initializer] == ["w"]


@pytest.mark.parametrize(
    "indices",
    [
        [0, 12],
        [5, 2],
        [[0, 0], [3, 0]],
        [0, 1, 2],
    ],
)
def test_invalid_indices_are_refused(indices: object, check_message: CheckMessage) -> None:
    added = {"name": "w2", "values": [3, 4], "indices": indices, "shape": [3, 4]}
    with pytest.raises(RequestError) as refused:
        edit(LINEAR, {"add_sparse_initializer": added})
    check_message(refused.value)


# Other forms


OLD = """<ir_version: 3, opset_import: ["" : 8]>
g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { y = Mul(x, w) }"""


def test_constants_become_initializers_and_constants_again(check_message: CheckMessage) -> None:
    feeds = {"c": np.array(False), "x": np.ones(2, np.float32)}
    initial = edit(BRANCHES, {"constants_to_initializers": {}})
    assert "Constant" not in text_of(initial)
    same_outputs(parse(BRANCHES), initial, feeds)
    back = edit(initial, {"initializers_to_constants": {"select": "*"}})
    assert text_of(back).count("Constant") == 3 and not back.graph.initializer
    same_outputs(parse(BRANCHES), back, feeds)
    assert text_of(edit(initial, {"constants_to_initializers": {}})) == text_of(initial)
    with pytest.raises(RequestError) as caught:
        edit(initial, {"constants_to_initializers": {"select": "c"}})
    check_message(caught.value)


def test_an_initializer_becomes_an_input_with_or_without_its_value(check_message: CheckMessage) -> None:
    kept = edit(LINEAR, {"initializers_to_inputs": {"select": "b", "keep_values": True}})
    same_outputs(parse(LINEAR), kept, X)
    fed = {**X, "b": np.zeros(4, np.float32)}
    free = edit(LINEAR, {"initializers_to_inputs": {"select": "b"}})
    assert [i.name for i in free.graph.input] == ["x", "b"] and "b" not in initializers(free)
    np.testing.assert_array_equal(run(free, fed)["y"], run(kept, fed)["y"])
    with pytest.raises(RequestError) as caught:
        edit(BRANCHES, {"initializers_to_inputs": {"select": "w_then"}})
    check_message(caught.value)


def test_initializers_of_old_models_are_no_longer_inputs(check_message: CheckMessage) -> None:
    after = edit(OLD, {"remove_initializer_inputs": {}})
    assert [i.name for i in after.graph.input] == ["x"] and after.ir_version == 4
    same_outputs(parse(OLD), after, {"x": np.array([1, 2], np.float32)})
    assert text_of(edit(after, {"remove_initializer_inputs": {}})) == text_of(after)
    with pytest.raises(RequestError) as caught:
        edit(after, {"remove_initializer_inputs": {"select": {"rank": 1}}})
    check_message(caught.value)
    grown = edit(OLD, {"add_initializer": {"name": "n", "value": 1.0}})
    assert grown.ir_version == 4


def test_equal_initializers_are_merged(tmp_path: Path) -> None:
    model = "g (float[2] x) => (float[2] y) <float[2] a = {1, 2}, float[2] b = {1, 2}> { h = Add(x, a) y = Mul(h, b) }"
    after = edit(model, {"share_initializers": {}})
    assert list(initializers(after)) == ["a"]
    same_outputs(parse(model), after, {"x": np.ones(2, np.float32)})
    assert text_of(edit(after, {"share_initializers": {}})) == text_of(after)


def test_mistakes_in_settings_are_reported_before_anything_runs(check_message: CheckMessage) -> None:
    with pytest.raises((ValueError, RecipeError)) as caught:
        edit(LINEAR, {"convert_dtype": {"to": "float16"}})
    check_message(caught.value)
    assert external_data.INLINE_LIMIT_BYTES < 2**31
