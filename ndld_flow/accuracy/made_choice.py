"""The choice of made samples: those that reach most of a model that others do not.

One pass of the unfused model shows what a sample reaches. Every layer with weights gets the lowest and the highest
value of each of its channels as further outputs, which the runtime reduces itself, so that no inner tensor is held.
They are read where the layer's activation ends.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ndld_flow.accuracy.model_comparison import ModelPair
from ndld_flow.base.errors import NdldFlowError, RequestError
from ndld_flow.models.files import read_proto
from ndld_flow.models.input_uses import weight_dims
from ndld_flow.models.nodes import free_name
from ndld_flow.models.tensors import Array
from ndld_flow.runtimes.protocol import Session, SessionRequest
from ndld_flow.samples.generated_values import InputKind, is_float, kind_of
from ndld_flow.samples.made_samples import (
    ExtendedSamples,
    MadeSample,
    candidates,
    describe_sizes,
    forms_of,
    without_files,
)
from ndld_flow.samples.sample_feeds import Samples
from ndld_flow.samples.sample_settings import Made
from ndld_flow.samples.wanted_inputs import WantedInput

_CHAIN = frozenset(
    (
        *("Add", "Mul", "Sub", "Div", "BatchNormalization", "Relu", "LeakyRelu", "PRelu", "Sigmoid", "Tanh", "Clip"),
        *("HardSigmoid", "HardSwish", "Elu", "Gelu", "Softplus", "Erf", "Identity", "Cast"),
    )
)
"""Operators between a layer and the end of its activation, which keep its channels."""
_MOST_STEPS = 6
_CHANNELS_SECOND = ("Conv", "ConvTranspose")
_LEAST_OPSET = 5
_AXES_ARE_INPUTS = 18
"""Opset from which ReduceMax has its axes as an input."""
_MOST_CHANNELS = 512
_MOST_VALUES = 4096
_LEVELS = 8
_NODE_S, _LOOP_S, _MACS_PER_S = 2e-5, 5e-2, 2.5e9
"""Time of a node and of a loop, and speed of layers: the number of candidates follows from these on every machine."""
_VARIES = 1e-3
"""Share of the widest channel's range from which a channel varies."""

Reached = dict[str, set[tuple[object, ...]]]
"""Group, such as `channels` -> its parts that a sample reaches."""


class _Tap(NamedTuple):
    lowest: str
    highest: str
    size: str
    """Names of the outputs."""
    macs: float
    """Multiply-accumulates for each element."""


@dataclass(frozen=True)
class Observation:
    """The parts of a model that one sample reaches."""

    reached: Reached
    levels: Mapping[str, tuple[Array, Array]]
    """Float output -> lowest and highest value of each of its channels."""
    work: float
    """Estimated seconds of one pass; the same on every machine."""
    is_finite: bool
    """No channel and no output is NaN or infinite."""


class Observer:
    """A model that reports what samples reach."""

    def __init__(
        self, session: Session, taps: Sequence[_Tap], conditions: Sequence[str], outputs: Sequence[str], work: float
    ) -> None:
        self._session, self._taps, self._conditions, self._outputs = session, taps, conditions, outputs
        self._work = work

    def observe(self, feeds: Mapping[str, Array], watched: Iterable[str]) -> Observation | None:
        """Run one sample; None if it fails. The values of `watched` inputs count too."""
        try:
            bound = self._session.bind(feeds)
            bound.run()
        except NdldFlowError:
            return None
        got = {name: array for name, array in bound.outputs().items() if array is not None}
        with np.errstate(invalid="ignore", over="ignore"):
            return self._describe(got, {name: feeds[name] for name in watched})

    def _describe(self, got: Mapping[str, Array], watched: Mapping[str, Array]) -> Observation:
        reached: Reached = defaultdict(set)
        for name in self._conditions:
            reached["branches"].update((name, bool(value)) for value in np.unique(got[name]))
        for name, values in watched.items():
            reached["values"].update((name, value) for value in np.unique(values).tolist()[:_MOST_VALUES])
        finals = {name: got[name] for name in self._outputs if name in got}
        for name, array in finals.items():
            reached["labels"].update((name, label) for label in _labels(array))
        levels = {name: _levels(array) for name, array in finals.items() if is_float(array.dtype) and array.size}
        work = self._add_channels(got, reached)
        ends = [*levels.values(), *((got[tap.lowest], got[tap.highest]) for tap in self._taps)]
        return Observation(reached, levels, work, all(np.isfinite(low + high).all() for low, high in ends))

    def _add_channels(self, got: Mapping[str, Array], reached: Reached) -> float:
        """Add the channels that vary, and return the work."""
        work = self._work
        for number, tap in enumerate(self._taps):
            width = got[tap.highest] - got[tap.lowest]
            live = np.flatnonzero(width > _VARIES * width.max(initial=0.0))
            reached["channels"].update((number, int(channel)) for channel in live)
            work += int(got[tap.size]) * (tap.macs / _MACS_PER_S + 1e-8)
        return work


