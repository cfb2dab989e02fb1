"""Regions of a model, the accuracy of sets of them, and their latency.

Each region is written as two models of its own, in floats and with Q/DQ pairs of the whole model's ranges. Regions with
equal operators, attributes and shapes are of one kind, which is measured once: latency does not depend on the values.

For an accurate set, layers are ordered by what they save for their error, and halving finds how many of them, from the
first, meet the tolerance; it begins with the number that their errors let expect. Then each of the others is added,
those that save the most first, and stays if the tolerance is still met. So a layer that ruins an output costs one
trial, and there is a part soon.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import onnx_ir as ir

from ndld_flow.accuracy.inside.capture import capture
from ndld_flow.base.errors import ModelError, NdldFlowError
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.extracting import keep_only, part_of_nodes
from ndld_flow.measure.pair_rounds import MeasuredRounds, RoundLimits, measure_rounds, measure_sessions
from ndld_flow.measure.process_runs import MeasuringPlan, ProfilingRequest, Side
from ndld_flow.models.files import load_model, model_inputs, save_model
from ndld_flow.models.tensors import Array
from ndld_flow.precision_search.minimal_set import Budget
from ndld_flow.precision_search.search import node_macs, shape_of
from ndld_flow.precision_search.trials import Judge, TrialResult
from ndld_flow.profiles.compare.rounds import RoundsPlan, deciding_interval, describe_rounds, typical_base
from ndld_flow.profiles.compare.verdicts import decide_ratio
from ndld_flow.profiles.read.layer_work import Shape
from ndld_flow.quantize.calibration import Ranges, Workspace
from ndld_flow.quantize.onnxruntime_quantizer import QuantizerError
from ndld_flow.quantize.prepared_model import PreparedModel, QuantizableNode, intensity, prepare_model
from ndld_flow.quantize.quantize_file import write_quantized
from ndld_flow.quantize.settings import Exclude, QuantizeSettings
from ndld_flow.records.noise import Round
from ndld_flow.records.placement import MeasuredRatio
from ndld_flow.runtimes.protocol import SessionRequest


@dataclass(frozen=True)
class Region:
    """A layer and the operators after it."""

    layer: QuantizableNode
    followers: tuple[QuantizableNode, ...]
    """Operators that read only the output of the one before them, which nothing else reads."""
    kind: int
    macs: int | None
    intensity: float
    """Multiply-accumulates per element that the layer reads and writes."""

    @property
    def nodes(self) -> tuple[QuantizableNode, ...]:
        return (self.layer, *self.followers)


@dataclass(frozen=True)
class RegionModels:
    """A region as models of its own."""

    floats: Path
    quantized: Path
    values: Mapping[str, Array]
    """Values of the inputs, as in a run of the whole model."""


def find_regions(prepared: PreparedModel, exclude: Collection[str], values: Mapping[str, Array]) -> tuple[Region, ...]:
    """Return the regions of the layers that can be quantized, in the order of execution.

    `values` are the tensors that nodes to quantize read and write, of one sample.
    """
    shapes = {name: tuple(array.shape) for name, array in values.items()}
    by_name = {node.name: node for node in load_model(prepared.saved()).graph}
    chosen = prepared.chosen(exclude)
    readers = {node.name: node for node in chosen if node.follows}
    kinds: dict[object, int] = {}
    regions = []
    for layer in chosen:
        if not layer.follows:
            followers = tuple(_followers(by_name[layer.name], readers))
            described = [_describe(by_name[node.name], shapes) for node in (layer, *followers)]
            kind = kinds.setdefault(tuple(described), len(kinds))
            node = by_name[layer.name]
            regions.append(Region(layer, followers, kind, node_macs(node, shapes), intensity(node)))
    return tuple(regions)


def captured_values(
    prepared: PreparedModel, feeds: Mapping[str, Array], session: SessionRequest, scratch: Path
) -> dict[str, Array]:
    """Return the tensors that nodes to quantize read and write, in a run of one sample."""
    tensors = dict.fromkeys(name for node in prepared.chosen() for name in (*node.reads, *node.makes))
    inside = [name for name in tensors if name not in prepared.inputs]
    (computed,) = capture(prepared.saved(), inside, [feeds], session.unfused(), scratch)
    return {**feeds, **computed}


def _followers(node: ir.Node, readers: Mapping[str, QuantizableNode]) -> Iterator[QuantizableNode]:
    """Yield the operators after a layer that nothing else comes between."""
    output = node.outputs[0]
    while not output.is_graph_output() and len(output.uses()) == 1:
        reader = next(iter(output.uses())).node
        follower = readers.get(reader.name or "")
        if follower is None or follower.reads != (output.name,):
            return
        yield follower
        output = reader.outputs[0]


def _describe(node: ir.Node, shapes: Mapping[str, Shape]) -> object:
    """Return everything on which the latency of a node depends: its operator, attributes, types and shapes."""
    attributes = sorted((name, str(attribute.value)) for name, attribute in node.attributes.items())
    return node.op_type, tuple(attributes), tuple((shape_of(v, shapes), str(v and v.dtype)) for v in node.inputs)


class RegionWriter:
    """Writes regions of a prepared model as models of their own."""

    def __init__(
        self, prepared: PreparedModel, ranges: Ranges, settings: QuantizeSettings, values: Mapping[str, Array]
    ) -> None:
        self._prepared, self._ranges, self._values = prepared, ranges, values
        self._settings = settings.model_copy(update={"exclude": Exclude(), "min_intensity": 0.0, "allow_empty": True})

    def write(self, region: Region, folder: Path) -> RegionModels | None:
        """Write a region to an empty folder; return None if it cannot be a model of its own."""
        try:
            floats, quantized = folder / "float.onnx", folder / "quantized.onnx"
            edited = EditedModel(load_model(self._prepared.saved()), self._prepared.saved())
            names = {node.name for node in region.nodes}
            part = part_of_nodes(edited, [node for node in edited.model.graph if node.name in names])
            edges = [value.name or "" for value in (*part.inputs, *part.outputs)]
            if not self._values.keys() >= set(edges):  # they are no tensors on the host
                return None
            keep_only(edited, part, {name: self._type(name) for name in edges})
            save_model(edited.model, floats)
            prepared = prepare_model(floats, folder / "prepared.onnx", self._settings)
            written = write_quantized(prepared, quantized, self._ranges, self._settings, {}, Workspace(folder))
            if {node.name for node in written.nodes} != names:
                return None
            return RegionModels(
                floats, quantized, {spec.name: self._values[spec.name] for spec in model_inputs(floats)}
            )
        except NdldFlowError:
            return None

    def _type(self, name: str) -> str:
        array = self._values[name]
        return f"{array.dtype.name}[{', '.join(map(str, array.shape))}]"


def connected(nodes: Sequence[QuantizableNode]) -> list[frozenset[str]]:
    """Return the layers among quantized nodes, by their first outputs, in groups that share integers.

    Two nodes are in one group if one reads what the other writes, or both read the same tensor: between groups, values
    are floats.
    """
    groups: dict[str, set[str]] = {}
    for node in nodes:
        tensors = {*node.reads, *node.makes}
        joined = tensors.union(*(groups[tensor] for tensor in tensors if tensor in groups))
        groups.update(dict.fromkeys(joined, joined))
    layers: dict[int, set[str]] = {}
    for node in nodes:
        if not node.follows:
            layers.setdefault(id(groups[node.makes[0]]), set()).add(node.output)
    return [frozenset(members) for members in layers.values()]


WriteSet = Callable[[frozenset[int], Path], None]
"""Write the model to a file, with only these layers quantized. Raises `ModelError` and `QuantizerError`."""
_LEAST_ERROR = 1e-6
_USUAL_BOUND = 0.1
"""The bound on relative errors by which the first part is chosen, if the tolerance has none of slices."""


@dataclass(frozen=True)
class Worth:
    """The reasons to quantize a layer, and not to."""

    saved_ms: float
    """Time that it saves alone; 0 if it was not measured."""
    error: float | None
    """Relative RMS of the worst output's error if only it is quantized; None if it was not measured."""

    @property
    def per_error(self) -> float:
        """Return the time saved for the square of the error: independent errors add as squares."""
        return self.saved_ms / max(self.error or 0.0, _LEAST_ERROR) ** 2


