"""The inputs of a model's file, read without onnx: the same as onnx_ir reads."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from ndld_flow.base.errors import ModelError
from ndld_flow.models.external_files import declared_inputs, external_files, refuse_other_files
from ndld_flow.models.files import model_inputs
from tests.support.message_files import CheckMessage
from tests.support.models import save, tensor

MODELS = sorted((Path(onnx.__file__).parent / "backend/test/data").rglob("*.onnx"))[::4]


def write(folder: Path, *inputs: onnx.ValueInfoProto, weights: tuple[onnx.TensorProto, ...] = ()) -> Path:
    graph = helper.make_graph([], "g", inputs, [], weights)
    return save(helper.make_model(graph), folder / "model.onnx")


def agree(path: Path) -> bool:
    """Return whether both readers find the same; the light one has no types of sequences and maps."""
    heavy = {spec.name: spec for spec in model_inputs(path)}
    light = declared_inputs(path)
    return light.keys() == heavy.keys() and all(
        (each.dtype, each.shape) == ("", None) or (each.dtype, each.shape) == (heavy[name].dtype, heavy[name].shape)
        for name, each in light.items()
    )


def test_models_of_onnx_have_the_same_inputs() -> None:
    assert len(MODELS) > 20
    assert [path for path in MODELS if not agree(path)] == []


@pytest.mark.parametrize("dtype", sorted(set(TensorProto.DataType.values()) - {TensorProto.UNDEFINED}))
def test_every_element_type_has_its_name(dtype: int, tmp_path: Path) -> None:
    path = write(tmp_path, tensor("x", [1, "n", None, -1, "?"], dtype))
    declared = declared_inputs(path)["x"]
    assert declared.shape == (1, "n", None, None, None)
    assert agree(path)


def test_inputs_with_an_initializer_are_no_inputs_and_others_need_no_type(tmp_path: Path) -> None:
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1], [0.0])
    untyped = onnx.ValueInfoProto(name="untyped")
    items = helper.make_tensor_sequence_value_info("items", TensorProto.FLOAT, [1])
    path = write(
        tmp_path, tensor("w", [1]), untyped, items, tensor("scalar", []), tensor("any", None), weights=(weight,)
    )
    found = declared_inputs(path)
    assert [*found] == ["untyped", "items", "scalar", "any"]
    assert (found["scalar"].shape, found["any"].shape, found["untyped"].dtype) == ((), None, "")


@pytest.mark.parametrize(
    "data", [b"", b"a text", b"\x08\x07", b"\x3a\xff\x01"], ids=["empty", "text", "no graph", "cut"]
)
def test_other_files_are_refused(data: bytes, tmp_path: Path, check_message: CheckMessage) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    for read in (declared_inputs, external_files, refuse_other_files):
        with pytest.raises(ModelError) as caught:
            read(path)
        check_message(caught.value)
