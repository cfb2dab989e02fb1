"""Pairs of profiles whose true layer matches are known, because the second model was made from the first.

A model is traced: each node remembers which node of the original it is. It is then edited (a layer inserted, removed,
split, quantized, reordered, ...), named as an exporter would name it anew, and run by ONNX Runtime. A match is right if
the layers on both sides came from the same nodes of the original.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ndld_flow.profiles.compare.pair_evidence import kind_of
from ndld_flow.records.comparison import LayerRow
from ndld_flow.records.profile import Layer, Profile, TensorInfo
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import Optimization
from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest
from tests.support.compare_samples import profile_of
from tests.support.layer_passes import measure_layers

Ids = frozenset[str]
Places = Sequence[int]
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Traced:
    """A model and, for each node by name, the nodes of the original that it does the work of."""

    model: onnx.ModelProto
    truth: Mapping[str, Ids]

    def copy(self) -> Traced:
        """A copy to be edited in place."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        return Traced(model, dict(self.truth))


Edit = Callable[[Traced, random.Random], Traced]
Naming = Callable[[Traced], Traced]


def trace(model: onnx.ModelProto) -> Traced:
    """Name every node after its place, and turn constants into initializers."""
    _lift_constants(model.graph)
    model.ir_version = max(model.ir_version, 8)  # initializers are no inputs
    nodes = list(_all_nodes(model.graph))
    for index, node in enumerate(nodes):
        node.name = f"n{index}"
    return Traced(model, _values(model.graph))


def _values(graph: onnx.GraphProto) -> dict[str, Ids]:
    """Node -> the first node that computes just the same: runtimes keep any one of them."""
    first: dict[object, str] = {}
    result: dict[str, tuple[str, int]] = {}
    truth: dict[str, Ids] = {}
    for node in _all_nodes(graph):
        attributes = tuple(sorted(attribute.SerializeToString() for attribute in node.attribute))
        key = node.op_type, attributes, tuple(str(result.get(name, name)) for name in node.input)
        id_ = first.setdefault(key, node.name)
        truth[node.name] = frozenset([id_])
        result |= {name: (id_, index) for index, name in enumerate(node.output)}
    return truth


def _lift_constants(graph: onnx.GraphProto) -> None:
    known = {weight.name: weight for weight in graph.initializer}
    kept = []
    for node in graph.node:
        value = None
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            value = numpy_helper.to_array(node.attribute[0].t)
        elif node.op_type == "ConstantOfShape" and node.input[0] in known:
            fill = numpy_helper.to_array(node.attribute[0].t) if node.attribute else np.zeros(1, np.float32)
            value = np.full(numpy_helper.to_array(known[node.input[0]]), fill[0])
        if value is None:
            kept.append(node)
        else:
            graph.initializer.append(numpy_helper.from_array(value, node.output[0]))
    del graph.node[:]
    graph.node.extend(kept)
    weights = {weight.name for weight in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights]
    del graph.input[:]
    graph.input.extend(inputs)


def _all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for body in _bodies(node):
            yield from _all_nodes(body)