class AccurateSets:
    """Finds parts of sets of layers that meet the tolerance on the samples; each set is run once."""

    def __init__(self, judge: Judge, write: WriteSet, worths: Sequence[Worth], scratch: Path) -> None:
        self._bound = judge.bounds.tolerance.bounds().get("slice_rms", _USUAL_BOUND)
        self._judge, self._write, self._file = judge, write, scratch / "tried.onnx"
        self._worths = worths
        self._results: dict[frozenset[int], TrialResult] = {}
        self.broken: dict[int, str] = {}
        """Layer that could not be added to a set -> the bound that does not hold with it."""
        self.untried: set[int] = set()
        """Layers that were left out of a set and not tried with the rest, because the budget was spent."""

    @property
    def tried(self) -> int:
        return len(self._results)

    def large_part(self, wanted: frozenset[int], budget: Budget) -> frozenset[int]:
        """Return a part of a set that meets the tolerance; the empty one if no other was found in the budget."""
        end = self.tried + budget.attempts

        def is_spent() -> bool:
            return self.tried >= end or budget.time_is_up()

        if self.meets(wanted):
            return wanted
        order = sorted(wanted, key=lambda index: (-self._worths[index].per_error, index))
        enough, many = 0, len(order)
        # The layers that are expected to meet the tolerance, if errors add as squares.
        sums = accumulate((self._worths[index].error or 0.0) ** 2 for index in order)
        fitting = sum(math.sqrt(total) <= self._bound for total in sums)
        middle = max(1, min(fitting, len(order) - 1))
        while many - enough > 1 and not is_spent():
            if self.meets(frozenset(order[:middle])):
                enough = middle
            else:
                many = middle
            middle = (enough + many) // 2
        part = frozenset(order[:enough])
        for index in sorted(order[enough:], key=lambda index: -self._worths[index].saved_ms):
            if part | {index} not in self._results and is_spent():
                self.untried.add(index)
            elif self.meets(part | {index}):
                part |= {index}
            else:
                self.broken[index] = self._judge.bounds.broken(self._results[part | {index}])
        return part

    def meets(self, quantized: frozenset[int]) -> bool:
        """Return whether a set meets the tolerance; a model that cannot be written or run does not."""
        if not quantized:
            return True
        if quantized not in self._results:
            try:
                self._write(quantized, self._file)
                self._results[quantized] = self._judge.judge(self._file)
            except (ModelError, QuantizerError) as error:  # another set may be possible
                self._results[quantized] = TrialResult(trouble=str(error))
        return self._judge.bounds.passed(self._results[quantized])

    def metrics(self, quantized: frozenset[int]) -> Mapping[str, float]:
        """Return the metrics of the worst output of a set; none for a set that was not tried."""
        judged = self._results.get(quantized)
        return {} if judged is None else self._judge.bounds.worst(judged)

    def why_not(self, quantized: frozenset[int]) -> str:
        """Return the bound that does not hold for a set that was tried."""
        return self._judge.bounds.broken(self._results[quantized])


