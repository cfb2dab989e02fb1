"""Weights of other programs, such as a trained state dict, written into a model's constants by name and shape."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.base.extras import require
from ndld_flow.base.quantities import counted
from ndld_flow.base.text import one_paragraph, short_name
from ndld_flow.graph.edit.constant_tensors import ConstantTensor, constant_tensors, read_npy, replace_tensor
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.models.element_types import FLOATS
from ndld_flow.models.lazy_tensors import SparseInitializer
from ndld_flow.models.tensors import Array, shape_text

_PICKLES = (".pt", ".pth", ".bin", ".ckpt")
_MOST_NAMED = 20
_MOST_NAMES_BYTES = 64 * 2**20
_COUNTER = ".num_batches_tracked"
"""End of the keys of counters that PyTorch's normalizations have and ONNX does not."""


def read_weights(files: Sequence[Path], tensors: Sequence[str] = ()) -> dict[str, Array]:
    """Return name -> array of a `.safetensors` file, of a `.pt` file, or of `.npy` files of these tensors.

    A `.pt` file is read by PyTorch's loader of weights only, which runs no code of the file. Raises `RequestError` for
    files that are missing, damaged, or of another kind, and `BackendError` for a `.pt` file without PyTorch.
    """
    if tensors:
        if len(set(tensors)) != len(files):
            raise RequestError(f"{counted(len(files), 'file')} for {counted(len(set(tensors)), 'tensor')}")
        return {name: read_npy(file, None, name).numpy() for name, file in zip(tensors, files, strict=True)}
    if len(files) != 1:
        raise RequestError("give one .safetensors or .pt file, or .npy files only")
    (file,) = files
    if not file.is_file():
        raise RequestError(f"there is no file {file} (relative to {Path.cwd()})")
    if file.suffix == ".safetensors":
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(file, framework="numpy") as opened:
                return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  it is no mapping
        except (SafetensorError, OSError, TypeError, ValueError, KeyError) as error:
            raise RequestError(f"{file} is not a safetensors file that can be read: {one_paragraph(error)}") from None
    if file.suffix in _PICKLES:
        return _read_pickle(file)
    raise RequestError(f"{file}: weights are read from .safetensors, .npy and .pt files")


def _read_pickle(file: Path) -> dict[str, Array]:
    require("torch", f"{file.name}, a file of PyTorch,")
    import torch

    try:
        loaded = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = one_paragraph(str(error).split(". ")[0])
        raise RequestError(f"{file} is not a file of weights only, and others are not loaded: {reason}") from None
    if isinstance(loaded, dict) and isinstance(loaded.get("state_dict"), dict):
        loaded = loaded["state_dict"]
    if not isinstance(loaded, dict) or not all(isinstance(value, torch.Tensor) for value in loaded.values()):
        raise RequestError(f"{file} has no state dict: save `model.state_dict()`, best as safetensors")
    return {str(name): _array_of(tensor) for name, tensor in loaded.items()}


def _array_of(tensor: Any) -> Array:  # noqa: ANN401  of PyTorch, which may not be installed
    import torch

    if tensor.dtype == torch.bfloat16:
        widened: Array = tensor.float().numpy()
        return widened.astype(ml_dtypes.bfloat16)
    array: Array = tensor.detach().numpy()
    return array


def read_names(file: Path | None) -> Mapping[str, str | None]:
    """Return key of the state dict -> ONNX name, from `names.json` of `export_pytorch`; None: the model has no such
    tensor.
    """
    if file is None:
        return {}
    try:
        if file.stat().st_size > _MOST_NAMES_BYTES:
            raise ValueError("it is too large")
        document = json.loads(file.read_text(encoding="utf-8"))
        names = document["weights"]
        if not isinstance(names, dict) or not all(isinstance(each, str | None) for each in names.values()):
            raise TypeError("`weights` maps names to names")
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise RequestError(f"{file} is not the `names.json` of export_pytorch: {one_paragraph(error)}") from None
    return names


