"""How much a check is worth: plant faults in its reference, and judge them by the check's own bounds and samples.

Each fault would need a model, and a session of its own. Instead, wrong weights are fed to initializers that are inputs
of the graph too, and a node with a wrong twin becomes an `If` on an input (mutant schemata: Untch, Offutt and Harrold,
1993). Outputs differ from those of the plain model by rounding only, because fewer nodes are fused and folded; without
a fault, the planted model is its own reference.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass, LiftSubgraphInitializersToMainGraphPass

from ndld_flow.accuracy.agreement import Agreement, Measuring, Yardstick
from ndld_flow.accuracy.model_comparison import StoredOutputs, storable
from ndld_flow.accuracy.power.faults import Fault, NodeFault, WeightFault, draw_faults, needs_shapes
from ndld_flow.accuracy.power.reached import Branching, ClassOutput, Forest, Table, Watched, find_leaves, find_watched
from ndld_flow.accuracy.ranked_lists import Outputs
from ndld_flow.accuracy.tolerance import outside
from ndld_flow.base.errors import ModelError, NdldFlowError
from ndld_flow.base.text import one_paragraph
from ndld_flow.models.files import load_model, model_inputs, proto_with_external_data
from ndld_flow.models.nodes import UniqueNames, add_initializer, inline_functions
from ndld_flow.models.shape_inference import infer_shapes
from ndld_flow.models.tensors import Array, numpy_dtype
from ndld_flow.records.power import FaultOutcome, PartsReached, PlantedFault, Power
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import OnnxruntimeSession, SessionSettings, open_model
from ndld_flow.samples.generated_values import is_float
from ndld_flow.samples.sample_feeds import Sample


@dataclass(frozen=True)
class PlantedModel:
    """An open model with faults that are switched on by further inputs."""

    session: OnnxruntimeSession
    outputs: tuple[str, ...]
    faults: tuple[Fault, ...]
    switches: Mapping[int, str]
    """Number of a fault of a node -> the input that switches it on."""
    watched: Sequence[Watched]
    not_watched: tuple[str, ...]
    """`rows of table`, of a table that only a body reads."""

    def feeds_of(self, number: int) -> dict[str, Array]:
        """Return the values that switch a fault on."""
        fault = self.faults[number]
        if isinstance(fault, WeightFault):
            return {str(fault.site.weight.name): fault.value()}
        return {self.switches[number]: np.array(True)}


def plant(path: Path, settings: SessionSettings, count: int, seed: int) -> PlantedModel:
    """Open a model with up to `count` faults, drawn by `seed`.

    Raises `ModelError` if it cannot be read, has functions that cannot be inlined, or is refused by ONNX Runtime.
    """
    model = load_model(path)
    outputs = tuple(str(value.name) for value in model.graph.outputs)
    inline_functions(model, path)
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    LiftSubgraphInitializersToMainGraphPass()(model)
    if needs_shapes(model):
        infer_shapes(model)
    faults = draw_faults(model, count, seed)
    watched, inside = find_watched(model)
    names = UniqueNames(model)
    watched += find_leaves(model, names)
    inputs = set(model.graph.inputs)
    for fault in faults:
        if isinstance(fault, WeightFault) and fault.site.weight not in inputs:
            inputs.add(fault.site.weight)
            model.graph.inputs.append(fault.site.weight)
    twins: dict[ir.Node, dict[int, NodeFault]] = {}
    for i, fault in enumerate(faults):
        if isinstance(fault, NodeFault):
            twins.setdefault(fault.node, {})[i] = fault
    switches = {
        i: switch
        for node, of_node in twins.items()
        for i, switch in zip(of_node, _plant_twins(model, node, [*of_node.values()], names), strict=True)
    }
    # The tensors of the main graph become outputs, unless they are inputs or outputs already.
    known = {value.name for value in (*model.graph.inputs, *model.graph.outputs)}
    values = {value.name: value for node in model.graph for value in node.outputs}
    further = dict.fromkeys(each.tensor for each in watched if each.tensor not in known)
    model.graph.outputs.extend(values[name] for name in further)
    model.ir_version = max(model.ir_version or 0, 4)  # the first in which initializers need not be inputs
    changed = proto_with_external_data(model, path).SerializeToString()
    session = open_model(path, settings, changed)
    return PlantedModel(session, outputs, tuple(faults), switches, watched, tuple(inside))


def _plant_twins(model: ir.Model, node: ir.Node, faults: Sequence[NodeFault], names: UniqueNames) -> list[str]:
    """Replace a node by an `If` between it and its wrong twins; return the names of the inputs that choose these."""
    switches = []
    for _ in faults:
        switch = add_initializer(model.graph, ir.tensor(np.array(False), name=names.value("wrong")))
        model.graph.inputs.append(switch)
        switches.append(switch)
    chosen = _copy(node, node.op_type, list(node.attributes.values()), names)
    for switch, fault in zip(switches, faults, strict=True):
        twin = _copy(node, fault.op_type, fault.wrong_attributes(), names)
        chosen = _choice(switch, twin, chosen, names)
    node.prepend(chosen)
    for old, output in zip(node.outputs, chosen.outputs, strict=True):
        output.type, output.shape = old.type, old.shape
        ir.convenience.replace_all_uses_with(old, output, replace_graph_outputs=True)
        if old.name:
            output.name, old.name = old.name, None
    assert isinstance(node.graph, ir.Graph)
    node.graph.remove(node, safe=True)
    return [str(switch.name) for switch in switches]


def _copy(node: ir.Node, op_type: str, attributes: Sequence[ir.Attr], names: UniqueNames) -> ir.Node:
    copied = ir.Node(
        node.domain,
        op_type,
        node.inputs,
        attributes,
        num_outputs=len(node.outputs),
        name=names.node(f"{node.name}_{op_type}"),
    )
    for output, old in zip(copied.outputs, node.outputs, strict=True):
        output.name, output.type = names.value(f"{old.name}_{op_type}"), old.type
    return copied


def _choice(switch: ir.Value, wrong: ir.Node, right: ir.Node, names: UniqueNames) -> ir.Node:
    """Return an `If` between two nodes, each in a branch of its own."""
    branches = (("then_branch", wrong), ("else_branch", right))
    attributes = [
        ir.AttrGraph(name, ir.Graph([], inner.outputs, nodes=[inner], name=names.node("branch")))
        for name, inner in branches
    ]
    chosen = ir.Node("", "If", [switch], attributes, num_outputs=len(right.outputs), name=names.node("If_wrong"))
    for output, inner in zip(chosen.outputs, right.outputs, strict=True):
        output.name, output.type = names.value(f"{inner.name}_chosen"), inner.type
    return chosen


MOST_FAULTS = 20
"""Faults that are planted unless a number is given: enough to tell shares of 15, 60 and 90 % apart."""
_LEAST_S, _TIMES_CHECK, _SEARCH_SHARE = 1.0, 2.0, 0.1
_SEED = 0
_UNCHANGED = 1e-6
"""An output whose error is smaller, relative to its rms, has not changed."""
_LEAST_SECONDS, _TIMES_SLOWER = 5.0, 10.0
"""A faulty loop may have no end: a run is stopped after this multiple of the slowest right one."""
_ONLY_GROWING = frozenset(("cosine", "snr_db", "psnr_db", "relative_rms", "max_abs", "max_rel", "slice_max"))
"""Metrics that further samples only make worse."""
_NO_PLACE = "the model has no weight or node in which a fault can be planted"
_TOO_SLOW = "a model with faults takes too long to open and run; `power: 20` or a longer `power_time` waits for it"


@dataclass(frozen=True)
class JudgedOutput:
    """An output of a reference, and how a check judges it."""

    name: str
    yardstick: Yardstick
    measuring: Measuring
    bounds: Mapping[str, float]
    """Metric -> bound; none if the output is not judged."""
    is_constant: bool
    only_certain: bool = False
    """Errors fail the check only where the reference shows their scale; others leave it undecided."""


@dataclass(frozen=True)
class Check:
    """A check whose power is measured."""

    reference: Path
    settings: SessionSettings
    """Those in which the reference runs."""
    samples: Iterable[Sample]
    """Samples with values for all inputs: of sequences, every step with the states of the reference."""
    outputs: Sequence[JudgedOutput]


def seconds_for(check_s: float, search_s: float = 0.0) -> float:
    """Return the time for planted faults: twice that of the check, or a tenth of the search that it is part of."""
    return max(_LEAST_S, _TIMES_CHECK * check_s, _SEARCH_SHARE * search_s)


def measure_power(check: Check, scratch: Path, *, count: int = MOST_FAULTS, seconds: float = math.inf) -> Power:
    """Plant up to `count` faults in the reference, and return which of them the check would notice.

    After `seconds` no further fault is tried. A reference that cannot be planted or run fails no check: `not_measured`
    is the reason.
    """
    start = time.monotonic()
    constant = tuple(output.name for output in check.outputs if output.is_constant)
    if not any(output.bounds for output in check.outputs):
        return Power(constant=constant, not_measured="no output has bounds")
    try:
        planted = plant(check.reference, check.settings, count, _SEED)
        trial = _Trial(check, planted, scratch)
        trial.run_right()
        exchangeable = tuple(trial.exchangeable(start + seconds / 4))
        ignorable = tuple(trial.ignorable(start + seconds / 2))  # a decoder has dozens of inputs
        faults = tuple(trial.try_faults(start + seconds))
    except Exception as error:  # whatever the planted model meets, the check itself has ended
        reason = str(error) if isinstance(error, NdldFlowError) else f"{type(error).__name__}: {error}"
        return Power(constant=constant, wanted=count, not_measured=one_paragraph(reason))
    return Power(
        faults=faults,
        wanted=count,
        reached=(*trial.rows(), *(each.record() for each in planted.watched if isinstance(each, ClassOutput | Forest))),
        not_watched=planted.not_watched,
        branches_not_run=trial.branches_not_run(),
        ignorable=ignorable,
        exchangeable=exchangeable,
        constant=constant,
        single_sizes=trial.single_sizes(),
        not_measured="" if faults else _TOO_SLOW if planted.faults else _NO_PLACE,
    )


@dataclass
class _Trial:
    """Runs of a planted model on all samples of a check."""

    check: Check
    planted: PlantedModel
    scratch: Path
    slowest_s: float = 0.0
    pass_s: float = 0.0
    """Seconds of all samples."""
    sizes: dict[str, set[int]] = field(default_factory=dict)
    """Open dimension -> its sizes."""

    def __post_init__(self) -> None:
        self.specs = model_inputs(self.check.reference)
        self.dtypes = {spec.name: numpy_dtype(spec.dtype) for spec in self.specs}
        self.feeds = StoredOutputs(self.scratch / "planted-inputs")
        self.right = StoredOutputs(self.scratch / "planted-outputs")

    def run_right(self) -> None:
        """Run the model without a fault, store what it reads and computes, and note what the samples reach."""
        further = {watched.tensor for watched in self.planted.watched}
        further -= {*self.planted.outputs, *(spec.name for spec in self.specs)}
        names = (*self.planted.outputs, *sorted(further))
        for sample in self.check.samples:
            feeds = sample.arrays
            self.feeds.add(feeds)
            start = time.monotonic()
            outputs = self.planted.session.run_within(names, self._cast(feeds), threading.TIMEOUT_MAX)
            took_s = time.monotonic() - start
            self.pass_s, self.slowest_s = self.pass_s + took_s, max(self.slowest_s, took_s)
            self.right.add({name: array for name, array in outputs.items() if name not in further})
            self._watch({**feeds, **outputs})

    def _cast(self, feeds: Outputs) -> dict[str, Array]:
        """Return inputs in the model's types: files hold no bfloat16."""
        cast = {}
        for name, values in feeds.items():
            assert values is not None
            dtype = self.dtypes.get(name)
            cast[name] = values if dtype is None or dtype.kind in "OU" else np.asarray(values, dtype)
        return cast

    def _watch(self, tensors: Outputs) -> None:
        for watched in self.planted.watched:
            values = tensors.get(watched.tensor)
            if values is not None:
                watched.add(values)
        for spec in self.specs:
            values = tensors[spec.name]
            assert values is not None
            for axis, dim in enumerate(spec.shape or ()):
                if not isinstance(dim, int):
                    self.sizes.setdefault(dim or f"axis {axis} of {spec.name}", set()).add(values.shape[axis])

    def rows(self) -> Iterator[PartsReached]:
        tables: dict[str, tuple[int, set[object]]] = {}
        for table in self.planted.watched:
            if isinstance(table, Table):  # several operators may look up rows of one table
                tables.setdefault(table.name, (table.rows, set()))[1].update(table.reached)
        for name, (count, read) in tables.items():
            yield PartsReached(parts="rows", of=name, reached=len(read), count=count)

    def branches_not_run(self) -> tuple[str, ...]:
        return tuple(
            f"{word} of {branching.node}"
            for branching in self.planted.watched
            if isinstance(branching, Branching)
            for value, word in ((True, "then_branch"), (False, "else_branch"))
            if value not in branching.reached
        )

    def single_sizes(self) -> dict[str, int]:
        return {name: next(iter(sizes)) for name, sizes in self.sizes.items() if len(sizes) == 1}

    def _fits(self, end: float) -> bool:
        """Return whether a run of all samples ends in time.

        Most faults end at the first sample that shows them. Ending with the time would leave out those that none shows.
        """
        return time.monotonic() + self.pass_s <= end

    def ignorable(self, end: float) -> Iterator[str]:
        """Yield inputs that a model may ignore: a mask is replaced by ones, another input by zeros."""
        for spec in self.specs:
            if not self._fits(end) or spec.dtype == "string":
                continue
            fill = np.ones_like if "mask" in spec.name.lower() else np.zeros_like
            changed = ({**feeds, spec.name: fill(feeds[spec.name])} for feeds in map(self._cast, self.feeds))
            if self._judge(changed).passes:
                yield spec.name

    def exchangeable(self, end: float) -> Iterator[str]:
        """Yield pairs of outputs, such as `mask and edges`, that differ, and by less than the check's bounds."""
        judged = [output for output in self.check.outputs if output.bounds]
        first_sample = self.right[0]  # read once: hundreds of pairs of a decoder's caches end there
        for pair in combinations(judged, 2):
            if time.monotonic() > end:
                return
            first, second = (output.name for output in pair)
            judgement = _FaultJudgement(pair, len(self.right))
            for i in range(len(self.right)):
                right = self.right[i] if i else first_sample
                one, other = right.get(first), right.get(second)
                if one is None or other is None or (one.dtype, one.shape) != (other.dtype, other.shape):
                    judgement.outcome = "noticed"
                else:
                    judgement.add(i, right, {first: other, second: one})
                if judgement.outcome == "noticed":
                    break
            if judgement.outcome == "within bounds" and judgement.passes:
                yield f"{first} and {second}"

    def try_faults(self, end: float) -> Iterator[PlantedFault]:
        """Yield the faults with the verdict on each, until the time is over."""
        for number, fault in enumerate(self.planted.faults):
            if not self._fits(end):
                return
            wrong = self.planted.feeds_of(number)
            outcome = self._judge({**feeds, **wrong} for feeds in map(self._cast, self.feeds)).outcome
            yield PlantedFault(
                node=str(fault.node.name or fault.node.outputs[0].name or ""),
                op_type=fault.node.op_type,
                weight=str(fault.site.weight.name) if isinstance(fault, WeightFault) else "",
                kind=fault.kind,
                outcome=outcome,
            )

    def _judge(self, samples: Iterator[dict[str, Array]]) -> _FaultJudgement:
        """Judge the outputs for changed inputs, up to the sample that proves that the check fails."""
        judgement = _FaultJudgement(self.check.outputs, len(self.right))
        limit_s = max(_LEAST_SECONDS, _TIMES_SLOWER * self.slowest_s)
        for i, feeds in enumerate(samples):
            try:
                outputs = self.planted.session.run_within(self.planted.outputs, feeds, limit_s)
            except ModelError:
                judgement.outcome = "noticed"
                break
            judgement.add(i, self.right[i], outputs)
            if judgement.outcome == "noticed":
                break
        return judgement


