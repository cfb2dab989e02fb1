"""Statistics of a tensor, compared with numpy, for every dtype and on disk."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from onnx import TensorProto

from ndld_flow.models import tensor_statistics as subject
from ndld_flow.models.files import load_model
from ndld_flow.models.tensor_statistics import BINS, first_values, tensor_statistics
from ndld_flow.records.inspection import Numbers
from tests.support.models import make_ext, make_sparse


def expected(*values: object) -> Numbers:
    return Numbers.model_validate(dict(zip(Numbers.model_fields, values, strict=True)))


def numbers_of(array: Any, dtype: ir.DataType | None = None) -> Numbers:
    numbers = tensor_statistics(ir.Tensor(np.asarray(array), dtype=dtype)).numbers
    assert numbers is not None
    return numbers


def test_a_small_tensor_matches_values_computed_by_hand() -> None:
    statistics = tensor_statistics(ir.tensor(np.array([[0, 1, -3], [6, 0, 2]], dtype=np.int32)))
    assert (statistics.dtype, statistics.shape, statistics.elements, statistics.size_bytes, statistics.unread) == (
        "int32",
        (2, 3),
        6,
        24,
        "",
    )
    numbers = statistics.numbers
    assert numbers is not None
    assert (numbers.minimum, numbers.maximum, numbers.mean, numbers.zeros) == (-3, 6, 1, 2)
    assert numbers.std == pytest.approx(math.sqrt(22 / 3))
    assert (numbers.nans, numbers.infinities) == (0, 0)
    assert len(numbers.histogram) == BINS and sum(numbers.histogram) == 6
    assert (numbers.histogram[0], numbers.histogram[8], numbers.histogram[-1]) == (1, 2, 1)


@settings(max_examples=20, deadline=None)
@given(
    arrays.arrays(
        st.sampled_from([np.float16, np.float32, np.float64, np.int8, np.uint16, np.int64, np.uint64, np.bool_]),
        arrays.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=7),
    )
)
def test_statistics_match_numpy(array: np.ndarray[Any, Any]) -> None:
    numbers = numbers_of(array)
    doubles = array.astype(np.float64)
    finite = doubles[np.isfinite(doubles)]
    assert numbers.nans == np.isnan(doubles).sum() and numbers.infinities == np.isinf(doubles).sum()
    assert numbers.zeros == (array == 0).sum()
    assert numbers.minimum == (array[np.isfinite(array)].min().item() if finite.size else None)
    assert numbers.maximum == (array[np.isfinite(array)].max().item() if finite.size else None)
    with np.errstate(all="ignore"):
        if finite.size and math.isfinite(finite.std()) and numbers.std is not None:
            assert numbers.mean == pytest.approx(finite.mean(), rel=1e-9, abs=1e-300)
            assert numbers.std == pytest.approx(finite.std(), rel=1e-6, abs=1e-9 * np.abs(finite).max())
    assert sum(numbers.histogram) in (0, finite.size)


@pytest.mark.parametrize("name", ["INT4", "UINT4", "INT2", "UINT2", "FLOAT4E2M1", "FLOAT8E4M3FN", "BFLOAT16"])
@pytest.mark.parametrize("count", [1, 3, 8, 13])
def test_small_types_are_unpacked(name: str, count: int) -> None:
    dtype = ir.DataType[name]
    kind = dtype.numpy()
    low = int(ml_dtypes.iinfo(kind).min) if dtype.is_integer() else 0
    values = [low + index % 4 for index in range(count)]
    packed = ir.Tensor(np.array(values).astype(kind), dtype=dtype)
    numbers = tensor_statistics(packed).numbers
    assert numbers is not None
    assert (numbers.minimum, numbers.maximum) == (min(values), max(values))
    assert numbers.mean == pytest.approx(np.mean(values))
    assert first_values(packed, 100) == tuple(values)
    assert first_values(packed, 2) == tuple(values[:2])


def test_statistics_of_pieces_are_combined(monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.random.default_rng(0).normal(1000, 1, 10_001).astype(np.float32)
    array[[5, 4_000]] = np.nan, -np.inf
    whole = numbers_of(array)
    monkeypatch.setattr(subject, "_PIECE_BYTES", 480)
    pieces = numbers_of(array)
    assert pieces.std == pytest.approx(whole.std, rel=1e-9) == pytest.approx(np.nanstd(array[np.isfinite(array)]), 1e-4)
    assert (pieces.nans, pieces.infinities, pieces.histogram) == (1, 1, whole.histogram)
    assert sum(pieces.histogram) == 9_999


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([math.nan, math.inf], expected(None, None, None, None, 1, 1, 0, ())),
        ([], expected(None, None, None, None, 0, 0, 0, ())),
        ([2.5, 2.5], expected(2.5, 2.5, 2.5, 0.0, 0, 0, 0, (2,))),
        ([-1.7e308, 1.7e308], expected(-1.7e308, 1.7e308, 0.0, None, 0, 0, 0, ())),
        ([5e-324, 0.0], expected(0.0, 5e-324, 0.0, 0.0, 0, 0, 1, ())),
    ],
)
def test_numbers_at_the_limits_of_a_dtype_are_measured(values: list[float], message: Numbers) -> None:
    assert numbers_of(np.array(values, dtype=np.float64)) == message


def test_large_integers_stay_exact() -> None:
    numbers = numbers_of(np.array([2**63 - 1, -(2**63), 5], dtype=np.int64))
    assert (numbers.minimum, numbers.maximum) == (-(2**63), 2**63 - 1)
    assert first_values(ir.tensor(np.array([2**64 - 1], dtype=np.uint64)), 9) == (2**64 - 1,)


def test_complex_numbers_have_no_order() -> None:
    numbers = numbers_of(np.array([0, 1 + 2j, complex(math.nan, 0)], dtype=np.complex64))
    assert numbers == expected(None, None, None, None, 1, 0, 1, ())
    assert first_values(ir.tensor(np.array([1 - 2j], dtype=np.complex64)), 9) == ("1-2j",)


def test_strings_are_counted() -> None:
    words = ir.StringTensor(np.array([b"ab", "\N{SNOWMAN}".encode(), b"\xff"], dtype=object), name="words")
    statistics = tensor_statistics(words)
    assert (statistics.dtype, statistics.elements, statistics.size_bytes, statistics.numbers) == ("string", 3, 6, None)
    assert statistics.unread == "strings have no statistics"
    assert first_values(words, 3) == ("ab", "\N{SNOWMAN}", "\N{REPLACEMENT CHARACTER}")


def test_tensors_above_the_limit_are_not_read(tmp_path: Path) -> None:
    path = make_ext(tmp_path / "ext.onnx")
    data = tmp_path / "ext.onnx.bin"
    before = data.stat()
    weight = largest(path)
    statistics = tensor_statistics(weight, limit_bytes=1000)
    assert statistics.numbers is None and "256 KiB" in statistics.unread and "1,000 B" in statistics.unread
    assert (statistics.shape, statistics.size_bytes) == ((256, 256), 256 * 256 * 4)
    assert data.stat().st_atime_ns == before.st_atime_ns
    read = tensor_statistics(weight).numbers
    assert read is not None
    whole = weight.numpy().astype(np.float64)
    assert (read.minimum, read.maximum) == (whole.min(), whole.max())
    assert read.mean == pytest.approx(whole.mean()) and read.std == pytest.approx(whole.std())
    assert first_values(weight, 5) == tuple(whole.flatten()[:5])


def test_unreadable_data_is_an_os_error(tmp_path: Path) -> None:
    weight = largest(make_ext(tmp_path / "ext.onnx"))
    (tmp_path / "ext.onnx.bin").unlink()
    with pytest.raises(OSError, match=r"ext\.onnx\.bin"):
        tensor_statistics(weight)


def test_a_tensor_shorter_than_declared_is_refused() -> None:
    short = ir.serde.deserialize_tensor(
        TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], raw_data=b"\0" * 8)
    )
    statistics = tensor_statistics(short)
    assert statistics.numbers is None and "shape" in statistics.unread
    assert first_values(short, 9) == (0.0, 0.0)


def test_values_in_typed_fields_are_read(tmp_path: Path) -> None:
    packed = onnx.helper.make_tensor("w", TensorProto.INT4, [3], [-8, 7, 1])
    halves = onnx.helper.make_tensor("w", TensorProto.FLOAT16, [2], [0.5, -2.0])
    for proto, values in ((packed, (-8, 7, 1)), (halves, (0.5, -2.0))):
        held = ir.serde.deserialize_tensor(proto)
        assert first_values(held, 9) == values
        assert numbers_of_tensor(held).minimum == min(values)


def test_zeros_of_sparse_tensors_are_counted(tmp_path: Path) -> None:
    model = load_model(make_sparse(tmp_path / "sparse.onnx"))
    for value in model.graph.initializers.values():
        held = value.const_value
        assert held is not None
        assert numbers_of_tensor(held).zeros == (held.numpy() == 0).sum()
        assert first_values(held, 4) == tuple(held.numpy().flatten()[:4].tolist())


def numbers_of_tensor(held: ir.TensorProtocol) -> Numbers:
    numbers = tensor_statistics(held).numbers
    assert numbers is not None
    return numbers


def largest(path: Path) -> ir.TensorProtocol:
    weights = [value.const_value for value in load_model(path).graph.initializers.values()]
    return max((weight for weight in weights if weight is not None), key=lambda result: result.nbytes)
