"""Search for the nodes that a reduced precision breaks, with the reasons why each is kept."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from ndld_flow.accuracy.inside.divergence import first_divergent
from ndld_flow.accuracy.inside.layer_meters import FORMAT_LIMITS
from ndld_flow.accuracy.tolerance import Tolerance, outside
from ndld_flow.base.declared_metrics import metric_text
from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import count, number, percent
from ndld_flow.base.text import short_name
from ndld_flow.models.files import load_model
from ndld_flow.models.nodes import fixed_tensor, nodes_of_types
from ndld_flow.models.tensors import Array
from ndld_flow.precision.fp16.convert import prepare
from ndld_flow.precision_search.evidence import Suspect
from ndld_flow.precision_search.minimal_set import Attempt, Budget, Candidate, Kept, MinimalSet, find_minimal_set
from ndld_flow.precision_search.observations import Observer, severities
from ndld_flow.precision_search.reducers import Reducer
from ndld_flow.precision_search.trials import Judge, TrialFile, Trials
from ndld_flow.profiles.read.layer_work import Shape, count_macs
from ndld_flow.records.accuracy import LayerDivergence
from ndld_flow.records.precision_search import KeptNode, PrecisionSearch, Trial
from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest
from ndld_flow.runtimes.protocol import SessionRequest
from ndld_flow.samples.sample_feeds import Samples, first_labels

_VALUES = np.array([1 + 2**-12, 1 + 3 * 2**-10, 3.14159, 1e-3, 1e5], np.float32)
"""Numbers that the narrow formats lack; 1e5 overflows in fp16."""
_TYPES: dict[str, np.dtype[np.generic]] = {"fp16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}


def rounds_to(request: SessionRequest, precision: str) -> bool:
    """Return True if a Cast of fp32 to `fp16` or `bf16` and back rounds, between two operators, in this runtime.

    Raises as `SessionRequest.open` does.
    """
    with np.errstate(over="ignore"):
        rounded = _VALUES.astype(_TYPES[precision]).astype(np.float32)
    computed = _run(request, precision)
    return computed is not None and np.array_equal(computed, rounded)


def _run(request: SessionRequest, precision: str) -> Array | None:
    """Return the values after a negation, the pair of Casts, and another negation."""
    narrow = onnx.TensorProto.FLOAT16 if precision == "fp16" else onnx.TensorProto.BFLOAT16
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        rounding (float[{len(_VALUES)}] x) => (float[{len(_VALUES)}] y) {{
            negative = Neg(x)
            narrow = Cast<to = {narrow}>(negative)
            wide = Cast<to = {onnx.TensorProto.FLOAT}>(narrow)
            y = Neg(wide)
        }}""")
    with tempfile.TemporaryDirectory(prefix="ndld_flow-") as folder:
        path = Path(folder) / "rounding.onnx"
        onnx.save(model, path)
        session = request.open(path)
        binding = session.bind({"x": _VALUES})
        binding.run()
        values = binding.outputs()["y"]
        session.close()
    return values


def macs_share(nodes: Collection[ir.Node], graph: ir.Graph, shapes: Mapping[str, Shape]) -> float | None:
    """Return the share of a graph's multiply-accumulates in `nodes`; None if no node has a count.

    `shapes` maps names of tensors to their shapes.
    """
    counted = {node: node_macs(node, shapes) or 0 for node in graph}
    total = sum(counted.values())
    return sum(counted.get(node, 0) for node in nodes) / total if total else None


def node_macs(node: ir.Node, shapes: Mapping[str, Shape]) -> int | None:
    """Return the multiply-accumulates of a node; None if they are unknown."""
    inputs, outputs = ([shape_of(value, shapes) for value in side] for side in (node.inputs, node.outputs))
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    return count_macs(node.op_type, inputs, outputs, attributes)


