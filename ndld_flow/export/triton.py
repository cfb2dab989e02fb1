"""Model repositories of Triton Inference Server: the configuration of a model or an engine.

Fields and their meaning are those of Triton's `model_config.proto` and of "Model Configuration" in its user guide. With
`max_batch_size: 0`, `dims` are whole shapes, which hold for every model; a larger one would promise that the first
dimension of every input and output is a batch, which a model does not state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ndld_flow.base.errors import RequestError
from ndld_flow.base.extras import ENGINE_LIBRARIES
from ndld_flow.base.text import short_name

VERSION = "1"
"""Folder of the only version of the model."""
_TYPES = {
    "bool": "TYPE_BOOL",
    **{f"{sign}int{bits}": f"TYPE_{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float16": "TYPE_FP16",
    "float32": "TYPE_FP32",
    "float64": "TYPE_FP64",
    "bfloat16": "TYPE_BF16",
    "string": "TYPE_STRING",
}


class _Tensor(NamedTuple):
    name: str
    dtype: str
    shape: Sequence[int | str | None] | None
    is_shape_tensor: bool = False


def describe_onnx(model: Path) -> tuple[str, str]:
    """Return the name of a model's file in its version folder, and the text of `config.pbtxt`.

    Raises RequestError for a model that Triton cannot serve.
    """
    from ndld_flow.models.files import model_inputs, model_outputs

    inputs, outputs = (
        [_Tensor(spec.name, spec.dtype, spec.shape) for spec in read(model)] for read in (model_inputs, model_outputs)
    )
    return "model.onnx", _config("onnxruntime", "onnxruntime_onnx", inputs, outputs)


def describe_engine(folder: Path) -> tuple[str, str]:
    """Return the same for the engine in a step's folder. Raises RequestError as `describe_onnx` does."""
    from ndld_flow.records.build import Build
    from ndld_flow.records.document import read_document
    from ndld_flow.records.run_folder import find_file

    record = read_document(Build, find_file(folder, Build.file_name))
    if not ENGINE_LIBRARIES[record.backend].has_triton_backend:
        raise RequestError(
            f"Triton has no backend for engines of {record.backend}: build one with `backend: tensorrt`."
        )
    values = {name for profile in record.profiles for name, shapes in profile.inputs.items() if shapes.values}
    inputs, outputs = (
        [
            _Tensor(each.name, each.dtype, [None if size < 0 else size for size in each.shape], each.name in values)
            for each in tensors
        ]
        for tensors in (record.inputs, record.outputs)
    )
    return "model.plan", _config("tensorrt", "tensorrt_plan", inputs, outputs)


def _config(backend: str, platform: str, inputs: Iterable[_Tensor], outputs: Iterable[_Tensor]) -> str:
    lines = [f'backend: "{backend}"', f'platform: "{platform}"', "max_batch_size: 0"]
    for side, tensors in (("input", inputs), ("output", outputs)):
        for tensor in tensors:
            lines += _describe(side, tensor)
    return "".join(f"{line}\n" for line in lines)


def _describe(side: str, tensor: _Tensor) -> Iterator[str]:
    from google.protobuf.text_encoding import CEscape

    name, shape = short_name(tensor.name, 60), tensor.shape
    if tensor.dtype not in _TYPES:
        raise RequestError(f"Triton cannot serve the model: it has no type {tensor.dtype or 'unknown'} ({name}).")
    if shape is None:
        raise RequestError(f"Triton cannot serve the model: the number of dimensions of {name} is unknown.")
    if 0 in shape:
        raise RequestError(f"Triton cannot serve the model: {name} has no elements.")
    yield f"{side} [ {{"
    yield f'  name: "{CEscape(tensor.name, as_utf8=False)}"'  # a hostile name may end the string
    yield f"  data_type: {_TYPES[tensor.dtype]}"
    if shape:
        yield f"  dims: [ {', '.join(str(size) if isinstance(size, int) else '-1' for size in shape)} ]"
    else:  # Triton has no scalars: a request with one element is passed on without its dimension
        yield "  dims: [ 1 ]"
        yield "  reshape: { shape: [ ] }"
    if tensor.is_shape_tensor:
        yield "  is_shape_tensor: true"
    yield "} ]"