def open_observer(path: Path, settings: SessionRequest) -> Observer:
    """Open a model that reports what samples reach. Raises as `SessionRequest.open`."""
    proto = read_proto(path)
    outputs = [output.name for output in proto.graph.output]
    conditions = [node.input[0] for node in proto.graph.node if node.op_type == "If" and node.input]
    computed = {name for node in proto.graph.node for name in node.output} - set(outputs)
    conditions = [name for name in dict.fromkeys(conditions) if name in computed]
    taps = _add_taps(proto)
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in conditions)
    session = settings.open_changed(path, proto.SerializeToString())
    loops = sum(node.op_type in ("Loop", "Scan") for node in proto.graph.node)
    work = 1e-3 + _NODE_S * len(proto.graph.node) + _LOOP_S * loops
    return Observer(session, taps, conditions, outputs, work)


# --- layers ---


@dataclass
class _Layers:
    """Layers with weights of a graph, and the nodes that read each tensor."""

    graph: onnx.GraphProto
    dims: Mapping[str, tuple[int, ...]]
    readers: dict[str, list[onnx.NodeProto]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        for node in self.graph.node:
            for name in dict.fromkeys(node.input):
                self.readers[name].append(node)

    def __iter__(self) -> Iterator[tuple[str, int, bool, float]]:
        """Yield the end of each layer, its number of channels, whether these are the second axis (or the last), and the
        multiply-accumulates of an element."""
        for node in self.graph.node:
            weight = self.dims.get(node.input[1], ()) if len(node.input) > 1 else ()
            channels = _channels(node, weight)
            if channels > 1 and node.output and node.input[0] not in self.dims:
                yield self._end(node.output[0]), channels, node.op_type in _CHANNELS_SECOND, prod(weight) / channels

    def _end(self, name: str) -> str:
        for _ in range(_MOST_STEPS):
            readers = self.readers[name]
            if len(readers) != 1 or readers[0].op_type not in _CHAIN or len(readers[0].output) != 1:
                break
            others = [each for each in readers[0].input if each and each != name]
            if any(each not in self.dims for each in others):
                break
            name = readers[0].output[0]
        return name


def _channels(node: onnx.NodeProto, weight: Sequence[int]) -> int:
    """Return the number of channels of a layer; 0 for a node that is none."""
    attributes: dict[str, int] = {each.name: each.i for each in node.attribute}
    if node.op_type in ("LSTM", "GRU", "RNN"):
        return attributes.get("hidden_size", 0)
    if node.op_type == "Conv" and len(weight) > 2:
        return weight[0]
    if node.op_type == "ConvTranspose" and len(weight) > 2:
        return weight[1] * attributes.get("group", 1)
    if node.op_type == "Gemm" and len(weight) == 2:
        return weight[0 if attributes.get("transB") else 1]
    return weight[-1] if node.op_type == "MatMul" and len(weight) > 1 else 0


def _add_taps(proto: onnx.ModelProto) -> list[_Tap]:
    """Add nodes that reduce each layer's channels, and their outputs."""
    opset = next((entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), 0)
    if opset < _LEAST_OPSET:
        return []
    graph = proto.graph
    taken = {name for node in graph.node for name in (*node.input, *node.output)}
    taps, ends = [], set[str]()
    for end, channels, second, macs in list(_Layers(graph, weight_dims(graph))):
        if end in ends:
            continue
        ends.add(end)
        names = [
            free_name(f"{end}_{part}", taken) for part in ("float", "shape", "rows", "axes", "low", "high", "size")
        ]
        taken.update(names)
        cast, shape, rows, axes, low, high, size = names
        sizes, reduced = ([0, channels, -1], [0, 2]) if second else ([-1, channels], [0])
        graph.initializer.append(numpy_helper.from_array(np.array(sizes, np.int64), shape))
        graph.node.append(helper.make_node("Cast", [end], [cast], to=TensorProto.FLOAT))
        graph.node.append(helper.make_node("Reshape", [cast, shape], [rows]))
        as_input = opset >= _AXES_ARE_INPUTS
        if as_input:
            graph.initializer.append(numpy_helper.from_array(np.array(reduced, np.int64), axes))
        for op, name in (("ReduceMin", low), ("ReduceMax", high)):
            node = helper.make_node(op, [rows, axes] if as_input else [rows], [name], keepdims=0)
            if not as_input:
                node.attribute.append(helper.make_attribute("axes", reduced))
            graph.node.append(node)
        graph.node.append(helper.make_node("Size", [end], [size]))
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in (low, high, size))
        taps.append(_Tap(low, high, size, macs))
    return taps