def import_weights(
    edited: EditedModel, weights: Mapping[str, Array], names: Mapping[str, str | None], partial: bool
) -> str:
    """Replace constants of a model by weights of the same name and shape; returns a summary.

    Floats are converted to the model's type. Raises `RequestError` that names every tensor without a counterpart on
    either side (unless `partial`), of another shape or type, and with NaN or infinity that the model does not have.
    """
    constants = _by_name(edited)
    wanted = {key: names.get(key, key) for key in weights}
    pairs = {key: constants[name] for key, name in wanted.items() if name is not None and name in constants}
    problems = [] if partial else [*_unmatched(weights, wanted, pairs), *_left_out(constants, names, wanted)]
    problems += [problem for key, held in pairs.items() if (problem := _misfit(key, weights[key], held))]
    if problems:
        hidden = len(problems) - _MOST_NAMED
        more = f"; and {hidden:,} more" if hidden > 0 else ""
        raise RequestError(f"the weights do not fit the model: {'; '.join(problems[:_MOST_NAMED])}{more}")
    if not pairs:
        raise RequestError("no tensor of the file has the name of a constant of the model; give `names`")
    changed = 0
    for key, held in pairs.items():
        new = np.array(_converted(weights[key], held), order="C")
        if new.tobytes() != held.tensor.tobytes():
            replace_tensor(held, ir.Tensor(new, dtype=held.tensor.dtype, name=held.name))
            changed += 1
    if partial:
        for sentence in [*_unmatched(weights, wanted, pairs), *_left_out(constants, names, wanted)]:
            edited.note(sentence)
    if not changed:
        edited.note("all imported weights equal the model's: nothing was trained, or the file is of another run")
    return f"{counted(len(pairs), 'tensor')} imported, {changed:,} of them changed"


def _by_name(edited: EditedModel) -> dict[str, ConstantTensor]:
    """Return the constants by name, without names that several graphs have."""
    found: dict[str, ConstantTensor | None] = {}
    for held in constant_tensors(edited.model):
        found[held.name] = None if held.name in found else held
    return {name: held for name, held in found.items() if held is not None}


def _unmatched(
    weights: Mapping[str, Array], wanted: Mapping[str, str | None], pairs: Mapping[str, ConstantTensor]
) -> Iterator[str]:
    """Yield a sentence for each tensor of the file that the model does not have."""
    for key, name in wanted.items():
        counter = key.endswith(_COUNTER) and f"{key.removesuffix(_COUNTER)}.running_mean" in weights
        if key not in pairs and name is not None and not counter:
            yield f"the model has no {short_name(name)!r}, which the file has as {short_name(key)!r}"


def _left_out(
    constants: Mapping[str, ConstantTensor], names: Mapping[str, str | None], wanted: Mapping[str, str | None]
) -> Iterator[str]:
    """Yield a sentence for each weight of the model that the file does not have.

    With `names`, weights are the tensors that these name; otherwise float initializers with dimensions.
    """
    known = {name for name in names.values() if name is not None}
    given = set(wanted.values())
    for name, held in constants.items():
        is_weight = held.node is None and held.tensor.dtype in FLOATS and len(held.tensor.shape) > 0
        if (name in known if names else is_weight) and name not in given:
            yield f"the file has nothing for {short_name(name)} of the model"


def _misfit(key: str, array: Array, held: ConstantTensor) -> str:
    """Return why a weight cannot replace a constant; empty if it can."""
    shape, dtype = tuple(int(dim) for dim in held.tensor.shape.numpy()), held.tensor.dtype
    if array.shape != shape:
        return f"{short_name(key)} is {shape_text(array.shape)}, and {shape_text(shape)} in the model"
    if isinstance(held.tensor, SparseInitializer) or dtype == ir.DataType.STRING:
        return f"{short_name(key)} would replace a sparse tensor or strings"
    own = ir.DataType.from_numpy(array.dtype)
    if own != dtype and not (own in FLOATS and dtype in FLOATS):
        return f"{short_name(key)} is {array.dtype.name}, and {dtype.name.lower()} in the model"
    new = _count_nonfinite(_converted(array, held))
    if new and new > _count_nonfinite(held.tensor.numpy()):
        return f"{short_name(key)} has {counted(new, 'element')} that are NaN or infinite"
    return ""


def _converted(array: Array, held: ConstantTensor) -> Array:
    with np.errstate(over="ignore"):
        return array.astype(held.tensor.dtype.numpy())


def _count_nonfinite(array: Array) -> int:
    is_float = array.dtype.kind == "f" or array.dtype == ml_dtypes.bfloat16
    return int(np.count_nonzero(~np.isfinite(array))) if is_float else 0
