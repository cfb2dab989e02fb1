"""Tensors of a network that become outputs or debug tensors of the engine, so that their values can be compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from ndld_flow.accuracy.inside.capture import TensorPlace, tensors_of
from ndld_flow.base.errors import RequestError
from ndld_flow.base.name_patterns import is_plain, name_matcher
from ndld_flow.base.quantities import counted
from ndld_flow.base.text import short_name, suggest
from ndld_flow.engines.network import ParsedNetwork
from ndld_flow.runtimes.tensorrt.library import Bound

_NAMED = 5
_CONSTANT = "CONSTANT"


def mark_outputs(parsed: ParsedNetwork, model: Path, patterns: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """Mark the tensors that patterns of tensors or nodes select as outputs; return their names, and notes.

    Raises as `_select` does.
    """
    if not patterns:
        return (), []
    tensors, notes = _select("mark_outputs", parsed, model, patterns)
    for tensor in tensors.values():
        parsed.network.mark_output(tensor)
    note = (
        f"{counted(len(tensors), 'tensor')} marked as outputs for inspection: layers that compute them are not fused "
        "with those that read them, so that kernels, precisions and rounding may differ from those of the engine "
        "without `mark_outputs`"
    )
    return tuple(tensors), [note, *notes]


def mark_debug_tensors(parsed: ParsedNetwork, model: Path, wanted: Literal["unfused"] | Sequence[str]) -> list[str]:
    """Mark the tensors that remain after fusion, or those that patterns select, as debug tensors; return notes.

    Raises as `_select` does.
    """
    if wanted == "unfused":
        parsed.network.mark_unfused_tensors_as_debug_tensors()
        return []
    if not wanted:
        return []
    tensors, notes = _select("debug_tensors", parsed, model, wanted)
    for tensor in tensors.values():
        parsed.network.mark_debug(tensor)
    note = (
        f"{counted(len(tensors), 'debug tensor')}: TensorRT may fuse their layers differently than without "
        "`debug_tensors`"
    )
    return [note, *notes]


def _select(
    setting: str, parsed: ParsedNetwork, model: Path, patterns: Sequence[str]
) -> tuple[dict[str, Bound], list[str]]:
    """Return the network's tensors that patterns of tensors or nodes select, without its outputs, and notes.

    Tensors of the model that the network lacks are left out, with a note: the parser computes constants and shapes by
    itself. Raises RequestError for a pattern that selects no tensor of the model, and if nothing can be marked.
    """
    known = {tensor.name for tensor in parsed.outputs()}
    places = [place for place in tensors_of(model) if place.can_be_captured and place.op_type != "Constant"]
    selected = set().union(*(_matching(setting, places, pattern) for pattern in patterns))
    chosen = [place.name for place in places if place.name in selected and place.name not in known]
    tensors = {tensor.name: tensor for tensor in _markable(parsed)}
    marked = {name: tensors[name] for name in chosen if name in tensors}
    if not marked:
        raise RequestError(
            f"{setting}: none of the selected tensors can be marked ({_listed(chosen) or 'they are outputs already'}"
            "): TensorRT's network has only those that are neither constants nor shapes. Select others."
        )
    left_out = [name for name in chosen if name not in tensors]
    if not left_out:
        return marked, []
    verb = "is" if len(left_out) == 1 else "are"
    note = (
        f"{counted(len(left_out), 'selected tensor')} {verb} not in TensorRT's network, which folds constants and "
        f"shapes: {_listed(left_out)}"
    )
    return marked, [note]


def _matching(setting: str, places: Sequence[TensorPlace], pattern: str) -> set[str]:
    matches = name_matcher(pattern)
    names = {place.name for place in places if matches(place.name) or (place.node and matches(place.node))}
    if not names:
        near = suggest(pattern, [name for place in places for name in (place.name, place.node) if name])
        hint = f"; {near}" if is_plain(pattern) else ""
        raise RequestError(f'{setting}: "{pattern}" matches no tensor and no node of the model{hint}')
    return names


def _markable(parsed: ParsedNetwork) -> Iterator[Bound]:
    """Yield the network's tensors whose values exist once in an inference, on the device."""
    for layer in parsed.layers():
        if layer.type.name != _CONSTANT:
            tensors = (layer.get_output(index) for index in range(layer.num_outputs))
            yield from (tensor for tensor in tensors if tensor is not None and not tensor.is_shape_tensor)


def _listed(names: Sequence[str]) -> str:
    return ", ".join([*map(short_name, names[:_NAMED]), *(["..."] if len(names) > _NAMED else [])])