# --- outputs ---


def _labels(array: Array) -> list[float]:
    """Return the distinct values of integers, or the places of the largest elements of rows."""
    if is_float(array.dtype) and array.ndim and array.shape[-1] > 1 and array.size:
        array = np.argmax(array, axis=-1)
    found: list[float] = np.unique(array)[:_MOST_VALUES].tolist() if array.dtype.kind in "iub" else []
    return found


def _levels(array: Array) -> tuple[Array, Array]:
    """Return the lowest and the highest value of each index of the last axis, or of all if there are many."""
    values = array.astype(np.float32)
    is_row = values.ndim > 0 and 1 < values.shape[-1] <= _MOST_CHANNELS
    rows = values.reshape(-1, values.shape[-1]) if is_row else values.reshape(-1, 1)
    return rows.min(axis=0), rows.max(axis=0)


def add_levels(observations: Sequence[Observation]) -> None:
    """Add to each observation the levels that its outputs reach, eighths of the range over all of them, in place."""
    for name in {name for observation in observations for name in observation.levels}:
        found = [(each, *each.levels[name]) for each in observations if name in each.levels and each.is_finite]
        if not found:
            continue
        if len({low.shape for _, low, _ in found}) > 1:
            found = [(each, low.min(keepdims=True), high.max(keepdims=True)) for each, low, high in found]
        lowest = np.min([low for _, low, _ in found], axis=0)
        width = np.max([high for _, _, high in found], axis=0) - lowest
        for each, low, high in found:
            for end, values in (("low", low), ("high", high)):
                shares = np.divide(values - lowest, width, out=np.zeros_like(width), where=width > 0)
                levels = np.minimum(_LEVELS * shares, _LEVELS - 1).astype(int)
                each.reached["levels"].update((name, end, *pair) for pair in enumerate(levels.tolist()))


AUTO = 4
"""Number of made samples where nobody gave data."""
_MOST = 60
_MOST_OF_FORM = 12
_SECONDS = 3.0
"""Estimated time of all candidates."""
_PATIENCE_S = 8.0
"""Time after which no more candidates run: the estimate knows nothing of bodies."""
_MOST_FAILURES = 2
"""Failed runs after which a size is given up; one may fail by its values."""
_SAME_FORM = 0.5
"""Weight of a sample of a form that was chosen before."""

Accepts = Callable[[Mapping[str, Array]], bool]


def extend_samples(
    samples: Samples,
    made: Made,
    model: Path,
    settings: SessionRequest,
    accepts: Accepts = lambda _: True,
    *,
    one_size: bool = False,
) -> Samples:
    """Return samples followed by made ones, chosen by a run of the model; the same ones if none are wanted or possible.

    `accepts` returns False for values that whatever else runs on them refuses; with `one_size` all have the shapes of
    the first sample.
    """
    count = (AUTO if samples.is_generated else 0) if made == "auto" else 0 if made == "off" else made
    if not count or not samples.wanted:
        return samples
    try:
        observer = open_observer(model, settings.unfused().brief())
        chosen = _Choice(samples, observer, accepts, one_size=one_size).choose(count)
    except Exception:  # models of 2 GB cannot be observed, and what else tapped models may meet must end no check
        return samples
    return ExtendedSamples(samples, chosen) if chosen else samples


