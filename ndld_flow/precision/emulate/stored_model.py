"""A model in fp32 that computes what hardware with fp16 storage and fp32 arithmetic computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from ndld_flow.base.errors import ModelError
from ndld_flow.base.text import short_name
from ndld_flow.models.element_types import Types, dtype_of, element_of, infer_types
from ndld_flow.models.files import check_model, load_model, save_model
from ndld_flow.models.op_signatures import is_op
from ndld_flow.precision.emulate.native_nodes import native_nodes
from ndld_flow.precision.emulate.retyping import Retyper
from ndld_flow.precision.emulate.roundings import Rounder
from ndld_flow.precision.fp16.convert import prepare

_STORED = frozenset({"float16", "bfloat16"})
_FIRST_OPSET_OF_BF16 = 13
_RECURRENT = ("GRU", "LSTM", "RNN")


@dataclass(frozen=True)
class EmulatedModel:
    """What was done to emulate a model's stored precisions."""

    outputs: Mapping[str, str]
    """Output that is fp32 now -> the dtype it is stored in: `float16`, `bfloat16`. All names stay, and all inputs."""
    roundings: int
    """Tensors that are rounded to their stored type behind the node that computes them."""
    notes: tuple[str, ...]
    """Sentences for people: what the emulation does otherwise than hardware may."""


def emulate_stored(source: Path, target: Path) -> EmulatedModel | None:
    """Write `source` to `target` with fp32 arithmetic, and every fp16 and bf16 tensor rounded to its type as stored.

    ONNX Runtime computes fp16 models in fp32 on a CPU and never rounds in between: what overflows on a GPU is invisible
    there. Here a Cast to the stored type and one back to fp32 stand behind each node that computes such a tensor; the
    tensor behind them has the original name. Inputs keep their dtypes. Weights are widened while they are written, so
    that memory does not grow with the model. It opens faster with `SessionSettings.memory_reuse` off. None, and nothing
    written, when no tensor of the model is fp16 or bf16. Raises `ModelError` for a model that cannot be read or
    emulated.
    """
    model = load_model(source)
    try:
        return _emulate(model, source, target)
    except (LookupError, TypeError, ValueError, AttributeError):
        check_model(source, full_check=True)
        raise


def _emulate(model: ir.Model, source: Path, target: Path) -> EmulatedModel | None:
    prepare(model, source)
    types = infer_types(model)
    stored = _stored_values(types)
    if not stored:
        return None
    _check_opset(model, stored, source)
    native = native_nodes(model, types, stored, source)
    outputs = {str(v.name): str(stored[v].numpy().name) for v in model.graph.outputs if _changes(v, stored)}
    Retyper(model, stored, native).retype()
    rounder = Rounder(model, stored, native)
    rounder.round_all()
    save_model(model, target)
    return EmulatedModel(outputs, rounder.roundings, tuple(_notes(model, stored, native)))


def _stored_values(types: Types) -> dict[ir.Value, ir.DataType]:
    """Values of fp16 and bf16, of sequences the type of their tensors."""
    return {value: dtype_of(type_) for value, type_ in types.items() if element_of(type_) in _STORED}


def _check_opset(model: ir.Model, stored: Mapping[ir.Value, ir.DataType], source: Path) -> None:
    opset = model.opset_imports.get("", _FIRST_OPSET_OF_BF16)
    if opset < _FIRST_OPSET_OF_BF16 and ir.DataType.BFLOAT16 in stored.values():
        raise ModelError(
            f"{source}: it has bf16 tensors, which ONNX knows from opset {_FIRST_OPSET_OF_BF16} on, and is opset "
            f"{opset}. Convert the model it was made of to opset {_FIRST_OPSET_OF_BF16} or later first."
        )


def _notes(model: ir.Model, stored: Mapping[ir.Value, ir.DataType], native: set[ir.Node]) -> list[str]:
    """What the emulation cannot know of hardware."""
    inside = [node for node in model.graph.all_nodes() if is_op(node, *_RECURRENT) and _computes(node, stored)]
    notes = []
    if inside:
        nodes = f"{len(inside)} recurrent node{'s' if len(inside) > 1 else ''}"
        notes.append(
            f"the state in {nodes} ({short_name(inside[0].name or inside[0].op_type)}"
            f"{', ...' if len(inside) > 1 else ''}) is rounded once at the end, not at every step"
        )
    left = sorted({node.op_type for node in native if not is_op(node, "BitCast", "Constant")})
    if left:
        notes.append(f"computed as ONNX Runtime has it at reduced precision: {', '.join(left)}")
    return notes


def _changes(output: ir.Value, stored: Mapping[ir.Value, ir.DataType]) -> bool:
    """An input that is handed out as it is stays what it is."""
    return output in stored and (not output.is_graph_input() or output.is_initializer())


def _computes(node: ir.Node, stored: Mapping[ir.Value, ir.DataType]) -> bool:
    return any(value in stored for value in node.outputs)