def _bodies(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [attribute.g for attribute in node.attribute if attribute.HasField("g")]


def _all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for body in _bodies(node):
            yield from _all_graphs(body)


# Edits


def unchanged(traced: Traced, rng: random.Random) -> Traced:
    """The same network."""
    return traced


def insert_scale(traced: Traced, rng: random.Random, at: float = 0.1) -> Traced:
    """Put a multiplication behind a layer."""
    result = traced.copy()
    graph = result.model.graph
    node = _pick(graph, at, ("Conv", "Relu", "MatMul", "Mul", "Add"))
    factor = numpy_helper.from_array(np.array(1.01, np.float32), "scale_factor")
    graph.initializer.append(factor)
    return _insert_behind(result, node, helper.make_node("Mul", [node.output[0], factor.name], ["scaled"], name="new"))


def insert_twin(traced: Traced, rng: random.Random, at: float = 0.3) -> Traced:
    """Put a layer behind another that looks just like it, with weights of its own."""
    result = traced.copy()
    graph = result.model.graph
    weights = {weight.name: weight for weight in graph.initializer}
    square = [node for node in graph.node if _keeps_shape(node, weights)]
    if not square:
        return insert_scale(traced, rng, at)
    node = square[int(at * len(square))]
    twin = onnx.NodeProto()
    twin.CopyFrom(node)
    values = numpy_helper.to_array(weights[node.input[1]])
    graph.initializer.append(numpy_helper.from_array((values * 0.9).astype(values.dtype), "twin_weight"))
    twin.name, twin.input[0], twin.input[1], twin.output[0] = "new", node.output[0], "twin_weight", "twin_out"
    return _insert_behind(result, node, twin)


def _keeps_shape(node: onnx.NodeProto, weights: Mapping[str, onnx.TensorProto]) -> bool:
    if len(node.input) < 2 or node.input[1] not in weights:
        return False
    dims = list(weights[node.input[1]].dims)
    if node.op_type == "MatMul":
        return len(dims) == 2 and dims[0] == dims[1]
    if node.op_type != "Conv" or len(dims) != 4:
        return False
    given: dict[str, Any] = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    same = [(size - 1) // 2 for size in dims[2:]] * 2
    strides = set(given.get("strides", [1]))
    return dims[0] == dims[1] * given.get("group", 1) and strides == {1} and list(given.get("pads", [0] * 4)) == same


def remove_one(traced: Traced, rng: random.Random, at: float = 0.4) -> Traced:
    """Leave out a layer that keeps its input's shape."""
    result = traced.copy()
    graph = result.model.graph
    weights = {weight.name: weight for weight in graph.initializer}
    outputs = {value.name for value in graph.output}
    activations = ("Relu", "Clip", "Sigmoid", "HardSigmoid", "Tanh")
    fit = [
        node
        for node in graph.node
        if (node.op_type in activations or _keeps_shape(node, weights)) and node.output[0] not in outputs
    ]
    if not fit:
        return insert_scale(traced, rng, at)
    node = fit[int(at * len(fit))]
    for other in graph.node:
        for index, name in enumerate(other.input):
            if name == node.output[0]:
                other.input[index] = node.input[0]
    graph.node.remove(node)
    return result


def split_convs(traced: Traced, rng: random.Random) -> Traced:
    """Turn a tenth of the convolutions into two halves and a Concat."""
    result = traced.copy()
    graph, truth = result.model.graph, dict(result.truth)
    weights = {weight.name: numpy_helper.to_array(weight) for weight in graph.initializer}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        given = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        known = all(name in weights for name in node.input[1:])
        is_plain = node.op_type == "Conv" and known and given.get("group", 1) == 1
        if not is_plain or weights[node.input[1]].shape[0] % 2 or rng.random() > 0.1:
            nodes.append(node)
            continue
        for half in (0, 1):
            reads = [node.input[0]]
            for name in node.input[1:]:
                own = f"{name}_half{half}"
                graph.initializer.append(numpy_helper.from_array(np.split(weights[name], 2)[half], own))
                reads.append(own)
            part = onnx.NodeProto()
            part.CopyFrom(node)
            part.name, part.output[0], part.input[:] = f"{node.name}_{half}", f"{node.output[0]}_{half}", reads
            truth[part.name] = truth[node.name]
            nodes.append(part)
        halves = [f"{node.output[0]}_{half}" for half in (0, 1)]
        nodes.append(helper.make_node("Concat", halves, [node.output[0]], name=f"{node.name}_joined", axis=1))
        truth[f"{node.name}_joined"] = truth[node.name]
    del graph.node[:]
    graph.node.extend(nodes)
    return Traced(result.model, truth)


def reorder(traced: Traced, rng: random.Random) -> Traced:
    """List the nodes in another order that is possible too."""
    result = traced.copy()
    graph = result.model.graph
    made_by = {name: index for index, node in enumerate(graph.node) for name in node.output}
    waiting = {
        index: {made_by[name] for name in _reads(node) if name in made_by} for index, node in enumerate(graph.node)
    }
    nodes, order = list(graph.node), []
    while waiting:
        ready = [index for index, needed in waiting.items() if not needed]
        chosen = rng.choice(ready)
        order.append(chosen)
        del waiting[chosen]
        for needed in waiting.values():
            needed.discard(chosen)
    del graph.node[:]
    graph.node.extend(nodes[index] for index in order)
    return result


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    yield from node.input
    for body in _bodies(node):
        for inner in body.node:
            yield from _reads(inner)


def swap_branches(traced: Traced, rng: random.Random) -> Traced:
    """Exchange the operands of every addition and multiplication of two computed tensors: branches swap places."""
    result = traced.copy()
    computed = {name for node in result.model.graph.node for name in node.output}
    for node in result.model.graph.node:
        if node.op_type in ("Add", "Mul", "Sum") and len(node.input) == 2 and set(node.input) <= computed:
            node.input[:] = list(node.input)[::-1]
    return reorder(result, rng)


def to_half(traced: Traced, rng: random.Random) -> Traced:
    """Compute in half precision, inputs and outputs kept."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model = convert_float_to_float16(traced.copy().model, keep_io_types=True, disable_shape_infer=True)
    return Traced(model, traced.truth)


def quantize(traced: Traced, rng: random.Random, folder: Path, shapes: Shapes) -> Traced:
    """Quantize to 8 bits with QuantizeLinear and DequantizeLinear, as ONNX Runtime's own quantizer does."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = [feeds_of(traced.model, shapes)]

        def get_next(self) -> Mapping[str, Any] | None:
            return self.left.pop() if self.left else None

    source, target = folder / "float.onnx", folder / "int8.onnx"
    onnx.save(traced.model, source)
    quantize_static(source, target, Reader(), quant_format=QuantFormat.QDQ, per_channel=False)
    model = onnx.load(target)
    for index, node in enumerate(model.graph.node):
        node.name = node.name or f"q{index}"
    return Traced(model, traced.truth)


def _pick(graph: onnx.GraphProto, at: float, types: Sequence[str]) -> onnx.NodeProto:
    """The node that comes after this share of those that compute."""
    outputs = {value.name for value in graph.output}
    fit: list[onnx.NodeProto] = [node for node in graph.node if node.op_type in types and node.output[0] not in outputs]
    return fit[int(at * len(fit))]


def _insert_behind(traced: Traced, node: onnx.NodeProto, new: onnx.NodeProto) -> Traced:
    graph = traced.model.graph
    index = list(graph.node).index(node)
    for other in graph.node:
        for position, name in enumerate(other.input):
            if name == node.output[0]:
                other.input[position] = new.output[0]
    nodes = list(graph.node)
    del graph.node[:]
    graph.node.extend([*nodes[: index + 1], new, *nodes[index + 1 :]])
    return traced


EDITS: dict[str, Edit] = {
    "unchanged": unchanged,
    "inserted early": insert_scale,
    "inserted late": partial(insert_scale, at=0.7),
    "twin inserted early": partial(insert_twin, at=0.1),
    "twin inserted late": partial(insert_twin, at=0.6),
    "removed": remove_one,
    "split": split_convs,
    "reordered": reorder,
    "branches swapped": swap_branches,
    "half precision": to_half,
}


# Names


def keep_names(traced: Traced) -> Traced:
    """Name nodes after their modules, as a tool that edits a model leaves them."""

    def named(node: onnx.NodeProto) -> str:
        return f"/net/{_word(next(iter(traced.truth.get(node.name, ())), 'new'))}/{node.op_type}_{_word(node.name)}"

    return _rename(
        traced,
        named,
        lambda node, output: f"{node.name}_output_{output}",
        lambda node, name: f"net.{node.name.rpartition('_')[2]}.{_word(name)}",
    )


def _word(text: str) -> str:
    """A word of eight letters for a text."""
    rng = random.Random(text)
    return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(8))


def number_nodes(traced: Traced) -> Traced:
    """Name nodes as older exporters of PyTorch do: `Conv_12`, `onnx::Conv_345`; weights keep their modules."""
    count = iter(range(10**6))
    tensors = iter(range(100, 10**6))
    return _rename(
        traced,
        lambda node: f"{node.op_type}_{next(count)}",
        lambda node, output: f"onnx::{node.op_type}_{next(tensors)}",
        lambda node, name: f"module.{name}",
    )


def number_types(traced: Traced) -> Traced:
    """Name nodes as Paddle does: `p2o.Conv.17`; a counter for each type of operator, and weights numbered with them."""
    counts: Counter[str] = Counter()

    def named(node: onnx.NodeProto) -> str:
        counts[node.op_type] += 1
        return f"p2o.{node.op_type}.{counts[node.op_type] - 1}"

    weights: Counter[str] = Counter()

    def weight(node: onnx.NodeProto, name: str) -> str:
        weights[node.op_type] += 1
        return f"{node.op_type.lower()}_{weights[node.op_type]}.w_0"

    return _rename(traced, named, lambda node, output: f"{node.name}.tmp_{output}", weight)


def number_scopes(traced: Traced) -> Traced:
    """Name nodes as newer exporters of PyTorch do: `/stages.2/blocks.1/Conv_1`, numbered within each module."""
    counts: Counter[str] = Counter()

    def named(node: onnx.NodeProto) -> str:
        first = min((int(item[1:]) for item in traced.truth.get(node.name, ()) if item[1:].isdigit()), default=0)
        scope = f"/stages.{first // 40}/blocks.{first // 10 % 4}/{node.op_type}"
        counts[scope] += 1
        return scope if counts[scope] == 1 else f"{scope}_{counts[scope] - 1}"

    return _rename(
        traced, named, lambda node, output: f"{node.name}_output_{output}", lambda node, name: f"blocks.{name}.weight"
    )


def scramble(traced: Traced) -> Traced:
    """Names that have nothing to do with those before, nor with those of another edit."""
    rng = random.Random(" ".join(node.name for node in _all_nodes(traced.model.graph)))

    def word() -> str:
        return f"{rng.getrandbits(48):x}"

    return _rename(traced, lambda node: word(), lambda node, output: word(), lambda node, name: word())


def _rename(
    traced: Traced,
    named: Callable[[onnx.NodeProto], str],
    tensor: Callable[[onnx.NodeProto, int], str],
    weight: Callable[[onnx.NodeProto, str], str],
) -> Traced:
    result = traced.copy()
    graph = result.model.graph
    kept = {value.name for value in (*graph.input, *graph.output)}
    weights = {item.name for all_graph in _all_graphs(graph) for item in all_graph.initializer}
    truth: dict[str, Ids] = {}
    new: dict[str, str] = {}
    for node in _all_nodes(graph):
        before, node.name = node.name, named(node)
        truth[node.name] = traced.truth.get(before, frozenset())
        for name in node.input:
            if name in weights and name not in new:
                new[name] = weight(node, name)
        for index, name in enumerate(node.output):
            if name and name not in kept:
                new[name] = tensor(node, index)
    for each in _all_graphs(graph):
        _apply(each, new)
    return Traced(result.model, truth)


def _apply(graph: onnx.GraphProto, new: Mapping[str, str]) -> None:
    for node in graph.node:
        node.input[:] = [new.get(name, name) for name in node.input]
        node.output[:] = [new.get(name, name) for name in node.output]
    for value in (*graph.initializer, *graph.value_info, *graph.output):
        value.name = new.get(value.name, value.name)


NAMINGS: dict[str, Naming] = {
    "names kept": keep_names,
    "numbered": number_nodes,
    "numbered by type": number_types,
    "numbered in scopes": number_scopes,
    "scrambled": scramble,
}


# Profiles


@dataclass(frozen=True)
class Sample:
    """A profile, and for each of its layers the nodes of the original that it does the work of.

    The truth of a layer that the runtime put in is between which layers it was put.
    """

    profile: Profile
    truth: tuple[Ids, ...]


def feeds_of(model: onnx.ModelProto, shapes: Shapes) -> dict[str, Any]:
    """Random inputs."""
    rng = np.random.default_rng(0)
    weights = {weight.name for weight in model.graph.initializer}
    feeds: dict[str, Any] = {}
    for value in model.graph.input:
        if value.name in weights:
            continue
        dims = [dim.dim_value or 1 for dim in value.type.tensor_type.shape.dim]
        shape = shapes.get(value.name, tuple(dims))
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        feeds[value.name] = (rng.random(shape) * (1 if dtype == np.float32 else 60)).astype(dtype)
    return feeds


def run(traced: Traced, shapes: Shapes, folder: Path, level: Optimization = "all") -> Sample:
    """Measure the layers in ONNX Runtime."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    onnx.save(traced.model, path)
    settings = OnnxruntimeRequest(optimization=level, threads=1)
    layer_pass = measure_layers(path, settings, feeds_of(traced.model, shapes), 3, folder)
    return sample_of(layer_pass.layers, traced.truth)


def sample_of(layers: Sequence[Layer], truth: Mapping[str, Ids], **fields: Any) -> Sample:
    """A profile of these layers, each with the truth of the nodes that it came from."""
    own = [frozenset().union(*(truth.get(node, frozenset()) for node in _origins(layer))) for layer in layers]
    profile = profile_of([[10.0]] * 5, layers, **{"model_digest": "", "layer_runs": (3,)} | fields)
    return Sample(profile, tuple(_with_neighbours(layers, own)))


def _origins(layer: Layer) -> Sequence[str]:
    """ONNX Runtime calls a node that it moved to another layout after the one it was: `Conv_12_token_34`."""
    return layer.onnx_nodes or (layer.name.partition("_token_")[0],)


def _with_neighbours(layers: Sequence[Layer], own: Sequence[Ids]) -> Iterator[Ids]:
    """Use the producers and consumers of a layer that has no known origin itself."""
    makers = {tensor.name: index for index, layer in enumerate(layers) for tensor in layer.outputs if tensor.name}
    readers: dict[str, list[int]] = defaultdict(list)
    for position, layer in enumerate(layers):
        for tensor in layer.inputs:
            readers[tensor.name].append(position)
    for layer, truth in zip(layers, own, strict=True):
        if truth:
            yield truth
            continue
        before = [own[makers[tensor.name]] for tensor in layer.inputs if tensor.name in makers]
        after = [own[index] for tensor in layer.outputs for index in readers[tensor.name]]
        yield frozenset(f"after {item}" for ids in before for item in ids) | {
            f"before {item}" for ids in after for item in ids
        }


# Views: the same profile with less known


def as_measured(sample: Sample) -> Sample:
    """Return a profile with everything that the tool itself records."""
    return sample


def without_weights(sample: Sample) -> Sample:
    """Remove weights, as in older records and imports."""
    return _each(sample, lambda layer: layer.model_copy(update={"weights": ()}))


def without_nodes(sample: Sample) -> Sample:
    """Remove nodes, as in a profile whose layers were not traced back to the model."""
    return _each(without_weights(sample), lambda layer: layer.model_copy(update={"onnx_nodes": ()}))


def imported(sample: Sample) -> Sample:
    """Keep what ONNX Runtime's own profile has: names and shapes, without tensor names and nodes."""
    return _each(
        without_nodes(sample),
        lambda layer: layer.model_copy(
            update={
                "inputs": tuple(map(_nameless, layer.inputs)),
                "outputs": tuple(map(_nameless, layer.outputs)),
                "attributes": (),
            }
        ),
    )


def without_shapes(sample: Sample) -> Sample:
    """Keep what `trtexec --exportProfile` alone has: names, and types where a name reveals them."""
    return _each(imported(sample), lambda layer: layer.model_copy(update={"inputs": (), "outputs": ()}))


def without_names(sample: Sample) -> Sample:
    """Types and shapes in their order."""
    return _each(imported(sample), lambda layer: layer.model_copy(update={"name": ""}))


def _nameless(tensor: TensorInfo) -> TensorInfo:
    return tensor.model_copy(update={"name": ""})


def _each(sample: Sample, change: Callable[[Layer], Layer]) -> Sample:
    layers = tuple(map(change, sample.profile.layers))
    return replace(sample, profile=sample.profile.model_copy(update={"layers": layers}))


def linked_only(sample: Sample) -> Sample:
    """Keep weights' values, and names of tensors only, as where an exporter gave all nodes other names."""

    def change(layer: Layer) -> Layer:
        weights = tuple(weight.model_copy(update={"name": ""}) for weight in layer.weights)
        return layer.model_copy(update={"name": "", "onnx_nodes": (), "weights": weights})

    return _each(sample, change)


VIEWS: dict[str, Callable[[Sample], Sample]] = {
    "as measured": as_measured,
    "without weights": without_weights,
    "without nodes": without_nodes,
    "names hidden": linked_only,
    "imported": imported,
    "without shapes": without_shapes,
    "without names": without_names,
}


# Judging


@dataclass(frozen=True)
class Judged:
    """One match of two profiles: how sure it claimed to be, and whether it is right."""

    is_right: bool
    ms: float
    label: str = ""
    confidence: float = 0.0
    method: str = ""


def judge(rows: Iterable[LayerRow], sample: Sample, other: Sample, places: tuple[int, int] = (0, 1)) -> list[Judged]:
    """Each row that has layers of both. `places`: which profiles of the rows the samples are."""
    a, b = places
    matched = [row for row in rows if row.layers[a] and row.layers[b]]
    judged = judge_pairs([(row.layers[a], row.layers[b]) for row in matched], sample, other)
    return [
        replace(item, confidence=row.confidence_between(a, b), method=row.methods[b])
        for item, row in zip(judged, matched, strict=True)
    ]


def judge_pairs(pairs: Iterable[tuple[Places, Places]], sample: Sample, other: Sample) -> list[Judged]:
    """Each pair of groups: right if the layer that takes longest in either does work of the other."""
    result = []
    spent = sample.profile.layer_times, other.profile.layer_times
    for mine, yours in pairs:
        ours, theirs = ([side.truth[at] for at in places] for side, places in ((sample, mine), (other, yours)))
        longest = [max(indices, key=times.ms.__getitem__) for times, indices in zip(spent, (mine, yours), strict=True)]
        names = [
            " + ".join(side.profile.layers[at].name for at in indices)
            for side, indices in ((sample, mine), (other, yours))
        ]
        result.append(
            Judged(
                is_right=_agree([sample.truth[longest[0]]], theirs) and _agree([other.truth[longest[1]]], ours),
                ms=spent[0].sum_ms(mine),
                label=" | ".join(names),
            )
        )
    return result


def _agree(mine: Sequence[Ids], theirs: Sequence[Ids]) -> bool:
    """Return whether all layers share an origin; two of unknown origin do."""
    whole: Ids = frozenset().union(*theirs)
    return all(ids & whole or not (ids or whole) for ids in mine)


def by_count(profile: Profile) -> Sample:
    """A profile of an engine, whose n-th convolution or pooling is the n-th of every engine of the network."""
    counts: Counter[str] = Counter()
    own: list[Ids] = []
    for layer in profile.layers:
        kind = kind_of(layer)
        counts[kind] += 1
        own.append(frozenset({f"{kind} {counts[kind]}"} if kind in ("conv", "matmul", "pool") else ()))
    return Sample(profile, tuple(_with_neighbours(profile.layers, own)))


def recall(rows: Iterable[LayerRow], sample: Sample, other: Sample) -> tuple[int, int]:
    """Layers of the first with a true partner in the second: how many were matched rightly, and how many there are."""
    there: Ids = frozenset().union(*other.truth)
    have = {index for index, ids in enumerate(sample.truth) if ids & there}
    matched = set()
    for row in rows:
        theirs: Ids = frozenset().union(*(other.truth[index] for index in row.layers[1]))
        matched |= {index for index in row.layers[0] if sample.truth[index] & theirs}
    return len(have & matched), len(have)