def extend_pair(pair: ModelPair, made: Made) -> ModelPair:
    """Return a pair whose samples are followed by made ones that both models accept.

    By itself (`auto`), a candidate with calibrated ranges gets none: values beyond those of the calibration saturate.
    """
    if made == "off" or not isinstance(pair.samples, Samples):
        return pair
    if made == "auto" and not pair.samples.is_generated:
        return pair
    if made == "auto" and _quantizers(pair.candidate.path) > _quantizers(pair.reference.path):
        return pair

    def accepts(feeds: Mapping[str, Array]) -> bool:
        for side in (pair.reference, pair.candidate):
            names = pair.inputs.candidate_names if side is pair.candidate else {name: name for name in feeds}
            try:
                if side.request is not None:
                    side.request.refuse_shapes({names[name]: array.shape for name, array in feeds.items()})
            except RequestError:
                return False
        return True

    settings = replace(pair.reference.settings, provider="cpu", provider_options={})
    return replace(pair, samples=extend_samples(pair.samples, made, pair.reference.path, settings, accepts))


def _quantizers(path: Path) -> int:
    """Return the number of nodes that quantize with fixed ranges."""
    return sum(node.op_type.startswith(("QuantizeLinear", "QLinear")) for node in read_proto(path).graph.node)


class _Choice:
    """A greedy choice among candidates."""

    def __init__(self, samples: Samples, observer: Observer, accepts: Accepts, *, one_size: bool) -> None:
        self._samples, self._observer, self._accepts, self._one_size = samples, observer, accepts, one_size
        self._wanted = [without_files(each) for each in samples.wanted]
        self._watched = [each.name for each in self._wanted if _is_watched(each)]

    def choose(self, count: int) -> list[MadeSample]:
        """Return the chosen samples; fewer if not as many run."""
        first = next(iter(self._samples)).feeds
        base = self._observer.observe({name: feed.values for name, feed in first.items()}, self._watched)
        if base is None:
            return []
        shapes = {name: tuple(feed.values.shape) for name, feed in first.items()}
        base.reached["sizes"].add((describe_sizes(self._wanted, shapes),))
        most = min(_MOST, _MOST_OF_FORM * len(forms_of(self._wanted)))
        tried = min(max(int(_SECONDS / base.work), 2 * count), most)
        found = self._observe(
            islice(candidates(self._wanted, shapes, self._samples.made_seed, one_size=self._one_size), tried)
        )
        add_levels([base, *(observation for _, observation in found)])
        return _pick(found, base, count)

    def _observe(self, made: Iterable[MadeSample]) -> list[tuple[MadeSample, Observation]]:
        found: list[tuple[MadeSample, Observation]] = []
        failures, runs = Counter[str](), set[str]()
        until = time.monotonic() + _PATIENCE_S
        for sample in made:
            if time.monotonic() > until:
                break
            if failures[sample.sizes] >= _MOST_FAILURES and sample.sizes not in runs:
                continue
            feeds = {name: feed.values for name, feed in sample.feeds(self._wanted).items()}
            seen = self._observer.observe(feeds, self._watched) if self._accepts(feeds) else None
            if seen is None:
                failures[sample.sizes] += 1
                continue
            runs.add(sample.sizes)
            if seen.is_finite:
                seen.reached["sizes"].add((sample.sizes,))
                found.append((sample, seen))
        return found


def _is_watched(wanted: WantedInput) -> bool:
    """Return True for an input whose single values matter."""
    uses, kind = wanted.spec.uses, wanted.dtype.kind
    return kind in "iub" or bool(uses.rows or uses.constants) or kind_of(wanted) is not InputKind.OTHER


def _pick(found: Sequence[tuple[MadeSample, Observation]], base: Observation, count: int) -> list[MadeSample]:
    """Return the samples that reach most of what the ones before them do not, one after another.

    Each group of parts counts by the share of it that is new. Of equals the first is chosen, the most typical one.
    """
    totals: Reached = defaultdict(set)
    covered: Reached = defaultdict(set)
    for observation in (base, *(observation for _, observation in found)):
        for group, parts in observation.reached.items():
            totals[group] |= parts
    left, chosen, forms = list(found), list[MadeSample](), set[str]()
    latest = base
    while left and len(chosen) < count:
        for group, parts in latest.reached.items():
            covered[group] |= parts

        def gain(pair: tuple[MadeSample, Observation]) -> float:
            new = (
                len(parts - covered[group]) / len(totals[group]) for group, parts in pair[1].reached.items() if parts
            )
            return sum(new) * (_SAME_FORM if pair[0].form in forms else 1.0)

        best = max(left, key=gain)
        left.remove(best)
        chosen.append(best[0])
        forms.add(best[0].form)
        latest = best[1]
    return chosen
