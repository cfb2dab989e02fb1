"""Tensors of a network that become outputs of the engine, so that their values can be compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

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

    Tensors of the model that the network lacks are left out, with a note: the parser computes constants and shapes by
    itself. Raises RequestError for a pattern that selects no tensor of the model, and if nothing can be marked.
    """
    if not patterns:
        return (), []
    known = {tensor.name for tensor in parsed.outputs()}
    places = [place for place in tensors_of(model) if place.can_be_captured and place.op_type != "Constant"]
    selected = set().union(*(_matching(places, pattern) for pattern in patterns))
    chosen = [place.name for place in places if place.name in selected and place.name not in known]
    tensors = {tensor.name: tensor for tensor in _markable(parsed)}
    marked = tuple(name for name in chosen if name in tensors)
    if not marked:
        raise RequestError(
            f"mark_outputs: none of the selected tensors can be marked ({_listed(chosen) or 'they are outputs already'}"
            "): TensorRT's network has only those that are neither constants nor shapes. Select others."
        )
    for name in marked:
        parsed.network.mark_output(tensors[name])
    return marked, list(_notes(marked, [name for name in chosen if name not in tensors]))


def _matching(places: Sequence[TensorPlace], pattern: str) -> set[str]:
    matches = name_matcher(pattern)
    names = {place.name for place in places if matches(place.name) or (place.node and matches(place.node))}
    if not names:
        near = suggest(pattern, [name for place in places for name in (place.name, place.node) if name])
        hint = f"; {near}" if is_plain(pattern) else ""
        raise RequestError(f'mark_outputs: "{pattern}" matches no tensor and no node of the model{hint}')
    return names


def _markable(parsed: ParsedNetwork) -> Iterator[Bound]:
    """Yield the network's tensors whose values exist once in an inference, on the device."""
    for layer in parsed.layers():
        if layer.type.name != _CONSTANT:
            tensors = (layer.get_output(index) for index in range(layer.num_outputs))
            yield from (tensor for tensor in tensors if tensor is not None and not tensor.is_shape_tensor)


def _notes(marked: Sequence[str], left_out: Sequence[str]) -> Iterator[str]:
    yield (
        f"{counted(len(marked), 'tensor')} marked as outputs for inspection: layers that compute them are not fused "
        "with those that read them, so that kernels, precisions and rounding may differ from those of the engine "
        "without `mark_outputs`"
    )
    if left_out:
        verb = "is" if len(left_out) == 1 else "are"
        yield (
            f"{counted(len(left_out), 'selected tensor')} {verb} not in TensorRT's network, which folds constants and "
            f"shapes: {_listed(left_out)}"
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join([*map(short_name, names[:_NAMED]), *(["..."] if len(names) > _NAMED else [])])
