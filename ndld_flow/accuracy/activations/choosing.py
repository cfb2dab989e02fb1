"""Which tensors of a model are looked at."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ndld_flow.accuracy.inside.capture import TensorPlace
from ndld_flow.base.errors import RequestError
from ndld_flow.base.name_patterns import is_plain, name_matcher
from ndld_flow.base.text import suggest

MOST_BY_DEFAULT = 32
_HEAVY = {
    "Attention",
    "BatchNormalization",
    "Conv",
    "ConvInteger",
    "ConvTranspose",
    "Einsum",
    "Gemm",
    "GRU",
    "GroupNormalization",
    "InstanceNormalization",
    "LayerNormalization",
    "LSTM",
    "MatMul",
    "MatMulInteger",
    "QLinearConv",
    "QLinearMatMul",
    "RMSNormalization",
    "RNN",
    "SkipLayerNormalization",
}
"""What layers are made of: a tensor behind one of these says something about a layer."""


@dataclass(frozen=True)
class Wanted:
    """Tensors as a recipe names them. Nothing at all means a selection over the whole model."""

    patterns: Sequence[str] = ()
    """Names of tensors, nodes or inputs: as they are, globs, or `/.../` for a regular expression of RE2's."""
    op_types: Sequence[str] = ()
    every: int = 0
    """Every so many-th tensor of floats; 0 for none."""

    @property
    def nothing(self) -> bool:
        return not (self.patterns or self.op_types or self.every)


@dataclass(frozen=True)
class Choice:
    """What tensors can be chosen from."""

    places: Sequence[TensorPlace]
    """In the order of execution."""
    inputs: Sequence[str]
    outputs: Collection[str]
    is_float: Callable[[str], bool]
    sizes: Mapping[str, tuple[int, ...]]
    """Tensor -> height and width, or whatever its dimensions behind the channels are, where known."""

    shared: Collection[str]
    """Tensors that the reference has too: without being asked for any, these come first. All, where there is none."""

    @property
    def floats(self) -> list[TensorPlace]:
        """Made by nodes of the main graph, constants left out."""
        seen = (place for place in self.places if not place.in_body and place.op_type != "Constant")
        return [place for place in seen if self.is_float(place.name)]


def choose(choice: Choice, wanted: Wanted) -> list[str]:
    """Names of the tensors to look at, inputs first, then in the order of execution.

    Raises `RequestError` for a pattern or operator that fits nothing, naming the nearest.
    """
    if wanted.nothing:
        return [*filter(choice.is_float, choice.inputs), *_spread(choice)]
    chosen = {place.name for place in choice.floats[wanted.every - 1 :: wanted.every]} if wanted.every else set()
    for pattern in wanted.patterns:
        chosen |= _fitting(choice, pattern)
    for op_type in wanted.op_types:
        chosen |= _of_type(choice.places, op_type)
    return [name for name in (*choice.inputs, *(place.name for place in choice.places)) if name in chosen]


def _fitting(choice: Choice, pattern: str) -> set[str]:
    fits = name_matcher(pattern)
    fitting = [place for place in choice.places if fits(place.name) or (place.node and fits(place.node))]
    # Who means a constant says its name: half of the tensors that a glob fits may be weights.
    made = fitting if is_plain(pattern) else [place for place in fitting if place.op_type != "Constant"]
    found = {place.name for place in made if not place.in_body} | set(filter(fits, choice.inputs))
    if found:
        return found
    if fitting:
        why = "constants" if not made else "inside bodies of If, Loop or Scan, where tensors have no one value"
        raise RequestError(f'tensors: what "{pattern}" fits is {why} ({fitting[0].name}). Name what reads it.')
    names = [name for place in choice.places for name in (place.name, place.node) if name]
    near = suggest(pattern, [*choice.inputs, *names])
    raise RequestError(f'tensors: nothing in the model is called "{pattern}", no tensor and no node; {near}')


def _of_type(places: Sequence[TensorPlace], op_type: str) -> set[str]:
    found = {place.name for place in places if place.op_type == op_type and not place.in_body}
    if not found:
        near = suggest(op_type, [place.op_type for place in places])
        raise RequestError(f'op_types: the model has no node of type "{op_type}"; {near}')
    return found


def _spread(choice: Choice) -> list[str]:
    """Outputs, the last layer before each change of resolution, and layers between these, evenly. What is one number a
    channel, as in the gates of squeeze and excitation, is no picture of anything.
    """
    floats = [place for place in choice.floats if place.name in choice.shared] or choice.floats
    floats = [place for place in floats if set(choice.sizes.get(place.name, ())) != {1}] or floats
    layers = [place.name for place in floats if place.op_type in _HEAVY] or [place.name for place in floats]
    outputs = [place.name for place in choice.places if place.name in choice.outputs]
    room = max(MOST_BY_DEFAULT - len(outputs), 0)
    ends = [name for name, behind in pairwise(layers) if _changes(choice, name, behind)]
    kept = {*outputs, *_evenly(ends, room)}
    kept |= set(_evenly([name for name in layers if name not in kept], MOST_BY_DEFAULT - len(kept)))
    return [place.name for place in choice.places if place.name in kept]


def _changes(choice: Choice, name: str, behind: str) -> bool:
    before, after = choice.sizes.get(name), choice.sizes.get(behind)
    return before is not None and after is not None and before != after


def _evenly(names: Sequence[str], count: int) -> list[str]:
    if len(names) <= count:
        return list(names)
    return [names[(2 * i + 1) * len(names) // (2 * count)] for i in range(count)]