class _FaultJudgement:
    """The verdict of the check on a model with a fault, sample by sample."""

    def __init__(self, outputs: Sequence[JudgedOutput], count: int) -> None:
        self._count = count
        self._judged = {output.name: output for output in outputs if output.bounds}
        self._agreements = {
            name: Agreement(output.measuring, output.yardstick) for name, output in self._judged.items()
        }
        self.outcome: FaultOutcome = "unseen"

    def add(self, sample: int, right: Outputs, wrong: Outputs) -> None:
        for name, agreement in self._agreements.items():
            r, c = agreement.yardstick.pair(name, right, wrong)
            if (name in right) != (name in wrong):
                self.outcome = "noticed"
                return
            if r is None or c is None:
                continue
            c = storable(c)
            if r.shape != c.shape:
                self.outcome = "noticed"
                return
            if np.array_equal(r, c, equal_nan=is_float(r.dtype)):
                c = r
            metrics = agreement.add(r, c)
            if metrics.get("relative_rms", metrics.get("mismatched", 0.0)) > _UNCHANGED or agreement.nonfinite:
                self.outcome = "within bounds"
        if self.outcome == "within bounds" and any(self._fails(name, sample) for name in self._agreements):
            self.outcome = "noticed"

    @property
    def passes(self) -> bool:
        """Return whether the check passes: it neither fails nor is undecided."""
        beyond = (outside(each.metrics(), self._judged[name].bounds) for name, each in self._agreements.items())
        return self.outcome != "noticed" and not any(beyond)

    def _fails(self, name: str, sample: int) -> bool:
        """Return whether the samples up to this one prove that the output fails, whatever the others are."""
        agreement, output, share = self._agreements[name], self._judged[name], (sample + 1) / self._count
        if agreement.nonfinite:
            return True
        bounds, metrics = output.bounds, agreement.certain_metrics() if output.only_certain else agreement.metrics()
        if sample + 1 == self._count:
            return bool(outside(metrics, bounds))
        # The others may be right: an rms over all samples is at least that over some, times the root of their share;
        # how many rows of a list the others have is not known.
        certain = {name: value for name, value in metrics.items() if name in _ONLY_GROWING}
        if output.yardstick.rows is None:
            certain |= {name: metrics[name] * share**power for name, power in _MEANS.items() if name in metrics}
        return bool(outside(certain, {name: bound for name, bound in bounds.items() if name in certain}))


_MEANS: Mapping[str, float] = {"slice_rms": 0.5, "rmse": 0.5, "mean_abs": 1.0, "mismatched": 1.0}
"""Metric that is a mean over all samples -> the power of the samples' share by which those seen bound it from below."""


def is_blind(outputs: Sequence[JudgedOutput], right: StoredOutputs) -> bool:
    """Return whether a check would pass a candidate that gives each sample the outputs for the next one.

    Such samples show nothing of what the model computes, as pages without a seal do of a detector of seals.
    """
    count = len(right)
    judgement = _FaultJudgement(outputs, count)
    for i in range(count):
        judgement.add(i, right[i], right[(i + 1) % count])
        if judgement.outcome == "noticed":
            return False
    return count > 1 and judgement.passes and any(output.bounds for output in outputs)