def shape_of(value: ir.Value | None, shapes: Mapping[str, Shape]) -> Shape | None:
    """Return the shape of a constant, or of a tensor among those with known shapes."""
    if value is None:
        return None
    tensor = fixed_tensor(value)
    if tensor is not None:
        return tuple(tensor.shape.numpy())
    return shapes.get(value.name or "")


THIN_HEADROOM = "thin headroom: "
CONVERTED = "the model as the step that uses the result converts it: "
_SAFE_SHARE = 0.25
"""Share of fp16's limit above which inputs that are not in the samples may well exceed it."""
Precision = Literal["fp16", "bf16", "int8"]
_OBSERVING = 0.3
"""Share of the time after which no further sample is observed."""


@dataclass(frozen=True)
class SearchRequest:
    """The model to search, the goal and limits of the search, and its files."""

    path: Path
    label: str
    """Name of the model."""
    samples: Samples
    reducer: Reducer
    precision: Precision
    tolerance: Tolerance
    op_types: Sequence[str]
    trials: int
    time_s: float
    custom_ops: Sequence[str]
    """Paths of libraries with custom operators."""
    runtime: SessionRequest | None
    """Runs the trials; None for ONNX Runtime on the CPU, which always runs the original."""
    scratch: Path
    trial_file: TrialFile
    progress: Callable[[int, int, str], None]


def format_metrics(metrics: Mapping[str, float], tolerance: Tolerance) -> str:
    """Return `12 values NaN or infinite`, or `cosine 0.9991, snr_db 27.2`: the first two bounded metrics."""
    if "nonfinite" in metrics:
        return f"{count(metrics['nonfinite'])} values NaN or infinite"
    bounded = [name for name in tolerance.bounds() if name in metrics][:2]
    return ", ".join(f"{name} {metric_text(name, metrics[name])}" for name in bounded)


SETTINGS = OnnxruntimeRequest(memory_arena=False, memory_reuse=False, spinning=False)
"""Trials run on the CPU with emulated storage and fp32 arithmetic. Each model runs only a few times, so spinning
threads and a memory arena would cost more time than they save."""