@dataclass(frozen=True)
class LatencyMeter:
    """Measures pairs of models on one target."""

    session: SessionRequest
    scratch: Path
    least_gain: float
    """Measurements end once a difference is known to be more or less than this."""
    report: Callable[[int, int, str], None]

    def measure(
        self, base: Path, candidate: Path, values: Mapping[str, Array], limits: RoundLimits, what: str
    ) -> MeasuredRatio:
        """Measure two models with the same inputs in turns, in fresh processes; return candidate over base.

        Raises `BackendError` and `ModelError` if one does not run.
        """
        sides = [self._side(path, values, what) for path in (base, candidate)]
        return self._describe(measure_rounds(sides, self.scratch, limits, self._decider(limits)), limits)

    def measure_quickly(
        self, base: Path, candidate: Path, values: Mapping[str, Array], limits: RoundLimits, what: str
    ) -> MeasuredRatio:
        """Measure two small models as `measure` does, but in this process if the runtime can."""
        if self.session.needs_process:
            return self.measure(base, candidate, values, limits, what)
        self.report(0, 0, what)
        return self._describe(
            measure_sessions((base, candidate), self.session, values, limits, self._decider(limits)), limits
        )

    def _plan(self, limits: RoundLimits) -> RoundsPlan:
        on_device = self.session.measured_gpu() is not None
        return RoundsPlan(on_device, limits.rounds, limits.budget_ms, self.least_gain)

    def _decider(self, limits: RoundLimits) -> Callable[[Sequence[Round]], bool]:
        plan = self._plan(limits)

        def is_decided(rounds: Sequence[Round]) -> bool:
            if len(rounds) < limits.fewest:
                return False
            interval = deciding_interval(describe_rounds(rounds, plan, ""))
            return decide_ratio(interval, self.least_gain, "lower") != "inconclusive"

        return is_decided

    def _describe(self, measured: MeasuredRounds, limits: RoundLimits) -> MeasuredRatio:
        paired = describe_rounds(measured.rounds, self._plan(limits), measured.stopped_because)
        interval = deciding_interval(paired)
        return MeasuredRatio(
            float_ms=typical_base(paired),
            ratio=interval.ratio,
            low=interval.low,
            high=interval.high,
            clock=paired.clock,
            rounds=len(measured.rounds),
        )

    def _side(self, path: Path, values: Mapping[str, Array], what: str) -> Side:
        request = ProfilingRequest(
            path=path,
            label=what,
            digest="",
            inputs={},
            session=self.session,
            plan=MeasuringPlan(),
            layer_passes=0,
            batches=(),
            seed=0,
            options={},
            values=values,
        )
        return Side(request, self.scratch, lambda done, total, doing: self.report(done, total, f"{what}: {doing}"))