class PrecisionSearcher:
    """One search. Raises `RequestError` if there is nothing to search, `ModelError` if the model does not run."""

    def __init__(self, request: SearchRequest) -> None:
        self._request = request
        self._started = time.monotonic()
        self._recorded: list[Trial] = []
        self._positions = self._allowed()
        settings = replace(SETTINGS, custom_ops=request.custom_ops)
        self._observer = Observer(
            request.path,
            request.precision,
            request.reducer,
            request.samples,
            settings,
            request.scratch,
            lambda: time.monotonic() > self._started + _OBSERVING * request.time_s,
        )
        if request.runtime is not None:
            # Every trial would pass where the runtime removes the Casts that round stored tensors.
            precision = request.precision
            if precision != "int8" and not rounds_to(request.runtime, precision):
                library = request.runtime.names().library
                raise RequestError(
                    f"`runtime`: {library} removes pairs of Casts to {precision} and back, so that no trial would "
                    f"compute in {precision}: remove `runtime` (ONNX Runtime rounds), or search for another precision."
                )
        judge = Judge(
            request.path, request.samples, request.tolerance, settings, request.runtime or settings, request.scratch
        )
        before = request.trial_file.read()
        self._trials = Trials(request.reducer, judge, request.trial_file, request.scratch, before=before)

    def run(self) -> PrecisionSearch:
        """Search, verify the result, and return its record."""
        self._request.progress(0, 0, "trying the conversion of every node")
        fine = self._trials.try_keeping(frozenset()).passed
        candidates = () if fine else self._candidates()
        deadline = self._started + self._request.time_s
        budget = Budget(self._request.trials, lambda: time.monotonic() > deadline)
        minimal = find_minimal_set(candidates, self._trials.try_keeping, budget, self._record)
        record = self._describe_search(minimal)
        if minimal.kept:
            self._request.progress(len(self._recorded), 0, "verifying the model that the conversion would produce")
            record = self._verified(record, minimal.kept)
        self._request.trial_file.delete()
        searched_s = time.monotonic() - self._started
        if record.passed and record.candidate_count:
            self._request.progress(0, 0, "measuring what a trial would notice")
            power = self._trials.judge.measure_power(searched_s)
            record = record.model_copy(update={"power": power})
        return record.model_copy(update={"wall_s": searched_s})

    def _describe_search(self, found: MinimalSet) -> PrecisionSearch:
        """Return the record without the final check, its layers and the wall time."""
        reducer, kept = self._request.reducer, found.kept
        whole = self._observer.whole()
        first = first_divergent(whole, self._request.tolerance.bounds())
        sample = next(iter(self._request.samples))
        return PrecisionSearch(
            model=self._request.label,
            precision=self._request.precision,
            tolerance=self._request.tolerance.given(),
            sample_count=len(self._request.samples),
            samples=first_labels(self._request.samples),
            inputs={name: feed.description for name, feed in sample.feeds.items()},
            settings=dict(reducer.settings),
            node_count=len(reducer.nodes),
            candidate_count=len(self._positions),
            always_kept={reducer.nodes[position].label: why for position, why in reducer.always_kept.items()},
            kept=tuple(self._kept_node(position, found) for position in sorted(kept)),
            passed=found.outcome.passed,
            ended_early=found.spent,
            metrics_whole=self._trials.metrics(frozenset()),
            metrics_found=self._trials.metrics(kept),
            layers_whole=whole,
            first_divergent="" if first is None else first.tensor,
            trials=tuple(self._recorded),
            kept_macs_share=self._macs_share(kept, whole) if kept else 0.0,
            wall_s=0.0,
            notes=(*self._notes(found), *self._headroom(found, whole)),
        )

    def _kept_node(self, position: int, found: MinimalSet) -> KeptNode:
        node, described = self._request.reducer.nodes[position], ""
        without = self._trials.metrics(found.kept - {position}) if position in found.without else {}
        if position in found.without:
            rest = format_metrics(without, self._request.tolerance) or "the model does not run"
            whole = format_metrics(self._trials.metrics(found.kept), self._request.tolerance)
            described = f"without it: {rest}; with it: {whole}"
        evidence = self._suspects[position].evidence(described)
        return KeptNode(
            node=node.name,
            op_type=node.op_type,
            outputs=node.outputs,
            cause=evidence[0].cause,
            evidence=evidence,
            without=without,
        )

    def _macs_share(self, kept: Kept, layers: Sequence[LayerDivergence]) -> float | None:
        """Return the kept nodes' share, by the observed shapes of layers and inputs."""
        nodes = [self._suspects[position].node for position in kept]
        graph = next(iter(self._suspects.values())).node.graph
        if graph is None or not layers:
            return None
        sample = next(iter(self._request.samples))
        shapes = {name: tuple(feed.values.shape) for name, feed in sample.feeds.items()}
        return macs_share(nodes, graph, shapes | {layer.tensor: layer.shape for layer in layers})

    def _notes(self, found: MinimalSet) -> list[str]:
        notes = [*self._request.samples.notes, *self._trials.judge.notes, *self._observer.notes]
        if not self._request.reducer.candidates:
            notes.append(f"no node of this model becomes {self._request.precision}: none is in fp32, or all are kept")
        if found.spent:
            best = "no trial was better than keeping nothing"
            if found.kept:
                best = f"the set of {len(found.kept)} nodes is the best that was tried"
                best += "" if found.minimal else " and may include nodes that it does not need"
            notes.append(f"the search ended because its budget was used up: {best}")
        elif not found.outcome.passed:
            notes.append("the bound is not met even with every candidate kept")
        return notes

    def _headroom(self, found: MinimalSet, layers: Sequence[LayerDivergence]) -> list[str]:
        """Return a note on the largest tensor in fp16 if another input may overflow it, and none on a failure.

        A kept node's output is in fp16 too where a node in fp16 reads it, through the Cast of the conversion.
        """
        if self._request.precision != "fp16" or not found.outcome.passed:
            return []
        model = load_model(self._request.path)
        prepare(model, self._request.path)
        reduced = set(self._request.reducer.candidates) - found.kept
        nodes = [node for position, node in enumerate(model.graph.all_nodes()) if position in reduced]
        halves = {value.name for node in nodes for value in (*node.inputs, *node.outputs) if value is not None}
        sizes = {layer.tensor: layer.range.largest_abs for layer in layers if layer.range is not None}
        for sample in self._request.samples:
            for name, feed in sample.feeds.items():
                if feed.values.dtype.kind == "f" and feed.values.size:
                    sizes[name] = max(sizes.get(name, 0.0), float(np.nanmax(np.abs(feed.values))))
        limit = FORMAT_LIMITS["fp16"].largest
        thin = {name: size for name, size in sizes.items() if name in halves and size > _SAFE_SHARE * limit}
        if not thin:
            return []
        largest = max(thin, key=thin.__getitem__)
        share = percent(min(thin[largest] / limit, 1.0))
        more = f", and {len(thin) - 1} more above {percent(_SAFE_SHARE)}" if len(thin) > 1 else ""
        return [
            f"{THIN_HEADROOM}{short_name(largest)} reaches {number(thin[largest])} on these samples, {share} of fp16's "
            f"limit{more}: other inputs may overflow it; keep the nodes that compute and read it in fp32 (`keep`)"
        ]

    def _verified(self, record: PrecisionSearch, kept: Kept) -> PrecisionSearch:
        last = self._trials.verify(record, kept)
        notes = record.notes
        if record.passed and not last.passed:
            bounds = self._request.tolerance.bounds()
            found = [] if "nonfinite" in last.metrics else outside(last.metrics, bounds)
            reason = last.trouble or "; ".join(found) or format_metrics(last.metrics, self._request.tolerance)
            notes = (*notes, f"{CONVERTED}{reason}")
        passed = record.passed and last.passed
        layers = () if last.trouble else self._observer.layers(self._trials.judge.ran)
        done = {"trials": (*record.trials, last), "passed": passed, "notes": notes, "layers_found": layers}
        return record.model_copy(update=done)

    @cached_property
    def _suspects(self) -> dict[int, Suspect]:
        """Position of a node -> the evidence against it."""
        model = load_model(self._request.path)
        prepare(model, self._request.path)
        return dict(enumerate(self._observer.suspects(model.graph.all_nodes())))

    def _allowed(self) -> tuple[int, ...]:
        """Return the positions of the nodes that may be kept."""
        reducer = self._request.reducer
        if not reducer.candidates and self._request.precision == "int8":
            raise RequestError(
                f"there is nothing to search: no node of the model of {self._request.label} would become int8 (none is "
                "in fp32, or all are kept, or `int8` excludes them)."
            )
        if not self._request.op_types or not reducer.candidates:
            return tuple(reducer.candidates)
        nodes_of_types(load_model(self._request.path), self._request.op_types, "op_types")
        op_types = set(self._request.op_types)
        allowed = tuple(position for position in reducer.candidates if reducer.nodes[position].op_type in op_types)
        if not allowed:
            raise RequestError(
                f"`op_types`: no {', '.join(op_types)} of the model of {self._request.label} would become "
                f"{self._request.precision}, so there is nothing to search."
            )
        return allowed

    def _candidates(self) -> tuple[Candidate, ...]:
        self._request.progress(0, 0, "measuring the error of each node")
        severity = severities(self._suspects.values())
        nodes = self._request.reducer.nodes
        return tuple(
            Candidate(position, nodes[position].op_type, nodes[position].label, severity[self._suspects[position].node])
            for position in self._positions
        )

    def _record(self, attempt: Attempt) -> None:
        trial = self._trials.record(attempt)
        self._recorded.append(trial)
        metrics = format_metrics(trial.metrics, self._request.tolerance)
        self._request.progress(
            trial.number, 0, f"trial {trial.number}: {trial.what}: {metrics or 'the model does not run'}"
        )
